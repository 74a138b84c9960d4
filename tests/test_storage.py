"""Partitions: rows in memory, read and written by place, in bounded pieces."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_parallax.servers import filling, storage
from keras_parallax.servers.home import partitioning_of
from keras_parallax.servers.in_process import InProcessHome
from keras_parallax.servers.storage import Partition, TableSpec

DEVICE = "/CPU:0"

_names = itertools.count()


def spec_of(num_rows=10, row_shape=(3,), dtype=tf.float32, num_partitions=1):
    name = f"test_storage/{next(_names)}"
    return TableSpec(name, num_rows, row_shape, dtype, num_partitions)


def partition_of(spec):
    return Partition(DEVICE, spec.name, spec.num_rows, spec)


def test_sizes_in_bytes():
    spec = spec_of(num_rows=10, row_shape=(3, 2), dtype=tf.float16)
    assert spec.row_bytes == 12
    assert spec.table_bytes == 120
    assert spec_of(num_rows=10, row_shape=()).table_bytes == 40


def test_ids_are_as_narrow_as_the_table_allows():
    assert spec_of(num_rows=2**31 - 1).id_dtype == tf.int32
    assert spec_of(num_rows=2**31).id_dtype == tf.int64


@pytest.mark.parametrize(("row_bytes_of", "rows"), [((3,), 2), ((100,), 1)])
def test_pieces_are_bounded_but_never_empty(monkeypatch, row_bytes_of, rows):
    monkeypatch.setattr(storage, "PIECE_BYTES", 30)
    partition = partition_of(spec_of(row_shape=row_bytes_of))
    pieces = list(partition.pieces(3, 8))
    assert all(stop - start <= rows for start, stop in pieces)
    assert [i for piece in pieces for i in range(*piece)] == list(range(3, 8))


def test_rows_are_read_and_written_by_place():
    partition = partition_of(spec_of(num_rows=4))
    partition.allocate(0.5)
    partition.wait()
    partition.scatter(tf.constant([3, 1]), tf.constant([[1.0] * 3, [2.0] * 3]))
    expected = np.array([0.5, 2.0, 0.5, 1.0])
    np.testing.assert_array_equal(partition.read()[:, 0], expected)
    np.testing.assert_array_equal(
        partition.gather(tf.constant([1, 0, 1]))[:, 2], expected[[1, 0, 1]]
    )
    partition.assign(tf.zeros((4, 3)))
    assert not np.any(partition.read())


def test_partitions_of_one_name_are_the_same_rows():
    spec = spec_of()
    partition_of(spec).allocate(7.0)
    np.testing.assert_array_equal(partition_of(spec).read(), np.full((10, 3), 7.0))


def test_waiting_for_rows_that_nobody_made_is_an_error():
    with pytest.raises(RuntimeError, match="was not initialised"):
        partition_of(spec_of()).wait()


def test_destroyed_rows_are_gone():
    partition = partition_of(spec_of())
    partition.allocate()
    partition.destroy()
    with pytest.raises(tf.errors.OpError):
        partition.read()
    partition.destroy()


@pytest.mark.parametrize("num_partitions", [1, 3])
def test_filling_in_pieces_gives_each_row_its_own(monkeypatch, num_partitions):
    monkeypatch.setattr(storage, "PIECE_BYTES", 30)
    monkeypatch.setattr(filling, "BLOCK_ELEMENTS", 3)
    spec = spec_of(num_partitions=num_partitions)
    asked = []

    def rows(ids):
        asked.append(ids.shape)
        return tf.cast(ids, tf.float32)[:, None] + tf.constant([0.0, 0.25, 0.5])

    home = InProcessHome(DEVICE)
    filled = home.allocate(spec, None, rows)
    for p, partition in enumerate(filled.partitions):
        expected = partitioning_of(spec).rows(p, 0, partition.num_rows)
        np.testing.assert_array_equal(partition.read()[:, 1], np.add(expected, 0.25))
    # Traced with unknown length once a partition, however many pieces there are.
    assert len(asked) == num_partitions
