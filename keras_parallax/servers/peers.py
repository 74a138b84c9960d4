"""Partitions in the workers themselves: each serves its share of every table.

Ids, rows and gradients travel by all-to-all among the workers; nothing is started
and no port is opened. A step costs three exchanges, however many tables there are:
ids to their owners, rows back, and gradients by the routes of the ids; rows and
gradients once for each width and type of row.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.exchange import Group, Route
from keras_parallax.servers.home import (
    Home,
    Pull,
    Push,
    fill_partitions,
    sum_by_row,
)
from keras_parallax.servers.storage import Partition, Storage, TableSpec


class PeersHome(Home):
    """Keeps partition `p` of every table in worker `p mod N`.

    Args:
        job: This worker's place in the job.
        device: Device of this worker that holds its rows.
        group: All workers.
    """

    name = "peers"

    def __init__(self, job: Job, device: str, group: Group):
        self.devices = (device,) * job.size
        self._job = job
        self._group = group
        # The pull whose routes the push that follows it can take.
        self._last: _Wave | None = None

    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """See `Home.allocate`; each worker makes its own share."""
        storage = self.open(spec)
        mine = [p for p in range(spec.num_partitions) if self._writes(p)]
        fill_partitions(storage, mine, constant, initial_rows)
        return storage

    def pull(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        """See `Home.pull`."""
        wave = _Wave.send(self._group, requests)
        self._last = wave
        answers: list[tf.Tensor] = [tf.constant(0)] * len(requests)
        for batch in wave.batches:
            rows = [
                self._serve(storage, ids) for storage, ids in batch.received_ids()
            ]
            found = batch.route.reply(batch.in_order_received(rows))
            for index, part in zip(batch.indices, batch.split(found), strict=True):
                answers[index] = part
        return answers

    def push(self, contributions: Sequence[Push]) -> tf.Operation:
        """See `Home.push`."""
        wave = self._last
        if wave is None or not wave.carried(contributions):
            wave = _Wave.send(
                self._group, [Pull(c.storage, c.ids) for c in contributions]
            )
        updated = []
        for batch in wave.batches:
            mine = [wave.position(contributions, i) for i in batch.indices]
            gradients = tf.concat([contributions[i].gradients for i in mine], 0)
            received = batch.by_table(batch.route.deliver(gradients))
            for i, (storage, ids), gradient in zip(
                mine, batch.received_ids(), received, strict=True
            ):
                summed = sum_by_row(ids, gradient)
                updated += self._update(storage, contributions[i].update, *summed)
        return tf.group(*updated)

    def _serve(self, storage: Storage, ids: tf.Tensor) -> tf.Tensor:
        """Rows of this worker's share of a table."""
        owned = self._owned(storage.spec)
        if not owned:
            return tf.zeros((0, *storage.spec.row_shape), storage.spec.dtype)
        places, positions = self._split_owned(storage.spec, ids)
        parts = [
            storage.partitions[p].gather(place)
            for p, place in zip(owned, places, strict=True)
        ]
        return parts[0] if len(parts) == 1 else tf.dynamic_stitch(positions, parts)

    def _update(
        self, storage: Storage, update: Callable, ids: tf.Tensor, gradients: tf.Tensor
    ) -> list[tf.Operation]:
        owned = self._owned(storage.spec)
        if not owned:
            return []
        places, positions = self._split_owned(storage.spec, ids)
        if len(owned) == 1:
            return [update(owned[0], places[0], gradients)]
        return [
            update(p, place, tf.gather(gradients, position))
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

    def _writes(self, partition: int) -> bool:
        return partition % self._job.size == self._job.rank

    def _read_piece(
        self, index: int, partition: Partition, first: int, last: int
    ) -> np.ndarray:
        """A piece from its owner, to every worker; all of them call it."""
        if self._writes(index):
            rows = super()._read_piece(index, partition, first, last)
        else:
            shape = (last - first, *partition.row_shape)
            rows = np.zeros(shape, partition.dtype.as_numpy_dtype)
        return self._job.broadcast(rows, root=index % self._job.size)


@dataclasses.dataclass(frozen=True, eq=False)
class _Batch:
    """What a wave carries of the tables that have one width and type of row.

    Attributes:
        indices: Positions of the tables in the wave.
        storages: The tables' rows.
        sizes: Rows asked of each.
        route: The way of the ids.
        ids: Ids received of each table.
        positions: Where they stood among all ids received for the batch.
    """

    indices: list[int]
    storages: list[Storage]
    sizes: list[tf.Tensor]
    route: Route
    ids: list[tf.Tensor]
    positions: list[tf.Tensor]

    def received_ids(self) -> list[tuple[Storage, tf.Tensor]]:
        """Each table with the ids received of it."""
        return list(zip(self.storages, self.ids, strict=True))

    def in_order_received(self, rows: list[tf.Tensor]) -> tf.Tensor:
        """Rows by table, in the order in which their ids came."""
        return rows[0] if len(rows) == 1 else tf.dynamic_stitch(self.positions, rows)

    def by_table(self, values: tf.Tensor) -> list[tf.Tensor]:
        """Values in the order in which their ids came, by table."""
        if len(self.storages) == 1:
            return [values]
        return [tf.gather(values, position) for position in self.positions]

    def split(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """This worker's rows by table."""
        if len(self.sizes) == 1:
            return [rows]
        return tf.split(rows, tf.stack(self.sizes), num=len(self.sizes))


@dataclasses.dataclass(frozen=True, eq=False)
class _Wave:
    """Ids of several tables on their way to the rows' owners, in one exchange.

    The tables' rows are numbered through, so that one number tells table and row.

    Attributes:
        asked: What was asked for.
        batches: It, by width and type of row.
    """

    asked: list[Pull]
    batches: list[_Batch]

    @classmethod
    def send(cls, group: Group, requests: Sequence[Pull]) -> _Wave:
        """Sends all ids to their owners."""
        kinds: dict[tuple, list[int]] = {}
        for index, request in enumerate(requests):
            spec = request.storage.spec
            kinds.setdefault((spec.row_shape, spec.dtype), []).append(index)
        order = list(itertools.chain(*kinds.values()))
        specs = [requests[i].storage.spec for i in order]
        bases = [0, *itertools.accumulate(spec.num_rows for spec in specs)]
        number = tf.int32 if bases[-1] < 2**31 else tf.int64
        keys = [
            tf.cast(requests[i].ids, number) + tf.constant(base, number)
            for i, base in zip(order, bases[:-1], strict=True)
        ]
        owners = [
            _owners(requests[i].ids, requests[i].storage.spec, group.size)
            for i in order
        ]
        route, received = Route.of(group, tf.concat(keys, 0), tf.concat(owners, 0))
        batches, done = [], 0
        for indices in kinds.values():
            last = done + len(indices)
            sizes = [tf.size(key) for key in keys[done:last]]
            way, mine = route, received
            if len(kinds) > 1:
                start = sum(tf.size(key) for key in keys[:done])
                chosen = (received >= bases[done]) & (received < bases[last])
                way = route.only((start, start + sum(sizes)), chosen)
                mine = tf.boolean_mask(received, chosen)
            ids, positions = _by_table(mine, bases[done : last + 1])
            storages = [requests[i].storage for i in indices]
            ids = [
                tf.cast(found, storage.spec.id_dtype)
                for found, storage in zip(ids, storages, strict=True)
            ]
            batches.append(_Batch(indices, storages, sizes, way, ids, positions))
            done = last
        return cls(list(requests), batches)

    def carried(self, contributions: Sequence[Push]) -> bool:
        """Whether exactly these ids of these tables were sent."""
        return len(self.asked) == len(contributions) and all(
            any(c.storage is p.storage and c.ids is p.ids for p in self.asked)
            for c in contributions
        )

    def position(self, contributions: Sequence[Push], index: int) -> int:
        """Which contribution belongs to the table at `index`."""
        storage = self.asked[index].storage
        return next(i for i, c in enumerate(contributions) if c.storage is storage)


def _owners(ids: tf.Tensor, spec: TableSpec, workers: int) -> tf.Tensor:
    partition = tf.math.floormod(ids, spec.num_partitions)
    if spec.num_partitions > workers:
        partition = tf.math.floormod(partition, workers)
    return tf.cast(partition, tf.int32)


def _by_table(
    keys: tf.Tensor, bases: Sequence[int]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Row ids by table, and where they stood among the keys."""
    count = len(bases) - 1
    everywhere = tf.range(tf.size(keys))
    if count == 1:
        return [keys - bases[0]], [everywhere]
    table = tf.searchsorted(tf.constant(bases[1:], keys.dtype), keys, side="right")
    positions = tf.dynamic_partition(everywhere, table, count)
    return [
        tf.gather(keys, position) - base
        for position, base in zip(positions, bases[:-1], strict=True)
    ], positions


