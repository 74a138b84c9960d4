"""Training under the strategy, in every way that Keras offers, in one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_parallax as kp
from keras_parallax import errors
from keras_parallax.tables.dispatch import table_of
from tests.multiprocess import models
from tests.twins import (
    STEPS,
    assert_equal,
    data,
    dense_twin,
    fit,
    parallax,
    prepared,
    states_of,
)


def adagrad():
    return keras.optimizers.Adagrad(0.1)


@pytest.fixture(scope="module")
def twin():
    """States of the dense twin after `STEPS` steps."""
    return dense_twin(adagrad)


def test_one_worker_is_the_chief_of_a_job_of_one():
    strategy = kp.ParallaxStrategy()
    assert strategy.worker_index == 0
    assert strategy.num_workers == 1
    assert strategy.is_chief
    assert strategy.num_servers == 0
    assert strategy.num_replicas_in_sync == 1
    assert len(strategy.plan) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"servers": "remote"},
        {"architecture": "mesh"},
        {"partitions": 0},
        {"routes": {"*": "road"}},
        {"sparse_update": "eager"},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(errors.ConfigError, match="Received") as caught:
        kp.ParallaxStrategy(**arguments)
    assert name in str(caught.value)
    assert repr(value).strip("{}") in str(caught.value)


def test_an_all_reduce_that_waits_for_nobody_is_refused():
    with pytest.raises(errors.ConfigError, match="waits for every worker"):
        kp.ParallaxStrategy(architecture="allreduce", synchronous=False)


def test_allreduce_architecture_trains_the_same(twin):
    strategy = kp.ParallaxStrategy(architecture="allreduce")
    model = prepared(models.build, adagrad, strategy)
    assert not any(table_of(weight) for weight in model.weights)
    assert_equal(fit(model), twin)


def test_partitions_of_one_table(twin):
    strategy = parallax(partitions={"*/embeddings": 5})
    model = prepared(models.build, adagrad, strategy)
    assert_equal(fit(model), twin)
    assert strategy.plan["embeddings"].partitions == 5
    assert strategy.plan["table"].partitions == 1


@pytest.mark.parametrize(
    "compiling",
    [{"steps_per_execution": 3}, {"run_eagerly": True}, {"auto_scale_loss": False}],
    ids=lambda given: next(iter(given)),
)
def test_ways_of_running_steps(compiling, twin):
    model = prepared(models.build, adagrad, parallax(), **compiling)
    assert_equal(fit(model), twin)


def test_train_on_batch(twin):
    model = prepared(models.build, adagrad, parallax())
    x, y = data()
    for step in range(STEPS):
        batch = slice(step * models.BATCH, (step + 1) * models.BATCH)
        model.train_on_batch(x[batch], y[batch])
    assert_equal(states_of(model), twin)


def test_fit_on_a_dataset_of_global_batches(twin):
    model = prepared(models.build, adagrad, parallax())
    model.fit(tf.data.Dataset.from_tensor_slices(data()).batch(models.BATCH), verbose=0)
    assert_equal(states_of(model), twin)


def test_custom_training_loop(twin):
    strategy = parallax()
    model = prepared(models.build, adagrad, strategy)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(models.BATCH)

    def step(x, y):
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((model(x, training=True) - y) ** 2)
            loss = error / strategy.num_replicas_in_sync
        variables = model.trainable_variables
        model.optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        return loss

    @tf.function
    def run(x, y):
        losses = strategy.run(step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    losses = [run(*b) for b in strategy.experimental_distribute_dataset(dataset)]
    assert len(losses) == STEPS
    assert_equal(states_of(model), twin)


def test_evaluate_and_predict_equal_those_of_the_twin():
    model = prepared(models.build, adagrad, parallax(), metrics=["mae"])
    twin = prepared(lambda: models.build(dense=True), adagrad, metrics=["mae"])
    x, y = data()
    np.testing.assert_allclose(
        model.predict(x, batch_size=7, verbose=0),
        twin.predict(x, batch_size=7, verbose=0),
        rtol=1e-4,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        model.evaluate(x, y, batch_size=7, verbose=0),
        twin.evaluate(x, y, batch_size=7, verbose=0),
        rtol=1e-4,
    )
    np.testing.assert_allclose(model(x[:3]), twin(x[:3]), rtol=1e-4, atol=1e-6)


def test_history_and_validation_equal_those_of_the_twin():
    histories = []
    x, y = data()
    for dense, strategy in ((False, parallax()), (True, None)):
        model = prepared(lambda d=dense: models.build(d), adagrad, strategy)
        history = model.fit(
            x, y, validation_split=0.2, epochs=2, shuffle=False, verbose=0
        )
        histories.append(history.history)
    found, expected = histories
    assert found.keys() == expected.keys() == {"loss", "val_loss"}
    for key in found:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-4)


def test_summary_counts_tables(capsys):
    model = prepared(models.build, adagrad, parallax())
    model.summary()
    shown = capsys.readouterr().out
    assert "Embedding" in shown
    assert f"{models.ROWS * models.WIDTH}" in shown
    assert model.count_params() == models.build(dense=True).count_params()


def test_gradient_accumulation_takes_the_dense_road():
    def accumulating():
        return keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)

    strategy = parallax()
    model = prepared(models.build, accumulating, strategy)
    assert_equal(fit(model, steps=4), dense_twin(accumulating, steps=4))
    assert strategy.plan["embeddings"].road == "allreduce"


class Embedding(keras.layers.Embedding):
    """Of the size of the models' embedding."""

    def __init__(self, **kwargs):
        super().__init__(models.ROWS, models.WIDTH, **kwargs)


def build_with(**embedding):
    words = keras.Input((models.LENGTH,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(Embedding(**embedding)(words))
    return keras.Model(words, keras.layers.Dense(1)(x))


def same_as_plain(build, make_optimizer, strategy):
    found = prepared(build, make_optimizer, strategy)
    plain = prepared(build, make_optimizer)
    assert_equal(fit(found), fit(plain))
    return found


def test_constraint_on_a_table():
    model = same_as_plain(
        lambda: build_with(embeddings_constraint="non_neg"),
        lambda: keras.optimizers.SGD(0.1),
        parallax(),
    )
    assert np.min(model.get_weights()[0]) >= 0


def test_regularizer_of_a_table():
    strategy = parallax()
    same_as_plain(
        lambda: build_with(embeddings_regularizer=keras.regularizers.L2(0.01)),
        lambda: keras.optimizers.SGD(0.1),
        strategy,
    )
    assert strategy.plan["embeddings"].road == "allreduce"


def test_frozen_embeddings_stay_as_they_are():
    strategy = parallax()
    model = prepared(build_with, adagrad, strategy)
    with strategy.scope():
        model.layers[1].trainable = False
        model.compile(adagrad(), "mse")
    before = model.get_weights()
    x, y = data(1)
    model.fit(x, y, verbose=0)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


def test_moving_averages_of_a_table():
    def averaging():
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)

    model = same_as_plain(build_with, averaging, parallax())
    latest = fit(prepared(build_with, lambda: keras.optimizers.SGD(0.1), parallax()))
    assert not np.allclose(model.get_weights()[0], latest[0])


@pytest.fixture(params=["sgd", "adagrad"], ids=["without-slots", "with-slots"])
def optimizer(request):
    return request.param


def test_an_optimizer_may_be_built_outside_of_the_scope(twin):
    strategy = parallax()
    with strategy.scope():
        model = models.build()
        model.compile(adagrad(), "mse", jit_compile=False)
        model.set_weights(models.start_weights(model))
    model.optimizer.build(model.trainable_variables)
    slots = [slot._value for slot in model.optimizer.variables[2:]]
    assert sum(table_of(slot) is not None for slot in slots) == 2
    assert_equal(fit(model), twin)


@pytest.mark.parametrize(
    "compiling", [{}, {"run_eagerly": True}], ids=["graph", "eager"]
)
def test_a_model_built_outside_of_the_scope_is_refused(optimizer, compiling):
    model = build_with()
    before = model.get_weights()
    with parallax().scope():
        model.compile(optimizer, "mse", **compiling)
    x, y = data(1)
    with pytest.raises(errors.ScopeError, match="the line that builds the model"):
        model.fit(x, y, verbose=0)
    for weight, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, kept)


def test_a_model_compiled_outside_of_the_scope_is_refused(optimizer):
    with parallax().scope():
        model = build_with()
    model.compile(optimizer, "mse")
    x, y = data(1)
    with pytest.raises(errors.ScopeError, match=r"the line `model\.compile"):
        model.fit(x, y, verbose=0)


def test_the_strategy_can_be_set_for_the_whole_program():
    strategy = parallax()
    tf.distribute.experimental_set_strategy(strategy)
    try:
        model = build_with()
        model.compile("adagrad", "mse")
    finally:
        tf.distribute.experimental_set_strategy(None)
    model.fit(*data(1), verbose=0)
    assert strategy.plan["embeddings"].road == "servers"


def test_two_strategies_live_side_by_side(twin):
    first = prepared(models.build, adagrad, parallax(partitions=1))
    second = prepared(models.build, adagrad, parallax(partitions=3))
    fit(first, steps=1)
    assert_equal(fit(second), twin)
