"""Stock operations on tables: lookups pull rows alone, others see the whole value."""

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_parallax.tables.table import Table
from tests.multiprocess import models
from tests.twins import assert_equal, fit, parallax, prepared

ROWS, WIDTH = 23, 4


class Subclass(keras.layers.Embedding):
    """An Embedding with a call of its own."""

    def call(self, inputs):
        return super().call(inputs) * 2.0


class Custom(keras.layers.Layer):
    """Looks rows up in a weight of its own, in the way that it is told."""

    def __init__(self, look_up, shape=(ROWS, WIDTH)):
        super().__init__()
        self.look_up = look_up
        self.table = self.add_weight(shape=shape, name="table")

    def call(self, ids):
        return self.look_up(self.table, ids)


class SampledSoftmax(keras.layers.Layer):
    """The loss of a language model over its full vocabulary."""

    def build(self, input_shape):
        self.table = self.add_weight(shape=(ROWS, WIDTH), name="table")
        self.biases = self.add_weight(shape=(ROWS,), name="table_of_biases")

    def call(self, ids):
        hidden = tf.one_hot(ids[:, 0] % WIDTH, WIDTH)
        loss = tf.nn.sampled_softmax_loss(
            self.table, self.biases, ids[:, 1:2], hidden, 5, ROWS, seed=1
        )
        return loss[:, None]


LOOKUPS = {
    "Embedding": lambda: keras.layers.Embedding(ROWS, WIDTH),
    "subclass": lambda: Subclass(ROWS, WIDTH),
    "masked": lambda: keras.layers.Embedding(ROWS, WIDTH, mask_zero=True),
    "ops.take": lambda: Custom(lambda table, ids: keras.ops.take(table, ids, axis=0)),
    "gather": lambda: Custom(tf.gather),
    "gather of scalars": lambda: Custom(
        lambda table, ids: tf.gather(table, ids)[..., None], (ROWS,)
    ),
    "embedding_lookup": lambda: Custom(tf.nn.embedding_lookup),
    "sampled softmax": SampledSoftmax,
}


@pytest.fixture
def strategy():
    return parallax(routes={"*table*": "servers"})


@pytest.fixture
def never_whole(monkeypatch):
    """Makes it an error to read a table as a whole."""

    def refuse(self):
        raise AssertionError(f"{self!r} was read whole")

    # In a graph or on a tape, and eagerly; rows in view of an update are not whole.
    for reading in ("_dense_read", "numpy"):
        monkeypatch.setattr(Table, reading, refuse)


def model_of(layer):
    ids = keras.Input((3,), dtype="int32")
    found = layer(ids)
    if len(found.shape) == 3:
        found = keras.layers.GlobalAveragePooling1D()(found)
    return keras.Model(ids, keras.layers.Dense(1)(found))


def batch():
    ids = np.random.default_rng(0).integers(0, ROWS, (8, 3))
    return ids, np.ones((8, 1), "float32")


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_lookups_never_read_a_table_whole(strategy, name, eagerly, never_whole):
    with strategy.scope():
        model = model_of(LOOKUPS[name]())
        model.compile("adagrad", "mse", run_eagerly=eagerly, jit_compile=False)
    history = model.fit(*batch(), batch_size=4, verbose=0)
    assert np.isfinite(history.history["loss"][0])
    model.evaluate(*batch(), verbose=0)
    model.predict(batch()[0], verbose=0)
    if not eagerly:
        sparse = [line for line in strategy.plan if line.gradient == "sparse"]
        assert len(sparse) == (2 if name == "sampled softmax" else 1)
        assert {line.road for line in sparse} == {"servers"}


def test_sampled_softmax_equals_that_of_plain_variables(strategy):
    values, gradients = [], []
    ids, _ = batch()
    weights = np.random.default_rng(1)
    table = weights.normal(size=(ROWS, WIDTH)).astype("float32")
    biases = weights.normal(size=ROWS).astype("float32")
    for scope in (strategy.scope(), tf.distribute.get_strategy().scope()):
        with scope:
            layer = SampledSoftmax()
            layer.build((8, 3))
        layer.set_weights([table, biases])
        tf.random.set_seed(3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(tf.constant(ids)))
        values.append(loss)
        gradients.append(tape.gradient(loss, layer.trainable_weights))
    np.testing.assert_allclose(*values, rtol=1e-5)
    for found, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(
            tf.convert_to_tensor(found), tf.convert_to_tensor(expected), rtol=1e-4
        )


def test_mask_of_an_embedding_reaches_the_next_layer(strategy):
    with strategy.scope():
        layer = keras.layers.Embedding(ROWS, WIDTH, mask_zero=True)
        ids = tf.constant([[3, 0, 0], [1, 2, 0]])
        pooled = keras.layers.GlobalAveragePooling1D()
        found = pooled(layer(ids))
    rows = layer.embeddings.numpy()
    np.testing.assert_allclose(found, [rows[3], rows[[1, 2]].mean(0)], rtol=1e-5)


WHOLE = {
    "matmul": lambda table: tf.matmul(tf.ones((2, ROWS)), table),
    "ops.matmul": lambda table: keras.ops.matmul(tf.ones((2, ROWS)), table),
    "transposed": lambda table: tf.matmul(tf.ones((2, WIDTH)), table, transpose_b=True),
    "square": tf.square,
    "operator": lambda table: table * 2.0 + 1.0,
    "slice": lambda table: table[:, 1],
    "columns": lambda table: tf.gather(table, [0, 2], axis=1),
    "one of two": lambda table: tf.concat([table, tf.ones((1, WIDTH))], 0),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_other_operations_see_the_whole_value(strategy, name, graph):
    with strategy.scope():
        layer = keras.layers.Embedding(ROWS, WIDTH)
        layer.build()
    plain = tf.Variable(layer.embeddings.numpy())

    def apply(table):
        with tf.GradientTape() as tape:
            value = WHOLE[name](table)
            loss = tf.reduce_sum(value**2)
        return value, tape.gradient(loss, table)

    results = []
    for table in (layer.embeddings, plain):
        run = functools.partial(apply, table)
        value, gradient = (tf.function(run) if graph else run)()
        assert not isinstance(gradient, tf.IndexedSlices)
        results.append((value, gradient))
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("operation", [tf.shape, tf.rank, keras.ops.shape])
def test_asking_for_the_shape_reads_nothing(strategy, operation, never_whole):
    with strategy.scope():
        layer = keras.layers.Embedding(ROWS, WIDTH)
        layer.build()
    plain = tf.zeros((ROWS, WIDTH))
    np.testing.assert_array_equal(operation(layer.embeddings), operation(plain))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(strategy, policy, never_whole):
    with strategy.scope():
        layer = keras.layers.Embedding(ROWS, WIDTH, dtype=policy)
        ids = keras.Input((3,), dtype="int32")
        pooled = keras.layers.GlobalAveragePooling1D(dtype=policy)(layer(ids))
        model = keras.Model(ids, keras.layers.Dense(1, dtype="float32")(pooled))
        model.compile(keras.optimizers.Adagrad(0.1), "mse", jit_compile=False)
    assert layer(batch()[0]).dtype == layer.compute_dtype
    assert layer.embeddings.dtype == "float32"
    history = model.fit(*batch(), epochs=3, batch_size=8, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < losses[0]


class TiedSoftmax(keras.layers.Layer):
    """Looks words up and scores them by the same table."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = keras.layers.Embedding(models.ROWS, models.WIDTH)

    def call(self, ids):
        hidden = keras.ops.mean(self.embedding(ids), axis=1)
        scores = keras.ops.matmul(
            hidden, keras.ops.transpose(self.embedding.embeddings)
        )
        return keras.ops.logsumexp(scores, axis=-1, keepdims=True)


def build_tied():
    words = keras.Input((models.LENGTH,), dtype="int32")
    return keras.Model(words, keras.layers.Dense(1)(TiedSoftmax()(words)))


def test_tied_softmax_takes_the_dense_road_and_says_so(caplog):
    strategy = parallax()
    model = prepared(build_tied, lambda: keras.optimizers.Adam(0.01), strategy)
    with caplog.at_level(logging.WARNING, "keras_parallax"):
        found = fit(model)
    (line,) = [r for r in caplog.messages if "goes the dense road" in r]
    entry = strategy.plan["embeddings"]
    assert entry.variable in line
    assert entry.road == "allreduce"
    assert entry.gradient == "dense"
    assert entry.partitions == 1
    assert entry.home == "workers"
    assert "used whole in the training step" in entry.reason
    plain = prepared(build_tied, lambda: keras.optimizers.Adam(0.01))
    assert_equal(found, fit(plain))


def test_a_table_on_the_dense_road_is_still_saved_and_assigned():
    strategy = parallax()
    model = prepared(build_tied, lambda: keras.optimizers.Adam(0.01), strategy)
    fit(model)
    weights = [weight + 1 for weight in model.get_weights()]
    model.set_weights(weights)
    assert_equal(model.get_weights(), weights)
    fit(model)
    assert strategy.plan["embeddings"].road == "allreduce"
