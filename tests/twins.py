"""Trains a model under a strategy and its dense twin without one, to be compared."""

import contextlib

import numpy as np

import keras_parallax as kp
from tests.multiprocess import models

STEPS = 5
TABLES = ("embeddings", "table")


def parallax(**arguments):
    """A strategy in this process, in which both kinds of table are tables."""
    return kp.ParallaxStrategy(
        servers="in_process", **{"routes": models.ROUTES, "partitions": 2, **arguments}
    )


def prepared(build, make_optimizer, strategy=None, **compiling):
    """A compiled model with the weights that every run begins with."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = build()
        optimizer = make_optimizer()
        model.compile(optimizer, "mse", jit_compile=False, **compiling)
        model.set_weights(models.start_weights(model))
        # Some optimizers begin with a copy of the weights.
        optimizer.build(model.trainable_variables)
    return model


def data(steps=STEPS):
    """The first batches of the models' data."""
    x, y = models.data()
    return x[: steps * models.BATCH], y[: steps * models.BATCH]


def fit(model, steps=STEPS):
    """Trains; returns weights and slots, in order."""
    x, y = data(steps)
    model.fit(x, y, batch_size=models.BATCH, shuffle=False, verbose=0)
    return states_of(model)


def states_of(model):
    """Weights and slots, in order."""
    states = [*model.weights, *model.optimizer.variables[2:]]
    return [np.asarray(state) for state in states]


def dense_twin(make_optimizer, steps=STEPS, **compiling):
    """States of the dense twin, trained without a strategy."""
    model = prepared(lambda: models.build(dense=True), make_optimizer, **compiling)
    return fit(model, steps)


def assert_equal(found, expected, rtol=1e-4, atol=1e-6):
    """Fails where a weight or slot differs beyond float32 rounding."""
    assert len(found) == len(expected)
    for index, (state, wanted) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(
            state, wanted, rtol=rtol, atol=atol, err_msg=f"state {index}"
        )
