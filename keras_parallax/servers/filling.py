"""New partitions get their initial rows: where they live, in blocks, in parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from keras_parallax.servers.partitioning import Partitioning
from keras_parallax.servers.progress_line import ProgressLine
from keras_parallax.servers.storage import Partition, Storage

# Rows are drawn so many elements at a time: what is computed on the way to them
# stays in the processor's cache, and needs next to no memory.
BLOCK_ELEMENTS = 1 << 18
# Devices that one worker fills at the same time.
_MOST_THREADS = 16


def fill_partitions(
    storage: Storage,
    mine: Sequence[int],
    constant: float | None,
    initial_rows: Callable | None,
) -> None:
    """Allocates partitions and writes their initial rows.

    Args:
        storage: The table's rows.
        mine: Partitions that this worker is to fill.
        constant: Initial value of all elements, or None for zeros.
        initial_rows: `(row ids) -> rows`, of operations that run on the device of
            the partition, so no row is sent. None leaves the constant.
    """
    for index in mine:
        storage.partitions[index].allocate(constant or 0.0)
    # A function may overtake an operation called before it, so each is waited for.
    for index in mine:
        storage.partitions[index].wait()
    if initial_rows is None or not mine:
        return
    by_device: dict[str, list[int]] = {}
    for index in mine:
        by_device.setdefault(storage.partitions[index].device, []).append(index)
    rows = sum(storage.partitions[index].num_rows for index in mine)
    # Partition 0 is worker 0's in every home; the others have as much to do.
    with ProgressLine(f"initialising {storage.spec.label}", rows, 0 in mine) as line:

        def fill(indices: Sequence[int]) -> None:
            for index in indices:
                _fill(storage, index, initial_rows, line)

        if len(by_device) == 1:
            fill(mine)
            return
        # A call returns when the rows are written, so it takes a thread a device.
        with ThreadPoolExecutor(min(_MOST_THREADS, len(by_device))) as pool:
            list(pool.map(fill, by_device.values()))


def _fill(
    storage: Storage, index: int, initial_rows: Callable, line: ProgressLine
) -> None:
    spec, partition = storage.spec, storage.partitions[index]
    partitioning = Partitioning(spec.num_rows, spec.num_partitions)
    block = max(1, BLOCK_ELEMENTS // max(1, math.prod(partition.row_shape)))
    # Most of a recommender's tables are small: to trace a function for each takes
    # longer than to draw them.
    if partition.num_rows <= block:
        write = _writer(partition, initial_rows)
    else:
        write = _writer_in_blocks(partition, initial_rows, block)
    for start, stop in partition.pieces(0, partition.num_rows):
        rows = partitioning.rows(index, start, stop)
        with tf.init_scope(), tf.device(partition.device):
            numbers = (rows[0], rows.step, start, len(rows))
            write(*(tf.constant(number, tf.int64) for number in numbers))
        line.add(len(rows))
    partition.wait()


def _writer(partition: Partition, initial_rows: Callable) -> Callable:
    """Writes initial rows: `(first row, step, first place, stop, start=0)`, all int64.

    Of the rows that begin with the first and are a step apart, it writes the numbers
    `start` to `stop`.
    """

    def write(first, step, place, stop, start=0):
        numbers = tf.range(tf.cast(start, tf.int64), stop)
        rows = initial_rows(first + step * numbers)
        return partition.scatter(place + numbers, rows)

    return write


def _writer_in_blocks(
    partition: Partition, initial_rows: Callable, block: int
) -> Callable:
    """Does the same from the first number on, so many rows at a time.

    One for each partition, for a function is traced once for arguments of its types.
    """
    write = _writer(partition, initial_rows)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((), tf.int64)] * 4)
    def write_all(first, step, place, count):
        def body(done):
            stop = tf.minimum(done + block, count)
            with tf.control_dependencies([write(first, step, place, stop, done)]):
                return (done + block,)

        with tf.device(partition.device):
            tf.while_loop(
                lambda done: done < count,
                body,
                (tf.constant(0, tf.int64),),
                parallel_iterations=1,
            )

    return write_all.get_concrete_function()
