"""The seam: what a home of partitions does, and nothing else of it shows.

Everything above (tables, the optimizer's update, checkpoints) is written against
these four calls, whether the rows live in this process or on servers.
"""

import abc
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_parallax.servers.storage import Partition, Storage, TableSpec
from keras_parallax.servers.partitioning import Partitioning

# Updates one partition: `(partition index, places, summed gradients) -> op`.
Update = Callable[[int, tf.Tensor, tf.Tensor], tf.Operation]


class Home(abc.ABC):
    """Where the partitions of tables live.

    Attributes:
        name: "in_process" or "dedicated".
        devices: Devices that hold partitions; partition `p` of every table
            lives on `devices[p mod len(devices)]`.
    """

    name: str
    devices: tuple[str, ...]

    @abc.abstractmethod
    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """Makes a table where it lives.

        Args:
            spec: The table's.
            constant: Initial value of all elements, or None.
            initial_rows: `(row ids) -> rows`, in the graph; None for a constant.
        """

    @abc.abstractmethod
    def push(
        self,
        storage: Storage,
        unique_ids: tf.Tensor,
        summed_gradients: tf.Tensor,
        update: Update,
    ) -> tf.Operation:
        """Updates each row once with the sum of all workers' gradients.

        Args:
            storage: The table's rows.
            unique_ids: Row ids that this worker touched, each once, `(n,)`.
            summed_gradients: Their gradients, `(n, *row_shape)`.
            update: Runs once for each partition, where its rows live.

        Returns:
            An operation that ends when the rows are updated, for every worker.
        """

    def pull(self, storage: Storage, unique_ids: tf.Tensor) -> tf.Tensor:
        """Rows of a table, in the graph: `(n,) -> (n, *row_shape)`."""
        partitioning = partitioning_of(storage.spec)
        places, positions = partitioning.split(unique_ids)
        parts = [
            partition.gather(found)
            for partition, found in zip(storage.partitions, places, strict=True)
        ]
        return partitioning.merge(parts, positions)

    def read_rows(self, storage: Storage, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop`, outside the graph, fetched in pieces."""
        spec = storage.spec
        partitioning = partitioning_of(spec)
        rows = np.empty((stop - start, *spec.row_shape), spec.dtype.as_numpy_dtype)
        for index, partition in enumerate(storage.partitions):
            places = partitioning.places(index, start, stop)
            for first, last in partition.pieces(places.start, places.stop):
                found = partitioning.rows(index, first, last)
                wanted = tf.range(first, last, dtype=tf.int64)
                rows[found.start - start : found.stop - start : found.step] = (
                    partition.gather(wanted).numpy()
                )
        return rows

    def assign_rows(self, storage: Storage, start: int, rows: np.ndarray) -> None:
        """Overwrites rows from `start` on, outside the graph, in pieces."""
        partitioning = partitioning_of(storage.spec)
        stop = start + len(rows)
        for index, partition in enumerate(storage.partitions):
            places = partitioning.places(index, start, stop)
            for first, last in partition.pieces(places.start, places.stop):
                found = partitioning.rows(index, first, last)
                piece = rows[found.start - start : found.stop - start : found.step]
                partition.scatter(tf.range(first, last, dtype=tf.int64), piece)
            partition.wait()

    def device_of(self, partition: int) -> str:
        """Device that holds partition `partition` of every table."""
        return self.devices[partition % len(self.devices)]

    def open(self, spec: TableSpec) -> Storage:
        """Opens a table's partitions by name, where they live."""
        partitioning = partitioning_of(spec)
        return Storage(
            spec,
            [
                Partition(
                    self.device_of(p),
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


def fill_partitions(
    storage: Storage,
    mine: list[int],
    constant: float | None,
    initial_rows: Callable | None,
) -> None:
    """Allocates the partitions `mine` and writes their initial rows."""
    for index in mine:
        storage.partitions[index].allocate(constant or 0.0)
    # A function may overtake an operation called before it, so each is waited for.
    for index in mine:
        storage.partitions[index].wait()
    if initial_rows is not None:
        storage.fill(mine, partitioning_of(storage.spec).rows, initial_rows)
