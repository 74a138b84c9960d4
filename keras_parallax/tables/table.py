"""What Keras holds in place of a variable whose rows live in partitions.

A `Table` quacks like a `tf.Variable` where Keras and its optimizers touch one, but
never turns into a whole tensor by accident:

- Looking up rows pulls those rows alone (`lookup.py`).
- While the optimizer's update runs on some rows, the table *views* those rows: it
  converts to them, and an assignment replaces them (`update.py`).
- A table whose gradient turns out to be dense is replicated: from then on it is a
  plain variable on every worker, and its gradient is all-reduced.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from keras_parallax import errors
from keras_parallax.collectives.noted import Noted
from keras_parallax.plan.shared_time import Phases
from keras_parallax.plan.sparsity import Counted
from keras_parallax.servers.home import Home, Pull
from keras_parallax.servers.storage import Storage
from keras_parallax.tables.traffic import StepTraffic


class Table(tf.__internal__.tracking.Trackable):
    """A variable in partitions.

    Args:
        path: Path of the Keras variable.
        name: Its name.
        storage: Where the rows live.
        home: Who keeps them.
        traffic: Collects what a step wants of tables.
        plain_variable: `(value, trainable) -> tf.Variable`, on this worker.
        strategy: The strategy that made the table.
        owner: The table whose slot this is, if it is one.
        barrier: Returns when all workers have called it.
        is_whole: Whether it has a single row, which is a whole dense variable.
    """

    def __init__(
        self,
        *,
        path: str,
        name: str,
        storage: Storage,
        home: Home,
        traffic: StepTraffic,
        plain_variable: Callable[[np.ndarray, bool], tf.Variable],
        strategy: tf.distribute.Strategy,
        owner: Table | None,
        barrier: Callable[[], None],
        is_whole: bool = False,
    ):
        spec = storage.spec
        self.path = path
        self.storage = storage
        self._home = home
        self.traffic = traffic
        # Lookups take this scalar as an argument, so that the gradient tape, which
        # knows variables by their handles, delivers the gradient for it.
        self.anchor = plain_variable(np.zeros((), spec.dtype.as_numpy_dtype), True)
        # Of this worker: distinct rows pulled, rows pushed, their squares, pushes, and
        # ids looked up, each as often as it was.
        self._counts = plain_variable(np.zeros(5, np.int64), False)
        # Whether a dense gradient means the same to its update.
        self.dense_means_same = True
        self.slots: list[Table] = []
        self.owner = owner
        self.replica: tf.Variable | None = None
        self.gradients_seen: set[str] = set()
        self._name = name
        # Whether its single row is a whole variable; see `server_variable.py`.
        self.is_whole = is_whole
        rows = () if is_whole else (spec.num_rows,)
        self._shape = tf.TensorShape((*rows, *spec.row_shape))
        self._view: tf.Tensor | None = None
        self.plain_variable = plain_variable
        self._barrier = barrier
        self._looked_up: Noted[tf.Tensor] = Noted()
        # Read by Keras's optimizers and by tf.distribute.
        self._unique_id = f"{spec.name}"
        self._distribute_strategy = strategy
        if owner is not None:
            owner.slots.append(self)

    # What a variable tells of itself.

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of the whole table."""
        return self._shape

    @property
    def dtype(self) -> tf.DType:
        """Type of its elements."""
        return self.storage.spec.dtype

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def trainable(self) -> bool:
        """Whether it is trained; slots are not."""
        return self.owner is None

    @property
    def handle(self) -> tf.Tensor:
        """What the gradient tape knows the variable by."""
        return self._stand_in.handle

    @property
    def device(self) -> str:
        """Device of what stands for the table in this process."""
        return self._stand_in.device

    @property
    def home(self) -> Home:
        """Who keeps its rows."""
        return self._home.of(self.storage)

    @property
    def _stand_in(self) -> tf.Variable:
        return self.anchor if self.replica is None else self.replica

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self.storage.spec.num_rows

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.storage.spec.row_shape

    def __repr__(self) -> str:
        where = "replicated" if self.replica is not None else self.home.name
        return (
            f"<Table {self.path} shape={self._shape} dtype={self.dtype.name} "
            f"partitions={self.storage.spec.num_partitions} home={where}>"
        )

    def count_pulled(self, rows: tf.Tensor, ids: tf.Tensor) -> None:
        """Adds distinct rows that this worker has pulled, in the graph.

        Args:
            rows: How many rows.
            ids: How many ids they were pulled for.
        """
        self._count(rows, 0, 0, 0, ids)

    def count_push(self, rows: tf.Tensor) -> None:
        """Adds one push of so many distinct rows."""
        rows = tf.cast(rows, tf.int64)
        self._count(0, rows, rows * rows, 1, 0)

    def _count(self, *numbers) -> None:
        self._counts.assign_add(tf.stack([tf.cast(n, tf.int64) for n in numbers]))

    def counted(self) -> tuple[int, int, int]:
        """Distinct rows pulled, rows pushed, and pushes of this worker."""
        pulled, pushed, _, pushes, _ = self._counts.numpy().tolist()
        return pulled, pushed, pushes

    @property
    def requested_ids(self) -> int:
        """Ids that this worker has looked up, each as often as it was."""
        return int(self._counts.numpy()[-1])

    def moved_bytes(self, steps: float = 1) -> Phases:
        """Bytes of rows, ids and gradients that this worker has moved in a step, on
        average since the start.

        Args:
            steps: Steps taken, for a table to which nothing was pushed.
        """
        pulled, pushed, pushes = self.counted()
        steps = max(1, pushes or steps)
        spec = self.storage.spec
        if self.is_whole:
            pulled = pushed  # Its pulls are not counted: one comes before each push.
        return Phases(
            pull=pulled * (spec.id_dtype.size + spec.row_bytes) / steps,
            push=pushed * spec.row_bytes / steps,
        )

    def use(self, exactly: bool) -> Counted:
        """What this worker has counted of the table's use.

        Args:
            exactly: Also ask where the rows live.
        """
        _, pushed, squares, pushes, _ = self._counts.numpy().tolist()
        home = self.home
        return Counted(
            pushes=pushes,
            pushed_rows=pushed,
            squared_rows=squares,
            machine_rows=home.pushed_for_machine(self.storage),
            owned_rows=home.touched(self.storage) if exactly else None,
        )

    # The view: some rows, while the optimizer's update runs on them.

    @contextlib.contextmanager
    def viewing(self, rows: tf.Tensor) -> Iterator[None]:
        """Stands for `rows` within the block."""
        if self._view is not None:
            raise errors.TableError(
                f"An update of {self.path} was begun within another.", table=self.path
            )
        self._view = rows
        try:
            yield
        finally:
            self._view = None

    @property
    def view(self) -> tf.Tensor | None:
        """The rows it stands for now, if it does."""
        return self._view

    # Whole values: for the user who asks, and never in a training step.

    def read_value(self) -> tf.Tensor:
        """The whole value as a tensor (the viewed rows, within an update)."""
        if self._view is not None:
            return self._view
        if self.replica is not None:
            return self.replica.read_value()
        if tf.executing_eagerly() and not _on_a_tape():
            return tf.constant(self.numpy())
        return self._dense_read()

    value = read_value

    def numpy(self) -> np.ndarray:
        """The whole value as an array, fetched in pieces."""
        if self.replica is not None:
            return self.replica.numpy()
        rows = self.home.read_rows(self.storage, 0, self.num_rows)
        return rows[0] if self.is_whole else rows

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype=dtype)

    def assign(self, value, use_locking=False, name=None, read_value=True):
        """Overwrites the whole value (the viewed rows, within an update)."""
        del use_locking, name, read_value
        if self._view is not None:
            self._view = tf.convert_to_tensor(value, self.dtype)
        elif self.replica is not None:
            self.replica.assign(value)
        elif tf.executing_eagerly():
            rows = np.asarray(value)
            # Another worker may still be reading what is about to be overwritten.
            self._barrier()
            self.home.assign_rows(
                self.storage, 0, rows[None] if self.is_whole else rows
            )
            self._barrier()
        else:
            self._assign_in_graph(tf.convert_to_tensor(value, self.dtype))
        return self

    def assign_add(self, delta, use_locking=False, name=None, read_value=True):
        """Adds to the whole value (to the viewed rows, within an update)."""
        return self.assign(self.read_value() + delta)

    def assign_sub(self, delta, use_locking=False, name=None, read_value=True):
        """Subtracts from the whole value (the viewed rows, within an update)."""
        return self.assign(self.read_value() - delta)

    def _assign_in_graph(self, value: tf.Tensor) -> None:
        if self.home.name not in ("in_process", "workers"):
            raise errors.TableError(
                f"{self.path} lives in {self.storage.spec.num_partitions} partitions "
                "on servers and was assigned as a whole inside a training step; no "
                "worker may hold it whole. Constraints and `use_ema=True` do so: "
                "remove them for this variable, or send it by the dense road with "
                f"`routes={{'{self.path}': 'allreduce'}}`.",
                table=self.path,
            )
        count = len(self.storage.partitions)
        for index, partition in enumerate(self.storage.partitions):
            partition.assign(value[index::count])

    def _dense_read(self) -> tf.Tensor:
        """The whole value, in a graph or on a tape; notes a dense gradient."""

        @tf.custom_gradient
        def read(anchor):
            ids = tf.range(self.num_rows, dtype=self.storage.spec.id_dtype)
            rows = self.traffic.pull(Pull(self.storage, ids))

            def gradient(upstream):
                self.gradients_seen.add("dense")
                return upstream

            return tf.ensure_shape(rows, self._shape), gradient

        return read(self.anchor)

    def __tf_tensor__(self, dtype=None, name=None) -> tf.Tensor:
        # A conversion that nobody asked for must not pull a table: it raises, and
        # the dispatcher answers for the operation that wanted it.
        if self._view is None and self.replica is None:
            raise WholeTableError(self)
        value = self.read_value()
        return value if dtype is None else tf.cast(value, dtype)

    def looking_up(self, unique_ids: tf.Tensor) -> None:
        """Notes a tensor of ids each of which stands in it once."""
        self._looked_up.note(unique_ids)

    def looked_up(self, ids: tf.Tensor) -> bool:
        """Whether `ids` are those of one lookup, so that each stands there once."""
        return any(ids is known for known in self._looked_up.here())

    def replicate(self) -> None:
        """Becomes a plain variable on every worker; frees the partitions."""
        with tf.init_scope():
            value = self.numpy()
            # Nobody frees the rows before everybody has read them.
            self._barrier()
            self.replica = self.plain_variable(value, self.trainable)
        self.home.destroy(self.storage)


class WholeTableError(TypeError):
    """A table was converted to a tensor by an operation that wants it whole."""

    def __init__(self, table: Table):
        super().__init__(f"{table!r} does not convert to a tensor by itself.")
        self.table = table


def _on_a_tape() -> bool:
    return record.could_possibly_record()


def _add_operators() -> None:
    """Arithmetic on a table is arithmetic on its value, as for a variable."""
    reflected = "add sub mul truediv floordiv mod pow matmul".split()
    for name in [*reflected, "neg", "abs", "lt", "le", "gt", "ge"]:
        function = getattr(operator, name)

        def forward(self, *others, _function=function):
            return _function(self.read_value(), *others)

        def backward(self, other, _function=function):
            return _function(other, self.read_value())

        setattr(Table, f"__{name}__", forward)
        if name in reflected:
            setattr(Table, f"__r{name}__", backward)
    Table.__getitem__ = lambda self, index: self.read_value()[index]


_add_operators()
