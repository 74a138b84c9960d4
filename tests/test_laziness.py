"""Whether rows without a gradient may be left alone: tried out, for each optimizer."""

import functools

import keras
import numpy as np
import pytest

from tests.multiprocess import models
from tests.twins import TABLES, fit, parallax, prepared

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "decayed SGD": lambda: keras.optimizers.SGD(0.1, weight_decay=0.1),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adadelta": lambda: keras.optimizers.Adadelta(0.1),
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "AMSGrad": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "Adamax": lambda: keras.optimizers.Adamax(0.1),
    "Nadam": lambda: keras.optimizers.Nadam(0.1),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "Lion": lambda: keras.optimizers.Lion(0.1),
    "ScheduleFreeAdamW": lambda: keras.optimizers.ScheduleFreeAdamW(0.1),
}
LAZY = {"SGD", "Adagrad"}
NOT_BY_ROW = {
    "Lamb": lambda: keras.optimizers.Lamb(0.1),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.1),
    "Muon": lambda: keras.optimizers.Muon(0.1),
    "Muon of embeddings": lambda: keras.optimizers.Muon(0.1, exclude_embeddings=False),
}


def zero_gradient_changes_nothing(make_optimizer):
    """What two steps of stock Keras show, of a row before and after it is touched."""
    optimizer = make_optimizer()
    variable = keras.Variable(np.random.default_rng(0).uniform(0.2, 1, (2, 3)))
    optimizer.build([variable])
    gradient = keras.ops.ones((2, 3))
    for mask in ([[0.0], [1.0]], [[0.0], [0.0]]):
        before = [np.asarray(v) for v in (variable, *optimizer.variables[2:])]
        optimizer.apply([gradient * keras.ops.array(mask)])
        after = [np.asarray(v) for v in (variable, *optimizer.variables[2:])]
        for old, new in zip(before, after, strict=True):
            rows = slice(0, 1 if mask[1] == [1.0] else 2)
            if new.shape == variable.shape and not np.array_equal(old[rows], new[rows]):
                return False
    return True


@functools.cache
def trained(name):
    """States of the model after some steps, and the plan."""
    strategy = parallax()
    make_optimizer = {**OPTIMIZERS, **NOT_BY_ROW}[name]
    return fit(prepared(models.build, make_optimizer, strategy)), strategy.plan


def faulty(names, faults):
    """Names as parameters of which some are expected to fail, and why."""
    return [
        pytest.param(name, marks=pytest.mark.xfail(reason=faults[name], strict=True))
        if name in faults
        else name
        for name in names
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_verdict_is_what_stock_keras_does(name):
    lazy = zero_gradient_changes_nothing(OPTIMIZERS[name])
    assert lazy == (name in LAZY)
    _, plan = trained(name)
    for table in TABLES:
        assert plan[table].road == "servers"
        assert plan[table].update == ("lazy" if lazy else "exact")


@pytest.mark.parametrize("name", ["Lamb", "Adafactor"])
def test_an_update_that_is_not_by_row_takes_the_dense_road(name):
    _, plan = trained(name)
    assert plan["embeddings"].road == "allreduce"


def test_the_trial_leaves_the_optimizer_as_it_was():
    class Counting(keras.optimizers.SGD):
        """Keeps a number of its own, which every update changes."""

        def build(self, variables):
            super().build(variables)
            self.count = self.add_variable((), name="count", initializer="zeros")

        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate)
            if tuple(variable.shape)[-1:] == (models.WIDTH,):
                self.assign_add(self.count, 1.0)

    strategy = parallax(partitions=1)
    model = prepared(models.build, lambda: Counting(0.1), strategy)
    fit(model, steps=3)
    # The gradient of the kernel is (4, 5): the embeddings alone are counted.
    assert float(model.optimizer.count) == 3.0
