"""All homes of a strategy, as one: a table's traffic takes its own road.

What a step wants is sorted by road and handed to the home at the end of it. Rows
move from one home to another here, too, between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from keras_parallax.servers.home import Home, Pull, Push, partitioning_of
from keras_parallax.servers.progress_line import ProgressLine
from keras_parallax.servers.storage import Storage, TableSpec
from keras_parallax.servers.sums import JoinedSums, Sums


class Homes(Home):
    """Sends each table's traffic to the home that holds it.

    Args:
        homes: The home at the end of each road; the first is where tables live
            unless something else is said.
    """

    def __init__(self, homes: Mapping[str, Home]):
        self._homes = dict(homes)
        self._first = next(iter(self._homes))
        first = self._homes[self._first]
        self.name = first.name
        self.devices = first.devices
        self.sends_messages = first.sends_messages
        self.is_synchronous = first.is_synchronous

    @property
    def roads(self) -> tuple[str, ...]:
        """Roads that tables can take."""
        return tuple(self._homes)

    @property
    def first(self) -> Home:
        """Where tables live unless something else is said."""
        return self._homes[self._first]

    def at_end_of(self, road: str) -> Home:
        """The home at the end of a road."""
        return self._homes[road]

    def of(self, storage: Storage) -> Home:
        """The home that holds a table."""
        return self._homes[storage.road or self._first]

    def allocate(
        self,
        spec: TableSpec,
        constant: float | None,
        initial_rows: Callable | None,
        road: str = "",
    ) -> Storage:
        """See `Home.allocate`; at the end of `road`."""
        road = road or self._first
        storage = self._homes[road].allocate(spec, constant, initial_rows)
        storage.road = road
        return storage

    def pull(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        """See `Home.pull`."""
        answers: dict[int, tf.Tensor] = {}
        for home, indices in self._sorted([r.storage for r in requests]):
            found = home.pull([requests[index] for index in indices])
            answers.update(zip(indices, found, strict=True))
        return [answers[index] for index in range(len(requests))]

    def sum(self, contributions: Sequence[Push]) -> Sums:
        """See `Home.sum`."""
        sums = [
            (home.sum([contributions[index] for index in indices]), indices)
            for home, indices in self._sorted([c.storage for c in contributions])
        ]
        return JoinedSums(sums, len(contributions))

    def _sorted(self, storages: Sequence[Storage]) -> list[tuple[Home, list[int]]]:
        """Homes, and which of the storages each holds; alike on every worker."""
        sorted_: dict[Home, list[int]] = {}
        for index, storage in enumerate(storages):
            sorted_.setdefault(self.of(storage), []).append(index)
        return list(sorted_.items())

    def begin_step(self) -> tf.Operation | None:
        """See `Home.begin_step`."""
        return self.first.begin_step()

    def end_step(self, after: Sequence[tf.Operation]) -> None:
        """See `Home.end_step`."""
        self.first.end_step(after)

    def read_rows(self, storage: Storage, start: int, stop: int) -> np.ndarray:
        """See `Home.read_rows`."""
        return self.of(storage).read_rows(storage, start, stop)

    def assign_rows(self, storage: Storage, start: int, rows: np.ndarray) -> None:
        """See `Home.assign_rows`."""
        self.of(storage).assign_rows(storage, start, rows)

    def touched(self, storage: Storage) -> int | None:
        """See `Home.touched`."""
        return self.of(storage).touched(storage)

    def pushed_for_machine(self, storage: Storage) -> int | None:
        """See `Home.pushed_for_machine`."""
        return self.of(storage).pushed_for_machine(storage)

    def destroy(self, storage: Storage) -> None:
        """See `Home.destroy`."""
        self.of(storage).destroy(storage)

    def close(self) -> None:
        """See `Home.close`."""
        for home in self._homes.values():
            home.close()

    def copy(self, source: Storage, target: Storage) -> None:
        """Copies all rows into a table of the same shape, outside the graph.

        Every worker calls it, between two steps. Each writes the partitions that
        are its own, in pieces, and reads no more than it writes where it can reach
        all rows by itself.
        """
        old, new = self.of(source), self.of(target)
        spec = target.spec
        mine = [p for p in range(spec.num_partitions) if new.writes(p)]
        rows = sum(target.partitions[p].num_rows for p in mine)
        total = rows if old.reads_alone else spec.num_rows
        with ProgressLine(f"moving {spec.label}", total, 0 in mine) as line:
            if not old.reads_alone:
                for start in range(0, spec.num_rows, spec.piece_rows):
                    stop = min(start + spec.piece_rows, spec.num_rows)
                    new.assign_rows(target, start, old.read_rows(source, start, stop))
                    line.add(stop - start)
                return
            partitioning = partitioning_of(spec)
            for p in mine:
                partition = target.partitions[p]
                for first, last in partition.pieces(0, partition.num_rows):
                    ids = np.asarray(partitioning.rows(p, first, last), np.int64)
                    partition.scatter(
                        tf.range(first, last, dtype=tf.int64), _picked(source, ids)
                    )
                    # What was sent and has not arrived is held by this process.
                    partition.wait()
                    line.add(last - first)


def _picked(storage: Storage, ids: np.ndarray) -> np.ndarray:
    """Rows `ids` of a table all of whose partitions this process reaches."""
    spec = storage.spec
    rows = np.empty((len(ids), *spec.row_shape), spec.dtype.as_numpy_dtype)
    for index, partition in enumerate(storage.partitions):
        here = ids % spec.num_partitions == index
        if here.any():
            places = ids[here] // spec.num_partitions
            rows[here] = partition.gather(tf.constant(places)).numpy()
    return rows
