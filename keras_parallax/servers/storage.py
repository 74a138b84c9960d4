"""Rows in memory: one partition, and the partitions of one table together.

A partition is a TensorFlow resource variable on some device, this process's or
a server's, opened by its name: every worker that opens the same name on the
same server holds the same rows. What is here works the same for all homes.
"""

import copy
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_parallax.servers.progress_line import in_words

# Rows cross between processes outside the graph in pieces of at most this size:
# far below the 2 GiB at which a transfer fails, large enough to be quick.
PIECE_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """What a home has to know of a table.

    Attributes:
        name: Unique in the job, and the same on every worker.
        num_rows: Rows of the table.
        row_shape: Shape of one row, `()` for a table of scalars.
        dtype: Type of its elements.
        num_partitions: Number of partitions.
        first_home: Which of a home's devices holds the first partition; the others
            follow in turn.
        path: Path of the variable in the model, for messages.
    """

    name: str
    num_rows: int
    row_shape: tuple[int, ...]
    dtype: tf.DType
    num_partitions: int
    first_home: int = 0
    path: str = ""

    @property
    def label(self) -> str:
        """What people are told of the table: path, shape, type and size."""
        shape = " x ".join(f"{n:,}" for n in (self.num_rows, *self.row_shape))
        size = in_words(self.table_bytes)
        return f"{self.path or self.name} ({shape} {self.dtype.name}, {size})"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.size

    @property
    def table_bytes(self) -> int:
        """Bytes of the whole table."""
        return self.num_rows * self.row_bytes

    @property
    def id_dtype(self) -> tf.DType:
        """Narrowest type that holds every row id: ids cross the network too."""
        return tf.int32 if self.num_rows < 2**31 else tf.int64

    @property
    def piece_rows(self) -> int:
        """Rows that make up one piece."""
        return max(1, PIECE_BYTES // max(1, self.row_bytes))


class Partition:
    """Some rows of a table, where they live.

    Args:
        device: Full name of the device that holds the rows.
        name: Name of the resource on that device.
        num_rows: Rows in this partition.
        spec: The table's.
    """

    def __init__(self, device: str, name: str, num_rows: int, spec: TableSpec):
        self.device = device
        self.name = name
        self.num_rows = num_rows
        self.dtype = spec.dtype
        self.row_shape = tuple(spec.row_shape)
        self.piece_rows = spec.piece_rows
        with tf.init_scope(), tf.device(device):
            self._open()

    def _open(self) -> None:
        self._handle = tf.raw_ops.VarHandleOp(
            container="",
            shared_name=self.name,
            dtype=self.dtype,
            shape=(self.num_rows, *self.row_shape),
        )
        self._touched = tf.raw_ops.VarHandleOp(
            container="", shared_name=f"{self.name}/touched", dtype=tf.int64, shape=()
        )

    def opened(self) -> "Partition":
        """The same rows, for a function that runs where they live.

        Such a function cannot take a handle from outside: it opens its own.
        """
        twin = copy.copy(self)
        with tf.device(self.device):
            twin._open()
        return twin

    def allocate(self, value: float = 0.0) -> None:
        """Makes the rows, all elements `value`, without sending them anywhere."""
        with tf.init_scope(), tf.device(self.device):
            rows = tf.fill(
                (self.num_rows, *self.row_shape), tf.constant(value, self.dtype)
            )
            tf.raw_ops.AssignVariableOp(
                resource=self._touched, value=tf.constant(0, tf.int64)
            )
            tf.raw_ops.AssignVariableOp(resource=self._handle, value=rows)

    def gather(self, places: tf.Tensor) -> tf.Tensor:
        """Rows at `places`: `(n,) -> (n, *row_shape)`."""
        with tf.device(self.device):
            rows = tf.raw_ops.ResourceGather(
                resource=self._handle, indices=places, dtype=self.dtype
            )
        return tf.ensure_shape(rows, (places.shape[0], *self.row_shape))

    def scatter(self, places: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
        """Overwrites the rows at `places`."""
        with tf.device(self.device):
            return tf.raw_ops.ResourceScatterUpdate(
                resource=self._handle, indices=places, updates=rows
            )

    def read(self) -> tf.Tensor:
        """All rows: `(num_rows, *row_shape)`."""
        with tf.device(self.device):
            rows = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self.dtype)
        return tf.ensure_shape(rows, (self.num_rows, *self.row_shape))

    def assign(self, rows: tf.Tensor) -> tf.Operation:
        """Overwrites all rows."""
        with tf.device(self.device):
            return tf.raw_ops.AssignVariableOp(resource=self._handle, value=rows)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cuts places `start` to `stop` into pieces of bounded size."""
        for first in range(start, stop, self.piece_rows):
            yield first, min(first + self.piece_rows, stop)

    def wait(self) -> None:
        """Returns when everything asked of this partition so far has happened.

        Operations on other processes are asynchronous: the fetched value is
        what makes the wait real.
        """
        with tf.init_scope(), tf.device(self.device):
            done = tf.raw_ops.VarIsInitializedOp(resource=self._handle)
        if not bool(done):
            raise RuntimeError(f"Partition on {self.device} was not initialised.")

    def note_touched(self, count: tf.Tensor) -> tf.Operation:
        """Adds to the number of rows that updates have touched, in the graph.

        The number stays with the rows: nothing is sent.
        """
        with tf.device(self.device):
            return tf.raw_ops.AssignAddVariableOp(
                resource=self._touched, value=tf.cast(count, tf.int64)
            )

    def touched(self) -> int:
        """How many rows updates have touched since the rows were allocated."""
        with tf.init_scope():
            return int(self.read_touched())

    def read_touched(self) -> tf.Tensor:
        """The same in the graph, read where the rows live."""
        with tf.device(self.device):
            return tf.raw_ops.ReadVariableOp(resource=self._touched, dtype=tf.int64)

    def destroy(self) -> None:
        """Frees the rows."""
        with tf.init_scope(), tf.device(self.device):
            for handle in (self._handle, self._touched):
                tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


class Storage:
    """The partitions of one table.

    Attributes:
        spec: The table's.
        partitions: Its partitions, in order.
        road: Road by which its rows and gradients travel; see `homes.py`.
    """

    road: str = ""

    def __init__(self, spec: TableSpec, partitions: Sequence[Partition]):
        self.spec = spec
        self.partitions = list(partitions)
