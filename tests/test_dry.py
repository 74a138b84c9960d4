"""The home that holds nothing."""

import numpy as np
import pytest
import tensorflow as tf

from keras_parallax.servers.dry import DryHome
from keras_parallax.servers.home import Pull, Push
from keras_parallax.servers.storage import TableSpec

SPEC = TableSpec("t", 10**12, (4,), tf.float32, 1, path="model/table")


@pytest.fixture
def home():
    return DryHome()


def test_a_table_of_any_size_takes_no_memory(home):
    storage = home.allocate(SPEC, None, lambda ids: pytest.fail("rows were made"))
    assert storage.partitions == []
    home.assign_rows(storage, 0, np.ones((2, 4)))
    assert (home.read_rows(storage, 0, 2) == np.zeros((2, 4))).all()
    home.destroy(storage)


def test_lookups_get_zeros_and_pushes_are_noted(home):
    storage = home.allocate(SPEC, 0.0, None)

    @tf.function
    def step(ids):
        (rows,) = home.pull([Pull(storage, ids)])
        with tf.control_dependencies(
            [home.push([Push(storage, ids, rows + 1, lambda *_: pytest.fail("run"))])]
        ):
            return tf.identity(rows)

    ids = tf.constant([3, 10**11], tf.int64)
    assert (step(ids).numpy() == np.zeros((2, 4))).all()
    step(ids[:1])
    noted = home.pushed["model/table"]
    assert [found.tolist() for found in noted] == [[3, 10**11], [3]]


def test_nobody_asks_it_for_free_memory(home):
    assert not any("CPU" in device for device in home.devices)
