"""Whose step `strategy.run` is asked to run."""

import keras
import numpy as np
import pytest

import keras_parallax as kp
from keras_parallax.keras_steps import Step, step_of


class Noting(kp.ParallaxStrategy):
    """Notes the steps that it is asked to run."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def run(self, fn, args=(), kwargs=None, options=None):
        self.steps.append(step_of(fn))
        return super().run(fn, args, kwargs, options)


@pytest.fixture(scope="module")
def strategy():
    return Noting()


@pytest.fixture
def model(strategy):
    strategy.steps.clear()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


X, Y = np.ones((4, 2)), np.ones((4, 1))
CALLS = {
    "fit": (lambda model: model.fit(X, Y, verbose=0), False),
    "train_on_batch": (lambda model: model.train_on_batch(X, Y), False),
    "evaluate": (lambda model: model.evaluate(X, Y, verbose=0), False),
    "test_on_batch": (lambda model: model.test_on_batch(X, Y), False),
    "predict": (lambda model: model.predict(X, verbose=0), True),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_steps_of_keras_are_known(strategy, model, name, eagerly):
    call, predicts = CALLS[name]
    model.run_eagerly = eagerly
    call(model)
    assert strategy.steps
    trains = name in ("fit", "train_on_batch")
    assert set(strategy.steps) == {Step(model, predicts, trains)}


def test_a_loop_of_somebody_else_has_no_model(model):
    assert step_of(lambda: model(X)) == Step()
    assert step_of(np.sum) == Step()
    assert step_of("".join) == Step()


def test_a_wrapped_step_is_seen_through(model):
    import functools

    @functools.wraps(model.train_step)
    def wrapped(data):
        return model.train_step(data)

    assert step_of(wrapped) == Step(model)
