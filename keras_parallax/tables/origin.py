"""Where a plain variable came from, for it may have to become a table.

Whether a variable's rows are looked up is known when the first step has been
traced, and variables are made before. What it takes to put a table in the place of
one stays with the variable, and is gone when it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from keras_parallax.tables.creation import Creation

_ATTRIBUTE = "_keras_parallax_origin"


@dataclasses.dataclass(eq=False)
class Origin:
    """How a trainable variable was made.

    Attributes:
        made: What it told of itself.
        next_creator: Makes plain variables.
        kwargs: Arguments of the variable creator.
        slots: Variables of the same shape that an optimizer keeps beside it, and
            how they were made.
    """

    made: Creation
    next_creator: Callable
    kwargs: dict
    slots: list[tuple[tf.Variable, Origin]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, made: Creation, next_creator: Callable, kwargs: dict) -> Origin:
        """Of a variable that is about to be made: all but its initial value, which
        may be large."""
        return cls(made, next_creator, {**kwargs, "initial_value": None})

    def note_on(self, variable: tf.Variable) -> None:
        """Leaves this with the variable."""
        setattr(variable, _ATTRIBUTE, self)


def origin_of(variable: object) -> Origin | None:
    """How a variable was made; None for one of which nothing was noted."""
    return getattr(variable, _ATTRIBUTE, None)
