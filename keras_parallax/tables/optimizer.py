"""From the calls of a Keras optimizer to pushes.

Decides whether a table's update is lazy or exact, puts together what the optimizer
does to a table in one step (weight decay, then the update proper), and hands it
to the home.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import keras
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.plan.plan import Plan
from keras_parallax.servers.home import Push
from keras_parallax.tables.clipping import optimizer_of
from keras_parallax.tables.laziness import Behaviour, examine
from keras_parallax.tables.table import Table
from keras_parallax.tables.update import GRADIENT, RowUpdate, Step

logger = logging.getLogger("keras_parallax")

SPARSE_UPDATES = ("auto", "lazy", "exact")


class TableOptimizer:
    """Runs the optimizer's calls for tables.

    Args:
        sparse_update: "auto", "lazy" or "exact".
        plan: Where the decision is written down.
    """

    def __init__(self, sparse_update: str, plan: Plan):
        if sparse_update not in SPARSE_UPDATES:
            raise errors.ConfigError(
                f"`sparse_update` is one of {SPARSE_UPDATES}. "
                f"Received: sparse_update={sparse_update!r}"
            )
        self._sparse_update = sparse_update
        self._plan = plan
        self._behaviours: dict[tuple[str, str], Behaviour] = {}
        # Calls without a gradient, until the call with the gradient comes.
        self._pending: dict[str, tuple[object, list[Step]]] = {}

    def study(self, table: Table, function: Callable, args: tuple, kwargs) -> None:
        """Notes, while a step is probed, when the table must go the dense way."""
        if table.owner is not None or table.is_whole or not args:
            return
        if tf.is_tensor(args[0]) and not _has_slices(args):
            # Some transformations of gradients make them dense: Keras's own clipping
            # by a global norm, where a loop of the user's has it.
            table.gradients_seen.add("dense")
        if not _has_slices(args):
            return
        steps = [Step(function, (GRADIENT, *args[1:]), kwargs)]
        if not self._behaviour(table, steps).by_row:
            table.gradients_seen.add("dense")
            return
        exact = self._is_exact(table, steps)
        table.dense_means_same = exact or self._behaviour(table, steps).lazy_is_exact

    def update(
        self, table: Table, function: Callable, args: tuple, kwargs: dict
    ) -> None:
        """One call of `extended.update` for a table.

        Raises:
            TableError: The call cannot be made for rows.
        """
        if table.owner is not None:
            raise errors.TableError(
                f"{table.path} belongs to the table {table.owner.path}, and the "
                "optimizer updates it by itself. `gradient_accumulation_steps` does "
                "so and is not supported for tables: remove it, or send the "
                "variable by the dense road with "
                f"`routes={{'{table.owner.path}': 'allreduce'}}`.",
                table=table.owner.path,
            )
        if args and isinstance(args[0], keras.Variable | tf.Variable | Table):
            # Not a gradient: the moving average, to become the value.
            return function(table, *args, **kwargs)
        steps = self._take_pending(table)
        if not args:
            self._pending[table._unique_id] = (
                _here(),
                [*steps, Step(function, (), kwargs)],
            )
            return
        if not _has_slices(args):
            raise errors.TableError(
                f"The gradient of {table.path} is dense in this step, but it was "
                "sparse in the step traced before, after which its rows went to "
                "partitions. Expected one kind of gradient in all steps. Name the "
                f"road yourself: `routes={{'{table.path}': 'allreduce'}}`.",
                table=table.path,
            )
        steps = [*steps, Step(function, (GRADIENT, *args[1:]), kwargs)]
        update = RowUpdate(table, steps, exact=self._is_exact(table, steps))
        ids, gradients = _unique(table, args[0])
        table.count_push(tf.size(ids))
        table.traffic.push(Push(table.storage, ids, gradients, update))

    def _is_exact(self, table: Table, steps: list[Step]) -> bool:
        if table.is_whole:
            exact = False
        elif self._sparse_update != "auto":
            exact = self._sparse_update == "exact"
        else:
            exact = not self._behaviour(table, steps).lazy_is_exact
            if exact and self._plan.get(table._unique_id).update != "exact":
                logger.warning(
                    "%s: %s also changes rows that have no gradient, so every step "
                    "updates all %d rows; sparse_update='lazy' would update only "
                    "those that a batch touches, which is another method.",
                    table.path,
                    _optimizer_name(steps[-1].function),
                    table.num_rows,
                )
        if not table.is_whole:
            self._plan.change(table._unique_id, update="exact" if exact else "lazy")
        return exact

    def _behaviour(self, table: Table, steps: list[Step]) -> Behaviour:
        key = (table._unique_id, " ".join(step.function.__qualname__ for step in steps))
        if key not in self._behaviours:
            self._behaviours[key] = examine(table, steps)
        return self._behaviours[key]

    def _take_pending(self, table: Table) -> list[Step]:
        where, steps = self._pending.pop(table._unique_id, (None, []))
        return steps if where == _here() else []


def _here() -> int:
    return 0 if tf.executing_eagerly() else id(tf.compat.v1.get_default_graph())


def _has_slices(args: tuple) -> bool:
    return bool(args) and isinstance(args[0], tf.IndexedSlices)


def _unique(table: Table, slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids, each once, with summed gradients."""
    if table.looked_up(slices.indices):
        return slices.indices, slices.values
    # The tape joined the slices of several lookups.
    ids, inverse = tf.unique(slices.indices)
    summed = tf.math.unsorted_segment_sum(slices.values, inverse, tf.size(ids))
    return ids, summed


def _optimizer_name(function: Callable) -> str:
    owner = optimizer_of(function)
    return type(owner).__name__ if owner is not None else "the optimizer"
