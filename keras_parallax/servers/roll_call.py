"""Before the workers of an asynchronous job wait for each other: will they meet?

Such workers are at different steps, so one that calls what the others do not call
would wait for ever. On a server stands, for each worker, how often it has come to
wait for the others and what for. Who comes looks there until all have come as
often; if it sees one that has come for something else, or that has left, or that can
go no further itself, it raises, and names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf

from keras_parallax import errors
from keras_parallax.cluster.job import Job
from keras_parallax.servers.numbers import Numbers

# What a worker that has left has come to.
_LEFT = -1
# How often one looks that waits: soon at first, for most waits are short.
_FIRST_LOOK_SECONDS = 1e-3
_LOOK_SECONDS = 0.1


class RollCall:
    """The calls at which workers have arrived, kept on a server.

    Args:
        job: This worker's place in the job.
        device: Device of the server that keeps them.
        is_held: Tells of a worker whether it can go no further because it waits for
            this one in its step.
    """

    def __init__(
        self,
        job: Job,
        device: str,
        is_held: Callable[[int], bool] = lambda rank: False,
    ):
        self._rank = job.rank
        self._size = job.size
        self._device = device
        self._is_held = is_held
        self._count = 0
        self._counts = Numbers(device, "keras_parallax/roll_call/counts", job)
        with tf.init_scope(), tf.device(device):
            self._words = [
                tf.raw_ops.VarHandleOp(
                    shared_name=f"keras_parallax/roll_call/{rank}",
                    dtype=tf.string,
                    shape=[],
                )
                for rank in range(job.size)
            ]
        self._say("")
        job.barrier()

    def __call__(self, what: str) -> None:
        """Returns when all workers have come for the same.

        Args:
            what: What for, such as `"strategy.sparsity()"`.

        Raises:
            ClusterError: They never will.
        """
        self._count += 1
        self._say(what)
        self._arrive(self._count)
        missing = {rank for rank in range(self._size) if rank != self._rank}
        pause_seconds = _FIRST_LOOK_SECONDS
        while True:
            counts = self._read_counts()
            for rank in sorted(missing):
                if self._has_come(rank, counts[rank], what):
                    missing.discard(rank)
            if not missing:
                return
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LOOK_SECONDS)

    def leave(self) -> None:
        """This worker comes to no further call."""
        self._arrive(_LEFT)

    def _has_come(self, rank: int, count: int, what: str) -> bool:
        if count == self._count:
            word = self._read_word(rank)
            if word != what:
                raise self._never(what, rank, f"which waits for all workers for {word}")
            return True
        if count == _LEFT:
            raise self._never(what, rank, "which has left the job")
        if self._is_held(rank):
            held = (
                "which `max_staleness` holds back in its step until this worker has "
                "taken another"
            )
            raise self._never(what, rank, held)
        return count > self._count

    def _never(self, what: str, rank: int, where: str) -> errors.ClusterError:
        return errors.ClusterError(
            f"Worker {self._rank} waits for all workers for {what}, but it would wait "
            f"for worker {rank} for ever, {where}. In asynchronous training each "
            "worker takes its steps by itself, and comes to what all do together in "
            "the same order: give `fit` the same callbacks and the same numbers of "
            "steps and epochs on every worker, and call such methods on all of them "
            "or on none."
        )

    def _say(self, what: str) -> None:
        with tf.init_scope(), tf.device(self._device):
            word = self._words[self._rank]
            tf.raw_ops.AssignVariableOp(resource=word, value=tf.constant(what))
        self._read_word(self._rank)

    def _arrive(self, count: int) -> None:
        with tf.init_scope():
            self._counts.set_mine(count)
        self._read_counts()

    def _read_counts(self) -> list[int]:
        with tf.init_scope():
            return self._counts.read().numpy().tolist()

    def _read_word(self, rank: int) -> str:
        with tf.init_scope(), tf.device(self._device):
            word = self._words[rank]
            read = tf.raw_ops.ReadVariableOp(resource=word, dtype=tf.string)
            return read.numpy().decode()
