"""The user's own optimizer, run on rows where they live.

A Keras optimizer updates one variable at a time: `update_step(gradient, variable,
learning_rate)` reads the variable and its slots and assigns them anew. Nothing in
it says that these must be whole. So the rows that were touched, and the same rows
of the slots, are put in the variables' place; the optimizer does what it does; and
what it assigned is written back.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from keras_parallax.tables.table import Table

# Places where a step's gradient stands in the arguments of an update function.
GRADIENT = object()


@dataclasses.dataclass
class Step:
    """One call that the optimizer makes for a variable.

    Attributes:
        function: Called as `function(variable, *args, **kwargs)`.
        args: Its arguments; `GRADIENT` stands for the gradient.
        kwargs: Its keyword arguments.
    """

    function: Callable
    args: tuple
    kwargs: dict

    @property
    def has_gradient(self) -> bool:
        """Whether it takes the gradient; weight decay does not."""
        return any(arg is GRADIENT for arg in self.args)

    def call(self, table: Table, gradient: tf.Tensor) -> None:
        """Runs it on the rows that `table` and its slots view."""
        args = [gradient if arg is GRADIENT else arg for arg in self.args]
        self.function(table, *args, **self.kwargs)


class RowUpdate:
    """What an optimizer does to a table in one step.

    Args:
        table: The table.
        steps: The optimizer's calls, in their order.
        exact: Update every row of a partition, those without a gradient with a
            zero gradient, as the optimizer does with a dense gradient; else only
            the rows touched.
    """

    def __init__(self, table: Table, steps: Sequence[Step], exact: bool = False):
        self._table = table
        self._steps = list(steps)
        self.exact = exact

    @property
    def _members(self) -> list[Table]:
        return [self._table, *self._table.slots]

    def compute(
        self, rows: Sequence[tf.Tensor], gradients: tf.Tensor
    ) -> list[tf.Tensor]:
        """New rows of the table and its slots, from the old ones.

        Args:
            rows: Rows of the table and of each slot, `(n, *row_shape)` each.
            gradients: Their gradients, `(n, *row_shape)`.

        Returns:
            The new rows; the very same tensor where none were assigned.
        """
        if self._table.is_whole:
            return [
                row[None] for row in self._compute([r[0] for r in rows], gradients[0])
            ]
        return self._compute(rows, gradients)

    def _compute(
        self, rows: Sequence[tf.Tensor], gradients: tf.Tensor
    ) -> list[tf.Tensor]:
        with contextlib.ExitStack() as stack:
            for member, view in zip(self._members, rows, strict=True):
                stack.enter_context(member.viewing(view))
            with distribute_lib.UpdateContext(self._table):
                for step in self._steps:
                    step.call(self._table, gradients)
            return [member.view for member in self._members]

    def __call__(
        self, partition: int, places: tf.Tensor | None, gradients: tf.Tensor
    ) -> tf.Operation:
        """Updates one partition; see `servers.home.Update`."""
        parts = [member.storage.partitions[partition] for member in self._members]
        touched = parts[0].num_rows if places is None else tf.size(places)
        counted = parts[0].note_touched(touched)
        if places is not None and self.exact:
            shape = (parts[0].num_rows, *self._table.row_shape)
            gradients = tf.scatter_nd(
                places[:, None], gradients, tf.constant(shape, places.dtype)
            )
            places = None
        if places is None:
            before = [part.read() for part in parts]
        else:
            before = [part.gather(places) for part in parts]
        after = self.compute(before, gradients)
        return tf.group(
            counted,
            *(
                part.assign(new) if places is None else part.scatter(places, new)
                for part, old, new in zip(parts, before, after, strict=True)
                if new is not old
            ),
        )
