"""Partitions in the workers themselves: each serves its share of every table.

Ids, rows and gradients travel by all-to-all among the workers; nothing is started
and no port is opened. A pull and its push cost three exchanges, however many tables:
ids to their owners, rows back, and gradients by the routes of the ids; rows and
gradients once for each width and type of row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.exchange import Group
from keras_parallax.collectives.reduce import reduced
from keras_parallax.collectives.wire import Wire
from keras_parallax.servers.home import (
    Home,
    Pull,
    Push,
    fill_partitions,
    no_rows,
)
from keras_parallax.servers.storage import Partition, Storage, TableSpec
from keras_parallax.servers.sums import Sums, SumsHere
from keras_parallax.servers.waves import Waves


class PeersHome(Home):
    """Keeps partition `p` of every table in worker `p mod N`.

    Args:
        job: This worker's place in the job.
        device: Device of this worker that holds its rows.
        group: The workers that exchange.
        indices: Index in the group of each worker's share, by rank. With a group
            of all workers that is the rank itself.
        wire: The form in which rows and gradients travel.
    """

    name = "peers"
    reads_alone = False

    def __init__(
        self,
        job: Job,
        device: str,
        group: Group,
        indices: Sequence[int],
        wire: Wire,
    ):
        self.devices = (device,) * job.size
        self._job = job
        self._indices = list(indices)
        self._wire = wire
        self._waves = Waves(group, self._owners)

    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """See `Home.allocate`; each worker makes its own share."""
        storage = self.open(spec)
        mine = [p for p in range(spec.num_partitions) if self.writes(p)]
        fill_partitions(storage, mine, constant, initial_rows)
        return storage

    def pull(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        """See `Home.pull`."""
        wave = self._waves.send(requests)
        answers: list[tf.Tensor] = [tf.constant(0)] * len(requests)
        for batch in wave.batches:
            rows = [
                self._wire.encode(self._serve(storage, ids))
                for storage, ids in zip(batch.storages, batch.ids, strict=True)
            ]
            for index, found in zip(batch.indices, batch.reply(rows), strict=True):
                dtype = requests[index].storage.spec.dtype
                answers[index] = self._wire.decode(found, dtype)
        return answers

    def sum(self, contributions: Sequence[Push]) -> Sums:
        """See `Home.sum`."""
        return SumsHere(
            self._waves.of(contributions).sum(contributions, self._wire),
            self._update,
            lambda squares: reduced(squares, "squares"),
        )

    def owner(self, ids: tf.Tensor, spec: TableSpec) -> tf.Tensor:
        """Rank of the worker that has each row, in the graph."""
        partition = tf.math.floormod(ids, spec.num_partitions)
        if spec.num_partitions > self._job.size:
            partition = tf.math.floormod(partition, self._job.size)
        return tf.cast(partition, tf.int32)

    def _owners(self, ids: tf.Tensor, spec: TableSpec) -> tf.Tensor:
        ranks = self.owner(ids, spec)
        if self._indices == list(range(self._job.size)):
            return ranks
        return tf.gather(tf.constant(self._indices), ranks)

    def _serve(self, storage: Storage, ids: tf.Tensor) -> tf.Tensor:
        """Rows of this worker's share of a table."""
        owned = self._owned(storage.spec)
        if not owned:
            return no_rows(ids, storage.spec)
        places, positions = self._split_owned(storage.spec, ids)
        parts = [
            storage.partitions[p].gather(place)
            for p, place in zip(owned, places, strict=True)
        ]
        return parts[0] if len(parts) == 1 else tf.dynamic_stitch(positions, parts)

    def _update(self, sums: Sequence[Push]) -> tf.Operation:
        return tf.group(*(part for push in sums for part in self._parts(push)))

    def _parts(self, push: Push) -> list[tf.Operation]:
        """Updates this worker's partitions of one table."""
        owned = self._owned(push.storage.spec)
        if not owned:
            return []
        places, positions = self._split_owned(push.storage.spec, push.ids)
        if len(owned) == 1:
            return [push.update(owned[0], places[0], push.gradients)]
        return [
            push.update(p, place, tf.gather(push.gradients, position))
            for p, place, position in zip(owned, places, positions, strict=True)
        ]

    def _owned(self, spec: TableSpec) -> list[int]:
        return list(range(self._job.rank, spec.num_partitions, self._job.size))

    def _split_owned(self, spec: TableSpec, ids: tf.Tensor) -> tuple[list, list]:
        """Places and positions of ids by partition, all of them this worker's."""
        count = spec.num_partitions
        owned = len(self._owned(spec))
        place = tf.math.floordiv(ids, count)
        if owned == 1:
            return [place], []
        which = tf.cast(tf.math.floormod(ids, count) // self._job.size, tf.int32)
        positions = tf.dynamic_partition(tf.range(tf.size(ids)), which, owned)
        return [tf.gather(place, position) for position in positions], positions

    def writes(self, partition: int) -> bool:
        return partition % self._job.size == self._job.rank

    def _read_piece(
        self, index: int, partition: Partition, first: int, last: int
    ) -> np.ndarray:
        """A piece from its owner, to every worker; all of them call it."""
        if self.writes(index):
            rows = super()._read_piece(index, partition, first, last)
        else:
            shape = (last - first, *partition.row_shape)
            rows = np.zeros(shape, partition.dtype.as_numpy_dtype)
        return self._job.broadcast(rows, root=index % self._job.size)
