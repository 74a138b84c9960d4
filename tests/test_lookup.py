"""Looking rows up: as from a plain variable, and a gradient of unique rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_parallax import errors
from tests.twins import parallax

ROWS = 11


class Lookup(keras.layers.Layer):
    """A layer with one weight, which is a table."""

    def __init__(self, row_shape, dtype="float32"):
        super().__init__(dtype=dtype)
        value = np.random.default_rng(0).normal(size=(ROWS, *row_shape))
        self.table = self.add_weight(
            shape=value.shape,
            name="table",
            initializer=lambda shape, dtype: tf.constant(value, dtype),
        )
        self.expected = value.astype(dtype)


@pytest.fixture(scope="module")
def strategy():
    return parallax(routes={"*table": "servers"}, partitions=3)


@pytest.fixture(params=[(), (3,), (2, 3)], ids=str)
def layer(request, strategy):
    with strategy.scope():
        return Lookup(request.param)


IDS = [
    pytest.param(5, id="scalar"),
    pytest.param([1, 0, 10], id="vector"),
    pytest.param([[4, 4, 1], [1, 4, 10]], id="duplicates"),
    pytest.param(np.zeros((0,), "int32"), id="empty"),
    pytest.param(np.zeros((2, 0), "int32"), id="empty-rows"),
    pytest.param([3, 6, 9], id="one-partition"),
]


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_equals_gather(layer, ids, dtype, graph):
    def look_up(ids):
        return tf.gather(layer.table, ids)

    function = tf.function(look_up) if graph else look_up
    ids = tf.constant(ids, dtype)
    found = function(ids)
    expected = layer.expected[ids.numpy()]
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("ids", IDS)
def test_gradient_is_unique_slices_that_equal_the_dense_gradient(layer, ids):
    ids = tf.constant(ids, "int32")
    variable = tf.Variable(layer.expected)

    def gradient(of, source):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.cumsum(tf.reshape(of(ids), [-1])) ** 2)
        return tape.gradient(loss, source)

    found = gradient(lambda ids: tf.gather(layer.table, ids), layer.table)
    dense = gradient(lambda ids: tf.gather(variable, ids), variable)
    assert isinstance(found, tf.IndexedSlices)
    assert len(set(found.indices.numpy().tolist())) == len(found.indices)
    assert found.dense_shape.numpy().tolist() == list(layer.expected.shape)
    np.testing.assert_allclose(
        tf.convert_to_tensor(found), tf.convert_to_tensor(dense), rtol=1e-5
    )


def test_gradients_of_several_lookups_add_up(layer):
    def loss(of):
        return tf.reduce_sum(of([1, 2, 1]) ** 2) + tf.reduce_sum(of([2, 3]) ** 3)

    variable = tf.Variable(layer.expected)
    with tf.GradientTape(persistent=True) as tape:
        found = loss(lambda ids: tf.gather(layer.table, ids))
        expected = loss(lambda ids: tf.gather(variable, ids))
    np.testing.assert_allclose(
        tf.convert_to_tensor(tape.gradient(found, layer.table)),
        tf.convert_to_tensor(tape.gradient(expected, variable)),
        rtol=1e-5,
    )


def test_duplicate_ids_are_pulled_once(layer, monkeypatch):
    sizes = []
    partition = type(layer.table.value.storage.partitions[0])
    gather = partition.gather

    def counted(self, places):
        sizes.append(len(places))
        return gather(self, places)

    monkeypatch.setattr(partition, "gather", counted)
    tf.gather(layer.table, [7, 7, 2, 7, 2, 7])
    assert sum(sizes) == 2


def test_negative_ids_count_from_the_end_as_in_keras(layer):
    ids = [[-1, 0], [-ROWS, 10]]
    np.testing.assert_array_equal(
        keras.ops.take(layer.table, ids, axis=0),
        keras.ops.take(layer.expected, ids, axis=0),
    )


@pytest.mark.parametrize("bad", [ROWS, -1, 2**31 - 1])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_an_id_outside_of_the_table_is_an_error_that_names_it(layer, bad, graph):
    def look_up(ids):
        return tf.gather(layer.table, ids)

    function = tf.function(look_up) if graph else look_up
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function(tf.constant([0, bad, 1]))
    assert layer.table.path in str(caught.value)
    assert f"[0, {ROWS})" in str(caught.value)
    assert str(bad) in str(caught.value)


def test_an_id_that_would_wrap_around_is_an_error(layer):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 11\)"):
        tf.gather(layer.table, tf.constant([2**32 + 1], tf.int64))


def test_float_ids_are_refused(layer):
    with pytest.raises(errors.TableError, match="type float32: cast") as caught:
        tf.gather(layer.table, tf.constant([1.0]))
    assert caught.value.table == layer.table.path


def test_ragged_ids_give_ragged_rows(layer):
    ids = tf.ragged.constant([[1, 2], [], [1, 10, 0]])
    found = tf.gather(layer.table, ids)
    assert isinstance(found, tf.RaggedTensor)
    assert found.row_lengths().numpy().tolist() == [2, 0, 3]
    np.testing.assert_array_equal(
        found.flat_values, layer.expected[ids.flat_values.numpy()]
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_rows_have_the_type_of_the_table(strategy, dtype):
    with strategy.scope():
        layer = Lookup((3,), dtype)
    found = tf.gather(layer.table, [1, 10])
    assert found.dtype == dtype
    np.testing.assert_array_equal(
        found, tf.cast(layer.expected, dtype).numpy()[[1, 10]]
    )
