"""Where a variable came from, for it may have to become a table, or to be one no more.

Whether a variable's rows are looked up is known when the first step has been
traced, and variables are made before. What it takes to put a table in the place of
one stays with the variable, and is gone when it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_parallax.tables.creation import Creation

_ATTRIBUTE = "_keras_parallax_origin"


@dataclasses.dataclass(eq=False)
class Origin:
    """How a trainable variable, plain or a table, was made.

    Attributes:
        made: What it told of itself.
        next_creator: Makes plain variables.
        kwargs: Arguments of the variable creator.
        slots: Variables or tables of the same shape that an optimizer keeps beside
            it, and how they were made.
    """

    made: Creation
    next_creator: Callable
    kwargs: dict
    slots: list[tuple[Any, Origin]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, made: Creation, next_creator: Callable, kwargs: dict) -> Origin:
        """Of a variable that is about to be made: all but its initial value, which
        may be large."""
        return cls(made, next_creator, {**kwargs, "initial_value": None})

    def note_on(self, variable: object) -> None:
        """Leaves this with the variable."""
        setattr(variable, _ATTRIBUTE, self)

    def hand_over(self, value: object) -> None:
        """Has the Keras variable for which something was made hold `value` instead."""
        reference = self.made.keras_variable
        holder = None if reference is None else reference()
        if holder is not None:
            holder._value = value


def origin_of(variable: object) -> Origin | None:
    """How a variable was made; None for one of which nothing was noted."""
    return getattr(variable, _ATTRIBUTE, None)
