"""What every home of partitions must do, wherever it keeps them.

Each function whose name begins with `check_` is one clause, run by every worker of
a job at once. What all workers contribute follows from their ranks, so each of
them knows what is to come out.
"""

import contextlib
import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.servers import storage
from keras_parallax.servers.home import Home, Pull, Push
from keras_parallax.servers.storage import TableSpec

ROWS = 23
SHAPES = [((), 1), ((3,), 3), ((2, 3), 7), ((3,), ROWS)]

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Seat:
    """A worker's seat at a home.

    Attributes:
        home: The home.
        job: The worker's place in the job.
    """

    home: Home
    job: Job

    def table(self, row_shape, num_partitions, value=None, dtype=tf.float32):
        """A table of `ROWS` rows: constant, or each row its own."""
        name = f"contract/{next(_numbers)}"
        spec = TableSpec(name, ROWS, row_shape, dtype, num_partitions)
        return self.home.allocate(
            spec, value, None if value is not None else rows_of(spec)
        )

    @contextlib.contextmanager
    def step(self):
        """Within the block, the graph of a training step is traced."""
        begun = self.home.begin_step()
        with tf.control_dependencies([] if begun is None else [begun]):
            yield
        self.home.end_step([])

    def read(self, table):
        """All rows, after every worker is done with the step and before the next."""
        self.job.barrier()
        rows = self.home.read_rows(table, 0, ROWS)
        self.job.barrier()
        return rows

    def contribution(self, rank, row_shape):
        """Ids and gradients of worker `rank`: some rows shared, some its own."""
        ids = np.array([20, 0, 7, 1 + rank, 10 + rank])
        gradients = np.arange(ids.size * np.prod(row_shape, dtype=int), dtype="float32")
        return ids, (1 + rank) * (1 + gradients.reshape(-1, *row_shape))

    def summed(self, row_shape, ranks=None):
        """What all workers contribute, summed by row."""
        total = np.zeros((ROWS, *row_shape), "float32")
        for rank in range(self.job.size) if ranks is None else ranks:
            np.add.at(total, *self.contribution(rank, row_shape))
        return total


def rows_of(spec):
    """Initial rows in which each element is its own number."""
    width = int(np.prod(spec.row_shape, dtype=int))

    def rows(ids):
        columns = tf.range(width, dtype=tf.int64)
        numbers = tf.cast(ids, tf.int64)[:, None] * width + columns
        return tf.cast(tf.reshape(numbers, (-1, *spec.row_shape)), spec.dtype)

    return rows


def numbered(row_shape):
    """The whole table that `rows_of` begins with."""
    count = ROWS * int(np.prod(row_shape, dtype=int))
    return np.arange(count, dtype="float32").reshape(ROWS, *row_shape)


def doubling(table, exact=False):
    """An update that shows how often it was run: `2 * row + gradient`."""

    def update(p, places, gradients):
        partition = table.partitions[p]
        if not exact:
            return partition.scatter(places, 2.0 * partition.gather(places) + gradients)
        shape = tf.constant((partition.num_rows, *table.spec.row_shape), places.dtype)
        summed = tf.scatter_nd(places[:, None], gradients, shape)
        return partition.assign(2.0 * partition.read() + summed)

    return update


def contributions(seat, tables):
    """What this worker contributes to tables, as pushes; in the graph."""
    pushes = []
    for table in tables:
        ids, gradients = seat.contribution(seat.job.rank, table.spec.row_shape)
        ids = tf.constant(ids, table.spec.id_dtype)
        pushes.append(Push(table, ids, tf.constant(gradients), doubling(table)))
    return pushes


def push(seat, table, update, ids, gradients):
    """Pushes in a graph, as a training step does."""
    ids = tf.constant(ids, table.spec.id_dtype)
    gradients = tf.constant(gradients)

    @tf.function(autograph=False)
    def step():
        with seat.step():
            pushed = seat.home.push([Push(table, ids, gradients, update)])
        with tf.control_dependencies([pushed]):
            return tf.constant(0)

    step().numpy()


def check_constant_rows(seat):
    """A table that begins with one value has it everywhere."""
    for row_shape, count in SHAPES:
        found = seat.read(seat.table(row_shape, count, 0.25))
        np.testing.assert_array_equal(found, np.full((ROWS, *row_shape), 0.25))


def check_initial_rows(seat):
    """A row is what the initial rows say of its id, whatever the partition."""
    for row_shape, count in SHAPES:
        found = seat.read(seat.table(row_shape, count))
        np.testing.assert_array_equal(found, numbered(row_shape))


def check_pull(seat):
    """Rows come in the order of their ids; several tables are pulled at once."""
    shapes = SHAPES[:3]
    tables = [seat.table(row_shape, count) for row_shape, count in shapes]
    wanted = [[22, 0, 5, 4 + seat.job.rank], [], [1, 21, 3]]

    @tf.function(autograph=False)
    def step(*ids):
        pulls = [Pull(table, i) for table, i in zip(tables, ids, strict=True)]
        with seat.step():
            inside = seat.home.pull(pulls)
        return inside, seat.home.pull(pulls)

    for found in step(*(tf.constant(i, tf.int32) for i in wanted)):
        for rows, ids, (row_shape, _) in zip(found, wanted, shapes, strict=True):
            assert rows.shape == (len(ids), *row_shape)
            expected = numbered(row_shape)[np.array(ids, int)]
            np.testing.assert_array_equal(rows, expected)


def check_push_updates_each_row_once_with_the_sum(seat):
    """Rows touched by several workers are updated once; others stay."""
    for row_shape, count in SHAPES:
        table = seat.table(row_shape, count)
        push(seat, table, doubling(table), *seat.contribution(seat.job.rank, row_shape))
        total = seat.summed(row_shape)
        touched = total != 0
        expected = np.where(
            touched, 2 * numbered(row_shape) + total, numbered(row_shape)
        )
        np.testing.assert_allclose(seat.read(table), expected, rtol=1e-6)


def check_exact_update_reaches_every_row_once(seat):
    """The update is run once a partition, even where no worker has a gradient."""
    for row_shape, count in SHAPES:
        table = seat.table(row_shape, count)
        update = doubling(table, exact=True)
        push(seat, table, update, *seat.contribution(seat.job.rank, row_shape))
        expected = 2 * numbered(row_shape) + seat.summed(row_shape)
        np.testing.assert_allclose(seat.read(table), expected, rtol=1e-6)


def check_a_worker_may_have_nothing_to_push(seat):
    """Worker 0 alone has gradients; then nobody has."""
    table = seat.table((3,), 3)
    ids, gradients = seat.contribution(0, (3,))
    kept = len(ids) if seat.job.rank == 0 else 0
    push(seat, table, doubling(table), ids[:kept], gradients[:kept])
    total = seat.summed((3,), ranks=[0])
    expected = np.where(total != 0, 2 * numbered((3,)) + total, numbered((3,)))
    np.testing.assert_allclose(seat.read(table), expected, rtol=1e-6)
    push(seat, table, doubling(table), ids[:0], gradients[:0])
    np.testing.assert_allclose(seat.read(table), expected, rtol=1e-6)


def check_several_tables_are_pushed_at_once(seat):
    """Each table gets its own gradients."""
    tables = [seat.table(row_shape, count) for row_shape, count in SHAPES[:3]]

    @tf.function(autograph=False)
    def step():
        pushes = contributions(seat, tables)
        with seat.step():
            pushed = seat.home.push(pushes)
        with tf.control_dependencies([pushed]):
            return tf.constant(0)

    step().numpy()
    for table in tables:
        shape = table.spec.row_shape
        total = seat.summed(shape)
        expected = np.where(total != 0, 2 * numbered(shape) + total, numbered(shape))
        np.testing.assert_allclose(seat.read(table), expected, rtol=1e-6)


def check_sums_are_known_before_rows_are_updated(seat):
    """Sums can be multiplied by what follows from the squares of all of them."""
    tables = [seat.table(row_shape, count) for row_shape, count in SHAPES[:3]]
    shapes = [row_shape for row_shape, _ in SHAPES[:3]]

    @tf.function(autograph=False)
    def step():
        pushes = contributions(seat, tables)
        with seat.step():
            sums = seat.home.sum(pushes)
            squares = sums.squares()
            pushed = sums.update(tf.constant([0.5, 1.0, 2.0], tf.float64) / squares)
        with tf.control_dependencies([pushed]):
            return tf.identity(squares)

    squares = step().numpy()
    totals = [seat.summed(shape).astype("float64") for shape in shapes]
    expected = [np.square(total).sum() for total in totals]
    np.testing.assert_allclose(squares, expected, rtol=1e-6)
    for table, shape, total, factor in zip(
        tables, shapes, totals, [0.5, 1.0, 2.0] / squares, strict=True
    ):
        old = numbered(shape)
        wanted = np.where(total != 0, 2 * old + factor * total, old)
        np.testing.assert_allclose(seat.read(table), wanted, rtol=1e-6)


def check_tables_alike_of_which_a_worker_may_hold_nothing(seat):
    """Rows and sums are right although some are asked of whoever has none."""
    tables = [seat.table((3,), count) for count in (1, 1, 2)]
    ids, gradients = seat.contribution(seat.job.rank, (3,))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None,), tf.int32)])
    def step(wanted):
        mine = [tf.unique(wanted + shift)[0] for shift in range(len(tables))]
        pushes = []
        with seat.step():
            rows = seat.home.pull(
                [Pull(*pair) for pair in zip(tables, mine, strict=True)]
            )
            for table in tables:
                given = tf.constant(ids, table.spec.id_dtype), tf.constant(gradients)
                with tf.control_dependencies(rows):
                    given = [tf.identity(tensor) for tensor in given]
                pushes.append(Push(table, *given, doubling(table)))
            pushed = seat.home.push(pushes)
        with tf.control_dependencies([pushed]):
            return [tf.identity(found) for found in rows]

    wanted = np.array([5, 2, 5, 11 + seat.job.rank, 2])
    found = step(tf.constant(wanted, tf.int32))
    distinct = wanted[[0, 1, 3]]
    total = seat.summed((3,))
    expected = np.where(total != 0, 2 * numbered((3,)) + total, numbered((3,)))
    for shift, (table, rows) in enumerate(zip(tables, found, strict=True)):
        np.testing.assert_array_equal(rows, numbered((3,))[distinct + shift])
        np.testing.assert_allclose(seat.read(table), expected, rtol=1e-6)


def check_a_pull_after_a_push_gets_the_new_rows(seat):
    """No worker's next step overtakes another's: all see the same rows each step."""
    table = seat.table((3,), 7, 1.0)
    everything = tf.range(ROWS, dtype=table.spec.id_dtype)
    ids, gradients = seat.contribution(seat.job.rank, (3,))

    @tf.function(autograph=False)
    def step():
        with seat.step():
            (before,) = seat.home.pull([Pull(table, everything)])
            with tf.control_dependencies([before]):
                mine = tf.constant(ids, table.spec.id_dtype)
                push = Push(table, mine, tf.constant(gradients), doubling(table))
                pushed = seat.home.push([push])
        with tf.control_dependencies([pushed]):
            (after,) = seat.home.pull([Pull(table, everything)])
            return before, tf.identity(after)

    total = seat.summed((3,))
    expected = np.ones((ROWS, 3), "float32")
    for _ in range(6):
        before, after = step()
        np.testing.assert_allclose(before, expected, rtol=1e-6)
        expected = np.where(total != 0, 2 * expected + total, expected)
        if seat.job.size == 1:
            # Another worker may be a step further by now.
            np.testing.assert_allclose(after, expected, rtol=1e-6)
        assert np.all(after >= expected - 1e-3)
        seat.job.barrier()


def check_rows_are_read_and_assigned_in_ranges(seat):
    """Any range of rows, in pieces far smaller than the range."""
    before, storage.PIECE_BYTES = storage.PIECE_BYTES, 40
    try:
        for row_shape, count in SHAPES:
            table = seat.table(row_shape, count)
            expected = numbered(row_shape)
            for start, stop in ((0, ROWS), (3, 4), (5, 18), (22, 23), (9, 9)):
                seat.job.barrier()
                found = seat.home.read_rows(table, start, stop)
                np.testing.assert_array_equal(found, expected[start:stop])
                seat.job.barrier()
                rows = -1 - expected[start:stop] - start
                seat.home.assign_rows(table, start, rows)
                expected[start:stop] = rows
                np.testing.assert_array_equal(seat.read(table), expected)
    finally:
        storage.PIECE_BYTES = before


def check_types_of_elements(seat):
    """Rows of every floating type."""
    for dtype in (tf.float64, tf.float16, tf.bfloat16):
        table = seat.table((3,), 3, dtype=dtype)
        (found,) = seat.home.pull([Pull(table, tf.constant([22, 4]))])
        assert found.dtype == dtype
        np.testing.assert_array_equal(
            tf.cast(found, tf.float32), numbered((3,))[[22, 4]]
        )


def check_destroyed_tables_are_gone_and_others_are_not(seat):
    """Freeing one table leaves the rest."""
    table, other = seat.table((3,), 3), seat.table((3,), 3)
    seat.job.barrier()
    seat.home.destroy(table)
    seat.job.barrier()
    for partition in table.partitions:
        try:
            partition.wait()
        except (RuntimeError, tf.errors.OpError):
            continue
        raise AssertionError(f"Partition on {partition.device} is still there.")
    np.testing.assert_array_equal(seat.read(other), numbered((3,)))


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
