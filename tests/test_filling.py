"""New partitions get their rows in blocks, on several devices at a time."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_parallax.servers import filling
from keras_parallax.servers.home import partitioning_of
from keras_parallax.servers.in_process import InProcessHome
from keras_parallax.servers.storage import TableSpec
from tests.test_storage import spec_of

DEVICES = ("/CPU:0", "/device:CPU:0")


def numbered(spec, asked=None):
    """`(row ids) -> rows`, each of which says its own number."""

    def rows(ids):
        if asked is not None:
            asked.append(threading.get_ident())
        shape = (-1, *[1] * len(spec.row_shape))
        return tf.broadcast_to(
            tf.reshape(tf.cast(ids, spec.dtype), shape),
            tf.concat([tf.shape(ids), spec.row_shape], 0),
        )

    return rows


def assert_numbered(filled):
    for p, partition in enumerate(filled.partitions):
        found = partition.read().numpy().reshape(partition.num_rows, -1)
        expected = partitioning_of(filled.spec).rows(p, 0, partition.num_rows)
        np.testing.assert_array_equal(found.min(1), expected)
        np.testing.assert_array_equal(found.max(1), expected)


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("row_shape", [(3,), (2, 2)])
def test_blocks_of_any_size_fill_each_row_once(block, row_shape, monkeypatch):
    monkeypatch.setattr(filling, "BLOCK_ELEMENTS", block)
    spec = spec_of(23, row_shape, num_partitions=3)
    assert_numbered(InProcessHome("/CPU:0").allocate(spec, None, numbered(spec)))


@pytest.mark.parametrize(("num_rows", "traced"), [(14, False), (15, True)])
def test_what_is_one_block_is_drawn_without_tracing(num_rows, traced, monkeypatch):
    monkeypatch.setattr(filling, "BLOCK_ELEMENTS", 21)
    spec, eager = spec_of(num_rows, (3,), num_partitions=2), []

    def rows(ids):
        eager.append(tf.executing_eagerly())
        return numbered(spec)(ids)

    assert_numbered(InProcessHome("/CPU:0").allocate(spec, None, rows))
    assert (False in eager) == traced


def test_a_table_of_scalars():
    spec = spec_of(23, (), num_partitions=2)
    home = InProcessHome("/CPU:0")
    filled = home.allocate(spec, None, lambda ids: tf.cast(ids, tf.float32))
    assert_numbered(filled)


def several_devices(spec):
    home = InProcessHome("/CPU:0")
    home.devices = DEVICES
    return home.open(spec)


def test_each_device_is_filled_by_a_thread_of_its_own():
    spec = spec_of(23, (3,), num_partitions=4)
    storage, asked = several_devices(spec), []
    filling.fill_partitions(storage, range(4), None, numbered(spec, asked))
    assert_numbered(storage)
    assert threading.get_ident() not in asked


def test_what_goes_wrong_on_a_device_is_raised():
    spec = spec_of(23, (3,), num_partitions=4)

    def rows(ids):
        raise ArithmeticError("no rows")

    with pytest.raises(ArithmeticError, match="no rows"):
        filling.fill_partitions(several_devices(spec), range(4), None, rows)


def test_nothing_to_fill_is_no_work():
    spec = spec_of(2, (3,), num_partitions=2)
    filling.fill_partitions(several_devices(spec), [], None, numbered(spec))


def test_label_says_what_people_want_to_know():
    spec = TableSpec("s/1", 1 << 25, (64,), tf.float32, 8, path="words/embeddings")
    assert spec.label == "words/embeddings (33,554,432 x 64 float32, 8.0 GiB)"
    assert spec_of(10).label.endswith("(10 x 3 float32, 120 bytes)")
