"""A number of each worker, on a server, for all of them to see."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from keras_parallax.cluster.job import Job


class Numbers:
    """A number of each worker, on a server.

    Args:
        device: Device of the server.
        name: The same for every worker.
        job: This worker's place in the job; worker 0 makes them, and a barrier has to
            follow.
    """

    def __init__(self, device: str, name: str, job: Job):
        self._device = device
        self._rank = job.rank
        with tf.init_scope(), tf.device(device):
            self._handle = tf.raw_ops.VarHandleOp(
                shared_name=name, dtype=tf.int64, shape=[job.size]
            )
            if job.rank == 0:
                zeros = tf.zeros([job.size], tf.int64)
                tf.raw_ops.AssignVariableOp(resource=self._handle, value=zeros)
                # The value fetched is the proof that it has happened.
                self.read().numpy()

    def read(self) -> tf.Tensor:
        """All of them, `(workers,)`."""
        with tf.device(self._device):
            return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)

    def set_mine(self, number: int) -> tf.Operation | None:
        """Overwrites this worker's."""
        return self._change(tf.raw_ops.ResourceScatterUpdate, number)

    def add_to_mine(self, number: int) -> tf.Operation | None:
        """Adds to this worker's."""
        return self._change(tf.raw_ops.ResourceScatterAdd, number)

    def _change(self, how: Callable, number: int) -> tf.Operation | None:
        with tf.device(self._device):
            return how(
                resource=self._handle,
                indices=[self._rank],
                updates=tf.constant([number], tf.int64),
            )
