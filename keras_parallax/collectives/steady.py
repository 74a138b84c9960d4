"""Tensors whose size stays the same from step to step, though their content does not.

Before Horovod exchanges a tensor, its workers agree that all of them are ready. For a
tensor of the same name and shape as before that takes a round of bits. Any other is
told to rank 0, which tells all: again in each cycle, until the last worker has come.
How many rows a batch looks up differs from step to step; but an all-to-all sends as
many as its splits say, and what stands behind them stays where it is. So tensors are
padded to a size that seldom changes.
"""

from __future__ import annotations

import itertools

import tensorflow as tf

# Sizes are multiples of a quarter of the power of two below them: the fewer sizes
# there are, the sooner the greatest has come.
_PARTS = 4

_numbers = itertools.count()


def padded(values: tf.Tensor) -> tf.Tensor:
    """`values` and zeros behind them, as many as at the largest yet, in the graph.

    Each call stands for a place in a step, and each place remembers its own size.

    Args:
        values: `(n, ...)`.

    Returns:
        `(m, ...)`, with `n <= m`; `m` is at most 5/4 of the largest `n` yet.
    """
    if tf.executing_eagerly():
        return values
    rows = tf.shape(values)[0]
    largest = _remembered()
    before = tf.ensure_shape(
        tf.raw_ops.ReadVariableOp(resource=largest, dtype=tf.int32), ()
    )
    size = tf.maximum(before, rounded_up(rows))
    tf.raw_ops.AssignVariableOp(resource=largest, value=size)
    behind = tf.concat([[size - rows], tf.shape(values)[1:]], 0)
    joined = tf.concat([values, tf.zeros(behind, values.dtype)], 0)
    return tf.ensure_shape(joined, (None, *values.shape[1:]))


def rounded_up(rows: tf.Tensor) -> tf.Tensor:
    """The next of a few sizes, int32: four for each power of two, and at least 4."""
    rows = tf.maximum(tf.cast(rows, tf.float64), _PARTS)
    power = tf.floor(tf.math.log(rows) / tf.math.log(tf.constant(2.0, tf.float64)))
    part = tf.pow(tf.constant(2.0, tf.float64), power) / _PARTS
    return tf.cast(tf.math.ceil(rows / part) * part, tf.int32)


def _remembered() -> tf.Tensor:
    """The handle of a new variable, which is 0 and lives as long as the process."""
    # Not a `tf.Variable`: in a strategy's scope that is the strategy's business.
    with tf.init_scope():
        handle = tf.raw_ops.VarHandleOp(
            dtype=tf.int32,
            shape=(),
            shared_name=f"keras_parallax/largest/{next(_numbers)}",
        )
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(0))
    return handle
