"""Whether an optimizer may leave alone the rows that have no gradient.

Answered by trying, not by a list of names: the very function that will update the
table runs on a few made-up rows, once, before training.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_parallax.tables.table import Table
from keras_parallax.tables.update import RowUpdate, Step


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """What the trial showed.

    Attributes:
        lazy_is_exact: A zero gradient leaves a row and its slots as they were.
        by_row: A row's update depends on that row alone.
    """

    lazy_is_exact: bool
    by_row: bool


def examine(table: Table, steps: list[Step]) -> Behaviour:
    """Tries an optimizer's update of `table` on three rows.

    The first and last have a gradient, the one between has none.
    """
    update = RowUpdate(table, [_detached(step) for step in steps])
    dtype = table.dtype
    members = 1 + len(table.slots)

    def compute(rows, gradients):
        return tf.stack(update.compute(tf.unstack(rows, members), gradients))

    signature = (
        tf.TensorSpec((members, None, *table.row_shape), dtype),
        tf.TensorSpec((None, *table.row_shape), dtype),
    )

    random = np.random.default_rng(0)
    shape = (3, *table.row_shape)
    weights = np.array([1.0, 0.0, -1.0]).reshape((3,) + (1,) * len(table.row_shape))
    with tf.init_scope():
        rows = tf.constant(random.uniform(0.2, 1.0, (members, *shape)), dtype)
        gradients = tf.constant(random.uniform(0.2, 1.0, shape) * weights, dtype)
        try:
            run = _without_side_effects(compute, signature)
            together = run(rows, gradients).numpy()
            alone = [
                run(rows[:, i : i + 1], gradients[i : i + 1]).numpy() for i in range(3)
            ]
        except (ValueError, TypeError, tf.errors.InvalidArgumentError):
            # It keeps something of another shape, as Adafactor does. If it is a
            # fault of the optimizer, the dense road will show it as stock Keras does.
            return Behaviour(lazy_is_exact=False, by_row=False)
        before = rows.numpy()
    untouched = all(step.has_gradient for step in steps) and np.array_equal(
        together[:, 1], before[:, 1]
    )
    tolerance = 1e-2 if dtype.size < 4 else 1e-4
    by_row = np.allclose(
        together,
        np.concatenate(alone, axis=1),
        rtol=tolerance,
        atol=tolerance,
        # Before its first step Nadam divides by zero, in each row alike.
        equal_nan=True,
    )
    return Behaviour(lazy_is_exact=bool(untouched), by_row=bool(by_row))


def _without_side_effects(function: Callable, signature: Sequence) -> Callable:
    """`function` without what it assigns to variables that its result ignores."""
    wrapped = tf.compat.v1.wrap_function(function, signature)
    return wrapped.prune(wrapped.inputs[: len(signature)], wrapped.structured_outputs)


def _detached(step: Step) -> Step:
    """The step with constants for the tensors of the graph being built."""

    def constant(value):
        if tf.is_tensor(value) and not hasattr(value, "numpy"):
            return tf.fill(value.shape, tf.constant(0.05, value.dtype))
        return value

    with tf.init_scope():
        args = tuple(constant(arg) for arg in step.args)
    return Step(step.function, args, step.kwargs)
