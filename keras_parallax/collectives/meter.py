"""Counts what is sent, where it is sent.

A meter is a variable of this worker: reading it costs nothing while a step runs, and
counting is part of the step's graph.
"""

from __future__ import annotations

import tensorflow as tf


class Meter:
    """Bytes that this worker has sent to and received from others.

    Args:
        device: Device of this worker.
    """

    def __init__(self, device: str):
        with tf.device(device):
            self._totals = tf.Variable([0, 0], dtype=tf.int64, trainable=False)

    def count(self, sent_bytes: tf.Tensor, received_bytes: tf.Tensor) -> tf.Operation:
        """Adds to the totals, in the graph."""
        both = tf.stack([tf.cast(sent_bytes, tf.int64), tf.cast(received_bytes, tf.int64)])
        return self._totals.assign_add(both)

    def read(self) -> tuple[int, int]:
        """Bytes sent and received since the start."""
        sent, received = self._totals.numpy().tolist()
        return sent, received
