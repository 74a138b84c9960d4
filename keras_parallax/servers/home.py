"""The seam: what a home of partitions does, and nothing else of it shows.

Everything above (tables, the optimizer's update, checkpoints) is written against
these calls, wherever the rows live. `pull`, `sum` and `push` take what a step wants of
all tables at once, so that it can travel together: a recommender has a hundred
tables, and a message each would cost more than what is in it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_parallax.servers.filling import fill_partitions as fill_partitions
from keras_parallax.servers.mapped_files import release_pages
from keras_parallax.servers.partitioning import Partitioning
from keras_parallax.servers.progress_line import ProgressLine
from keras_parallax.servers.requests import Pull as Pull
from keras_parallax.servers.requests import Push as Push
from keras_parallax.servers.requests import Update as Update
from keras_parallax.servers.storage import Partition, Storage, TableSpec
from keras_parallax.servers.sums import Sums


class Home(abc.ABC):
    """Where the partitions of tables live.

    Attributes:
        name: "in_process", "dedicated", "peers" or "workers".
        devices: Devices that hold partitions; see `server_of`.
        sends_messages: Whether it saves anything to ask for more at once.
        is_synchronous: Whether a push is the sum of all workers' contributions.
        reads_alone: Whether one worker can read all rows without the others.
        speaks_with: Devices of the server processes that this worker itself sends
            messages to in a training step.
    """

    name: str
    devices: tuple[str, ...]
    sends_messages = True
    is_synchronous = True
    reads_alone = True
    speaks_with: tuple[str, ...] = ()

    @abc.abstractmethod
    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """Makes a table where it lives.

        Args:
            spec: The table's.
            constant: Initial value of all elements, or None.
            initial_rows: `(row ids) -> rows`, of operations; None for a constant.
        """

    def of(self, storage: Storage) -> Home:
        """The home that holds a table: this one, or one that it stands for."""
        del storage
        return self

    @abc.abstractmethod
    def pull(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        """Rows of tables, in the graph: `(n, *row_shape)` for each request."""

    @abc.abstractmethod
    def sum(self, contributions: Sequence[Push]) -> Sums:
        """Sums all workers' gradients by row, where the rows live; the first half
        of a push. Where a push is not the sum of all, this worker's."""

    def push(self, contributions: Sequence[Push]) -> tf.Operation:
        """Updates each row once, with the sum of all workers' gradients.

        Returns:
            See `Sums.update`.
        """
        return self.sum(contributions).update()

    def begin_step(self) -> tf.Operation | None:
        """Called, in the graph, before a training step's first pull; the pulls wait
        for what it returns."""
        return None

    def end_step(self, after: Sequence[tf.Operation]) -> None:  # noqa: B027
        """Called, in the graph, after a training step's last push."""

    def read_rows(self, storage: Storage, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop`, outside the graph, fetched in pieces."""
        spec = storage.spec
        partitioning = partitioning_of(spec)
        rows = np.empty((stop - start, *spec.row_shape), spec.dtype.as_numpy_dtype)
        for index, partition in enumerate(storage.partitions):
            places = partitioning.places(index, start, stop)
            for first, last in partition.pieces(places.start, places.stop):
                found = partitioning.rows(index, first, last)
                rows[found.start - start : found.stop - start : found.step] = (
                    self._read_piece(index, partition, first, last)
                )
        return rows

    def assign_rows(self, storage: Storage, start: int, rows: np.ndarray) -> None:
        """Overwrites rows from `start` on, outside the graph, in pieces.

        Every worker calls it, with the same rows. Rows in a file that is mapped into
        memory are read once, from the beginning to the end, and never held all.
        """
        spec = storage.spec
        partitioning = partitioning_of(spec)
        dtype = spec.dtype.as_numpy_dtype
        stop = start + len(rows)
        mine = [p for p in range(spec.num_partitions) if self.writes(p)]
        with ProgressLine(f"writing {spec.label}", len(rows), 0 in mine) as line:
            # A piece is copied a few times on its way: cut, packed, written out.
            step = max(1, spec.piece_rows // 4)
            for first in range(start, stop, step):
                last = min(first + step, stop)
                for index in mine:
                    places = partitioning.places(index, first, last)
                    if not places:
                        continue
                    found = partitioning.rows(index, places.start, places.stop)
                    piece = rows[found.start - start : found.stop - start : found.step]
                    storage.partitions[index].scatter(
                        tf.range(places.start, places.stop, dtype=tf.int64),
                        np.ascontiguousarray(piece, dtype),
                    )
                # What was sent and has not arrived is held by this process.
                for index in mine:
                    storage.partitions[index].wait()
                release_pages(rows)
                line.add(last - first)

    def _read_piece(
        self, index: int, partition: Partition, first: int, last: int
    ) -> np.ndarray:
        """Places `first` to `last` of partition `index`."""
        del index
        return partition.gather(tf.range(first, last, dtype=tf.int64)).numpy()

    def writes(self, partition: int) -> bool:
        """Whether it is this worker that writes to `partition` outside the graph."""
        del partition
        return True

    def touched(self, storage: Storage) -> int | None:
        """How many rows updates have touched, in the partitions that this worker
        answers for: each step counts a row once, for all workers. None where nobody
        can tell."""
        return sum(
            partition.touched()
            for index, partition in enumerate(storage.partitions)
            if self.writes(index)
        )

    def pushed_for_machine(self, storage: Storage) -> int | None:
        """How many rows this worker has pushed for all workers of its machine; None
        where these do not act as one."""
        del storage
        return None

    def destroy(self, storage: Storage) -> None:
        """Frees a table's rows; every worker calls it."""
        for index, partition in enumerate(storage.partitions):
            if self.writes(index):
                partition.destroy()

    def server_of(self, partition: int, spec: TableSpec) -> int:
        """Index among `devices` of the one that holds a partition of a table."""
        return (partition + spec.first_home) % len(self.devices)

    def open(self, spec: TableSpec) -> Storage:
        """Opens a table's partitions by name, where they live."""
        partitioning = partitioning_of(spec)
        return Storage(
            spec,
            [
                Partition(
                    self.devices[self.server_of(p, spec)],
                    f"keras_parallax/{spec.name}/{p}",
                    partitioning.size(p),
                    spec,
                )
                for p in range(spec.num_partitions)
            ],
        )

    def close(self) -> None:  # noqa: B027 (a home may have nothing to close)
        """Gives back what the home holds beyond its tables."""


def partitioning_of(spec: TableSpec) -> Partitioning:
    """The partition arithmetic of a table."""
    return Partitioning(spec.num_rows, spec.num_partitions)


def sum_by_row(places: tf.Tensor, gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Places, each once, with the sums of their gradients."""
    unique, slots = tf.unique(places)
    summed = tf.math.unsorted_segment_sum(gradients, slots, tf.size(unique))
    return unique, summed


def no_rows(ids: tf.Tensor, spec: TableSpec) -> tf.Tensor:
    """Rows for ids of which there are none, `(0, *row_shape)`.

    Their number has to be taken from the ids. `dynamic_stitch` says that rows and
    positions agree in number, and to TensorFlow's optimizer the outputs of
    `dynamic_partition` are all of one size, whatever it is: where one is visibly 0,
    it takes the sizes of all the others for 0, too.
    """
    return tf.zeros((tf.size(ids), *spec.row_shape), spec.dtype)
