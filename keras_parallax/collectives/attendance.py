"""Counts the calls that this worker has come to.

All workers take part in each call of `strategy.run`. One that does not come is told
from those that wait for it by its count alone.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Attendance:
    """A count that is part of the step's graph, and read without disturbing it.

    Args:
        device: Device of this worker.
    """

    def __init__(self, device: str):
        with tf.device(device):
            self._calls = tf.Variable(0, dtype=tf.int64, trainable=False)

    def come(self, inputs: Any) -> None:
        """Counts a call once its data are there.

        Args:
            inputs: What the call is given: any nest with tensors.
        """
        first = [x for x in tf.nest.flatten(inputs) if isinstance(x, tf.Tensor)][:1]
        with tf.control_dependencies(first):
            self._calls.assign_add(1)

    def read(self) -> int:
        """Calls since the start."""
        return int(self._calls.numpy())
