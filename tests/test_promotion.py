"""Variables whose rows are looked up become tables, whatever layer has them."""

import contextlib

import keras
import numpy as np
import pytest

import keras_parallax as kp
from keras_parallax.tables import factory
from keras_parallax.tables.dispatch import table_of

ROWS, WIDTH, LENGTH = 40, 3, 5


class Gathered(keras.layers.Layer):
    """Looks rows up in a weight of its own, or multiplies it with one-hot vectors."""

    def __init__(self, how="gathered", **kwargs):
        super().__init__(**kwargs)
        self.how = how

    def build(self, shape):
        self.rows = self.add_weight(shape=(ROWS, WIDTH), name="rows")

    def call(self, ids):
        rows = keras.ops.take(self.rows, ids, axis=0)
        if self.how != "gathered":
            hot = keras.ops.one_hot(ids, ROWS, dtype="float32")
            product = keras.ops.matmul(hot, self.rows)
            rows = product if self.how == "dense" else (rows + product) / 2
        return keras.ops.mean(rows, axis=1)

    def compute_output_shape(self, shape):
        return (shape[0], WIDTH)


def data():
    random = np.random.default_rng(0)
    x = random.integers(0, ROWS, (32, LENGTH)).astype("int32")
    return x, random.normal(size=(len(x), 1)).astype("float32")


def trained(how, optimizer, strategy=None, evaluates=False):
    """A model after some steps, and its weights and slots.

    Args:
        how: How its weight is used.
        optimizer: Makes its optimizer.
        strategy: In whose scope; None for none.
        evaluates: Whether to evaluate it before it is trained, too.
    """
    with strategy.scope() if strategy else contextlib.nullcontext():
        words = keras.Input((LENGTH,), dtype="int32")
        found = Gathered(how, name="gathered")(words)
        model = keras.Model(words, keras.layers.Dense(1)(found))
        model.compile(optimizer(), "mse", jit_compile=False)
        random = np.random.default_rng(1)
        model.set_weights([random.normal(size=w.shape) for w in model.weights])
        model.optimizer.build(model.trainable_variables)
    x, y = data()
    if evaluates:
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    states = [*model.weights, *model.optimizer.variables[2:]]
    return model, [np.asarray(state) for state in states]


@pytest.fixture
def looks_at_all(monkeypatch):
    monkeypatch.setattr(factory, "LOOK_BYTES", 0)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1),
        lambda: keras.optimizers.Adagrad(0.1),
        lambda: keras.optimizers.Adam(0.1),
    ],
)
def test_a_gathered_weight_becomes_a_table_with_its_slots(looks_at_all, optimizer):
    strategy = kp.ParallaxStrategy()
    model, states = trained("gathered", optimizer, strategy)
    table = table_of(model.get_layer("gathered").rows)
    assert table is not None
    assert len(table.slots) == (len(states) - 3) // 3
    entry = strategy.plan["gathered/rows"]
    assert (entry.gradient, entry.road) == ("sparse", "servers")
    assert "gathered/rows: allreduce -> servers" in strategy.plan.changes[0]
    _, wanted = trained("dense", optimizer)
    for found, expected in zip(states, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_what_was_traced_before_uses_the_table_after(looks_at_all):
    def sgd():
        return keras.optimizers.SGD(0.1)

    model, _ = trained("gathered", sgd, kp.ParallaxStrategy(), evaluates=True)
    assert table_of(model.get_layer("gathered").rows) is not None
    twin, _ = trained("dense", sgd)
    x, y = data()
    loss = model.evaluate(x, y, verbose=0)
    assert loss == pytest.approx(twin.evaluate(x, y, verbose=0), rel=1e-4)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), twin.predict(x, verbose=0), rtol=1e-4, atol=1e-6
    )


def test_a_small_one_is_not_worth_it():
    strategy = kp.ParallaxStrategy()
    model, states = trained("gathered", lambda: keras.optimizers.Adagrad(0.1), strategy)
    assert table_of(model.get_layer("gathered").rows) is None
    _, wanted = trained("dense", lambda: keras.optimizers.Adagrad(0.1))
    for found, expected in zip(states, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", ["dense", "both"])
def test_a_weight_used_whole_stays_what_it_is(looks_at_all, how):
    strategy = kp.ParallaxStrategy()
    model, _ = trained(how, lambda: keras.optimizers.SGD(0.1), strategy)
    assert table_of(model.get_layer("gathered").rows) is None
    assert strategy.plan["gathered/rows"].road == "allreduce"
    assert not strategy.plan.changes


@pytest.mark.parametrize("how", ["gathered", "dense", "both"])
def test_a_large_weight_is_in_partitions_until_its_gradient_is_known(monkeypatch, how):
    monkeypatch.setattr(factory, "PROVISIONAL_BYTES", 4 * ROWS * WIDTH)
    strategy = kp.ParallaxStrategy(partitions=2)
    with strategy.scope():
        layer = Gathered(how)
        layer.build((None, LENGTH))
    assert table_of(layer.rows).storage.spec.num_partitions == 2
    optimizer = lambda: keras.optimizers.Adagrad(0.1)  # noqa: E731
    model, states = trained(how, optimizer, strategy)
    is_table = table_of(model.get_layer("gathered").rows) is not None
    assert is_table == (how == "gathered")
    _, wanted = trained("dense", optimizer)
    for found, expected in zip(states, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_routes_and_architecture_have_the_last_word(looks_at_all):
    for given in ({"routes": {"*": "allreduce"}}, {"architecture": "allreduce"}):
        strategy = kp.ParallaxStrategy(**given)
        model, _ = trained("gathered", lambda: keras.optimizers.SGD(0.1), strategy)
        assert table_of(model.get_layer("gathered").rows) is None
