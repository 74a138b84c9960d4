"""Gradients are clipped as in one process, where they are dense."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_parallax as kp
from keras_parallax import errors
from tests.multiprocess import models
from tests.test_update import build_with_one_lookup
from tests.twins import TABLES, assert_equal, dense_twin, fit, parallax, prepared

CLIPPED = {
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.01),
    "clipvalue": lambda: keras.optimizers.Adagrad(0.1, clipvalue=0.001),
    "global_clipnorm": lambda: keras.optimizers.Adagrad(0.1, global_clipnorm=0.01),
}
# Those that need the norm of what is in many places.
BY_NORM = ("clipnorm", "global_clipnorm")


def one_lookup(dense=False):
    """The gradient of its table is that of one lookup; its dense twin's is whole."""
    return functools.partial(build_with_one_lookup, dense=dense)


@pytest.mark.parametrize("name", CLIPPED)
def test_a_row_that_is_looked_up_twice_has_one_gradient(name):
    strategy = parallax()
    found = fit(prepared(one_lookup(), CLIPPED[name], strategy))
    assert_equal(found, fit(prepared(one_lookup(dense=True), CLIPPED[name])))
    assert strategy.plan["embeddings"].gradient == "sparse"
    assert strategy.plan["embeddings"].road == "servers"


@pytest.mark.parametrize("name", CLIPPED)
def test_the_gradients_of_several_lookups_are_summed_before(name):
    strategy = parallax()
    found = fit(prepared(models.build, CLIPPED[name], strategy))
    assert_equal(found, dense_twin(CLIPPED[name]))
    assert [strategy.plan[table].gradient for table in TABLES] == ["sparse"] * 2


@pytest.mark.parametrize("name", BY_NORM)
def test_a_bound_that_is_not_reached_changes_nothing(name):
    def bounded():
        return keras.optimizers.SGD(0.1, **{name: 1e6})

    found = fit(prepared(models.build, bounded, parallax()))
    assert_equal(found, dense_twin(lambda: keras.optimizers.SGD(0.1)))


@pytest.mark.parametrize("name", BY_NORM)
@pytest.mark.parametrize(
    "compiling",
    [{"run_eagerly": True}, {"steps_per_execution": 2}],
    ids=lambda given: next(iter(given)),
)
def test_ways_of_running_steps(name, compiling):
    model = prepared(models.build, CLIPPED[name], parallax(), **compiling)
    assert_equal(fit(model), dense_twin(CLIPPED[name]))


@pytest.mark.parametrize("name", BY_NORM)
def test_rows_that_all_change_are_clipped_too(name):
    def decaying():
        return keras.optimizers.AdamW(0.01, weight_decay=0.1, **{name: 0.01})

    strategy = parallax(sparse_update="exact", partitions=7)
    found = fit(prepared(models.build, decaying, strategy))
    assert_equal(found, dense_twin(decaying))


@pytest.mark.parametrize("name", BY_NORM)
def test_a_model_without_tables(name):
    def sgd():
        return keras.optimizers.SGD(0.1, **{name: 0.01})

    found = fit(prepared(models.build_without_tables, sgd, parallax()))
    assert_equal(found, fit(prepared(models.build_without_tables, sgd)))


@pytest.mark.parametrize("name", BY_NORM)
def test_a_loss_that_is_scaled(name):
    def scaling():
        # A power of 2: what is scaled and scaled back is the same number.
        inner = CLIPPED[name]()
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)

    found = prepared(models.build, scaling, parallax())
    twin = prepared(lambda: models.build(dense=True), scaling)
    fit(found)
    fit(twin)
    assert_equal(*([np.asarray(w) for w in m.weights] for m in (found, twin)))


@pytest.mark.parametrize("name", CLIPPED)
def test_the_optimizer_keeps_its_bound(name):
    model = prepared(models.build, CLIPPED[name], parallax())
    before = model.optimizer.get_config()
    fit(model, steps=1)
    assert model.optimizer.get_config() == before


class TwoOptimizers(keras.Model):
    """Two halves, each with an optimizer of its own."""

    def __init__(self, inner, bounds):
        super().__init__()
        self.inner = inner
        self.second = keras.optimizers.SGD(0.1, **bounds)

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        half = len(variables) // 2
        self.optimizer.apply(gradients[:half], variables[:half])
        self.second.apply(gradients[half:], variables[half:])
        return {"loss": loss}


def test_another_optimizer_of_the_model_has_its_own_bound():
    def trained(strategy):
        with strategy.scope():
            model = TwoOptimizers(models.build_without_tables(), {"clipnorm": 1e6})
            optimizer = keras.optimizers.SGD(0.1, global_clipnorm=0.01)
            model.compile(optimizer, jit_compile=False)
            model.inner.set_weights(models.start_weights(model.inner))
        x, y = models.data()
        model.fit(x[:30], y[:30], batch_size=10, shuffle=False, verbose=0)
        return model.inner.get_weights()

    assert_equal(trained(parallax()), trained(tf.distribute.get_strategy()))


class HalfApplied(keras.Model):
    """Sums all gradients, and applies one of them."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        pairs = list(
            zip(
                tape.gradient(loss, self.trainable_variables),
                self.trainable_variables,
                strict=True,
            )
        )
        pairs = self.optimizer._all_reduce_sum_gradients(pairs)
        self.optimizer._distributed_tf_update_step(
            self.distribute_strategy, [(g, v.value) for g, v in pairs[:1]], 0.1
        )
        return {"loss": loss}


def test_a_step_that_applies_some_gradients_only_is_refused():
    strategy = kp.ParallaxStrategy(servers="in_process")
    with strategy.scope():
        inner = models.build_without_tables()
        model = HalfApplied(inner.inputs, inner.outputs)
        model.compile(CLIPPED["global_clipnorm"](), jit_compile=False)
        model.optimizer.build(model.trainable_variables)
    x, y = models.data()
    with pytest.raises(errors.ConfigError, match="only 1 of the 4 gradients"):
        model.fit(x[:10], y[:10], batch_size=10, verbose=0)
