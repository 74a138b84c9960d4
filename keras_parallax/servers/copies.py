"""A copy of the rows in every worker: for tables that are small or busy.

Nothing is pulled. Two ways of summing a step's gradients make two roads of it:

- *all-gather*: each worker gets the touched rows' gradients of all others. Its bytes
  grow with the number of workers, but it is one exchange, where servers need two or
  three.
- *all-reduce*: the gradients are made dense and summed with the dense variables'.
  Its bytes do not depend on what was touched.

Every worker then runs the same update on its own copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.dense import DenseRoad
from keras_parallax.collectives.gather import all_gather_together
from keras_parallax.collectives.meter import Meter, size_bytes
from keras_parallax.collectives.wire import Wire
from keras_parallax.servers.home import Push, sum_by_row
from keras_parallax.servers.in_process import InProcessHome
from keras_parallax.servers.storage import Storage
from keras_parallax.servers.sums import Sums, SumsHere


class CopiesHome(InProcessHome):
    """Keeps all rows in every worker.

    Args:
        job: This worker's place in the job.
        device: Device of this worker that holds its copy.
        dense: The dense road.
        wire: The form in which gathered gradients travel.
        meter: Counts what is exchanged.
        off_machine: Share of the other workers that are on other machines.
        reduces: Whether gradients are summed by all-reduce, rather than gathered.
    """

    name = "workers"
    sends_messages = True

    def __init__(
        self,
        job: Job,
        device: str,
        dense: DenseRoad,
        wire: Wire,
        meter: Meter,
        off_machine: float,
        reduces: bool,
    ):
        super().__init__(device)
        self._rank = job.rank
        self._size = job.size
        self._dense = dense
        self._wire = wire
        self._meter = meter
        self._off_machine = off_machine
        self._reduces = reduces

    def sum(self, contributions: Sequence[Push]) -> Sums:
        """See `Home.sum`; every worker updates its copy alike."""
        if self._reduces:
            return SumsHere(self._reduced(contributions), self._update_all)
        return super().sum(self._gathered(contributions))

    def touched(self, storage: Storage) -> int | None:
        """See `Home.touched`; a dense gradient does not show what was touched."""
        if self._reduces:
            return None
        return super().touched(storage) if self._rank == 0 else 0

    def _gathered(self, contributions: Sequence[Push]) -> list[Push]:
        sent = []
        for push in contributions:
            sent += [push.ids, self._wire.encode(push.gradients)]
        received = all_gather_together(sent)
        mine, all_ = (
            tf.add_n([size_bytes(tensor) for tensor in tensors])
            for tensors in (sent, received)
        )
        # In a ring, each worker hands on what it has from the one before.
        self._count(all_ - mine)
        summed = []
        for index, push in enumerate(contributions):
            ids, encoded = received[2 * index : 2 * index + 2]
            gradients = self._wire.decode(encoded, push.storage.spec.dtype)
            ids, gradients = sum_by_row(ids, gradients)
            summed.append(Push(push.storage, ids, gradients, push.update))
        return summed

    def _reduced(self, contributions: Sequence[Push]) -> list[Push]:
        """The sums, with gradients of all rows."""
        dense = [
            tf.scatter_nd(
                push.ids[:, None],
                push.gradients,
                tf.constant(
                    (push.storage.spec.num_rows, *push.storage.spec.row_shape),
                    push.ids.dtype,
                ),
            )
            for push in contributions
        ]
        size = sum(push.storage.spec.table_bytes for push in contributions)
        self._count(tf.constant(2 * size * (self._size - 1) // self._size, tf.int64))
        totals = self._dense.reduce_gradients(dense)
        return [
            dataclasses.replace(push, gradients=total)
            for push, total in zip(contributions, totals, strict=True)
        ]

    def _update_all(self, sums: Sequence[Push]) -> tf.Operation:
        updated = []
        for push in sums:
            count = push.storage.spec.num_partitions
            updated += [
                push.update(p, None, push.gradients[p::count]) for p in range(count)
            ]
        return tf.group(*updated)

    def _count(self, bytes_each_way: tf.Tensor) -> None:
        away = tf.cast(
            tf.cast(bytes_each_way, tf.float64) * self._off_machine, tf.int64
        )
        self._meter.count(bytes_each_way, bytes_each_way, away, away)
