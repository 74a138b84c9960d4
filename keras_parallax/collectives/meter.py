"""Counts what is sent, where it is sent.

A meter is a variable of this worker: counting is part of the step's graph, and
reading it does not disturb a step.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Crossed:
    """Bytes that have crossed a boundary since the start, both ways.

    Attributes:
        sent_bytes: Sent by this worker to other processes.
        received_bytes: Received by it from other processes.
        sent_off_machine_bytes: What of it went to other machines.
        received_off_machine_bytes: What of it came from other machines.
    """

    sent_bytes: int
    received_bytes: int
    sent_off_machine_bytes: int
    received_off_machine_bytes: int


class Meter:
    """Bytes that this worker has sent to and received from other processes.

    Args:
        device: Device of this worker.
    """

    def __init__(self, device: str):
        with tf.device(device):
            self._totals = tf.Variable([0] * 4, dtype=tf.int64, trainable=False)

    def count(
        self,
        sent: tf.Tensor,
        received: tf.Tensor,
        sent_off_machine: tf.Tensor,
        received_off_machine: tf.Tensor,
    ) -> tf.Operation:
        """Adds numbers of bytes, in the graph."""
        numbers = (sent, received, sent_off_machine, received_off_machine)
        return self._totals.assign_add(
            tf.stack([tf.cast(number, tf.int64) for number in numbers])
        )

    def read(self) -> Crossed:
        """What was counted since the start."""
        return Crossed(*self._totals.numpy().tolist())


def size_bytes(values: tf.Tensor) -> tf.Tensor:
    """Bytes of a tensor, int64, in the graph."""
    values = tf.convert_to_tensor(values)
    return tf.size(values, tf.int64) * values.dtype.size
