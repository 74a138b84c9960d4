"""Ids of several tables on their way to other workers, in one exchange.

The tables' rows are numbered through, so that one number tells table and row.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_parallax.collectives.exchange import Group, Route
from keras_parallax.collectives.noted import Noted
from keras_parallax.collectives.wire import Wire
from keras_parallax.servers.home import Pull, Push
from keras_parallax.servers.storage import Storage, TableSpec

# `(row ids, spec) -> index in the group of each row's owner`, in the graph.
Owners = Callable[[tf.Tensor, TableSpec], tf.Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
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

    def reply(self, rows: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sends rows back to who asked.

        Args:
            rows: For the ids received, by table.

        Returns:
            For the ids that this worker has sent, by table.
        """
        joined = rows[0] if len(rows) == 1 else tf.dynamic_stitch(self.positions, rows)
        found = self.route.reply(joined)
        if len(self.sizes) == 1:
            return [found]
        return tf.split(found, tf.stack(self.sizes), num=len(self.sizes))

    def deliver(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sends values after the ids.

        Args:
            values: For the ids that this worker has sent, by table.

        Returns:
            For the ids received, by table.
        """
        joined = values[0] if len(values) == 1 else tf.concat(values, 0)
        received = self.route.deliver(joined)
        if len(self.storages) == 1:
            return [received]
        return [tf.gather(received, position) for position in self.positions]


@dataclasses.dataclass(frozen=True, eq=False)
class Wave:
    """One exchange of ids.

    Attributes:
        asked: What was asked for.
        batches: It, by width and type of row.
    """

    asked: list[Pull]
    batches: list[Batch]

    @classmethod
    def send(cls, group: Group, requests: Sequence[Pull], owners: Owners) -> Wave:
        """Sends all ids to their owners."""
        kinds: dict[tuple, list[int]] = {}
        for index, request in enumerate(requests):
            spec = request.storage.spec
            kinds.setdefault((spec.row_shape, spec.dtype), []).append(index)
        order = [requests[i] for i in itertools.chain(*kinds.values())]
        bases = [0, *itertools.accumulate(r.storage.spec.num_rows for r in order)]
        number = tf.int32 if bases[-1] < 2**31 else tf.int64
        keys = [
            tf.cast(request.ids, number) + tf.constant(base, number)
            for request, base in zip(order, bases[:-1], strict=True)
        ]
        to = [owners(request.ids, request.storage.spec) for request in order]
        route, received = Route.of(group, tf.concat(keys, 0), tf.concat(to, 0))
        batches, done = [], 0
        for indices in kinds.values():
            last = done + len(indices)
            sizes = [tf.size(key) for key in keys[done:last]]
            way, mine = route, received
            if len(kinds) > 1:
                start = tf.add_n([tf.constant(0), *map(tf.size, keys[:done])])
                chosen = (received >= bases[done]) & (received < bases[last])
                way = route.only((start, start + tf.add_n(sizes)), chosen)
                mine = tf.boolean_mask(received, chosen)
            ids, positions = _by_table(mine, bases[done : last + 1])
            storages = [requests[i].storage for i in indices]
            ids = [
                tf.cast(found, storage.spec.id_dtype)
                for found, storage in zip(ids, storages, strict=True)
            ]
            batches.append(Batch(indices, storages, sizes, way, ids, positions))
            done = last
        return cls(list(requests), batches)

    @functools.cached_property
    def unions(self) -> list[tuple[Storage, tf.Tensor, tf.Tensor]]:
        """Rows that the senders together want of each table: ids, each once, and
        which of them each id received is."""
        return [
            (storage, *tf.unique(ids))
            for batch in self.batches
            for storage, ids in zip(batch.storages, batch.ids, strict=True)
        ]

    def carried(self, contributions: Sequence[Push]) -> bool:
        """Whether exactly these ids of these tables were sent."""
        return len(self.asked) == len(contributions) and all(
            any(c.storage is p.storage and c.ids is p.ids for p in self.asked)
            for c in contributions
        )

    def sum(
        self, contributions: Sequence[Push], wire: Wire | None = None
    ) -> list[Push]:
        """Sends gradients after the ids, and sums by row what is received.

        Args:
            contributions: This worker's, to the tables of the wave.
            wire: The form in which gradients travel; their own if None.

        Returns:
            What all senders contribute, in the order of the contributions.
        """
        wire = wire or Wire()
        of = {push.storage: push for push in contributions}
        unions = iter(self.unions)
        sums: dict[Storage, Push] = {}
        for batch in self.batches:
            mine = [of[storage] for storage in batch.storages]
            received = batch.deliver([wire.encode(push.gradients) for push in mine])
            for push, encoded in zip(mine, received, strict=True):
                storage, ids, slots = next(unions)
                gradients = wire.decode(encoded, storage.spec.dtype)
                total = tf.math.unsorted_segment_sum(gradients, slots, tf.size(ids))
                sums[storage] = Push(storage, ids, total, push.update)
        return [sums[push.storage] for push in contributions]


class Waves:
    """The waves of a step's pulls, by whose routes its pushes can go.

    Args:
        group: Who exchanges.
        owners: Whom each row belongs to.
    """

    def __init__(self, group: Group, owners: Owners):
        self._group = group
        self._owners = owners
        self._sent: Noted[Wave] = Noted()

    def send(self, requests: Sequence[Pull]) -> Wave:
        """A wave of what is wanted; remembered while the same step is traced."""
        wave = Wave.send(self._group, requests, self._owners)
        self._sent.note(wave)
        return wave

    def of(self, contributions: Sequence[Push]) -> Wave:
        """The wave by which contributions can go: a pull's, or a new one."""
        for wave in self._sent.here():
            if wave.carried(contributions):
                return wave
        pulls = [Pull(c.storage, c.ids) for c in contributions]
        return Wave.send(self._group, pulls, self._owners)


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
