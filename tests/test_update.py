"""The user's optimizer, run on rows, gives what it gives on the whole table."""

import logging

import keras
import numpy as np
import pytest

from keras_parallax import errors
from tests.multiprocess import models
from tests.test_laziness import NOT_BY_ROW, OPTIMIZERS, trained
from tests.twins import (
    TABLES,
    assert_equal,
    data,
    dense_twin,
    fit,
    parallax,
    prepared,
    states_of,
)


def scheduled():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return keras.optimizers.SGD(schedule)


def build_with_one_lookup(dense=False):
    """The embedding of the models' model alone, looked up once a step."""
    words = keras.Input((models.LENGTH,), dtype="int32")
    layer = models.DenseEmbedding() if dense else None
    layer = layer or keras.layers.Embedding(models.ROWS, models.WIDTH)
    x = keras.layers.GlobalAveragePooling1D()(layer(words))
    return keras.Model(words, keras.layers.Dense(1)(x))


@pytest.mark.parametrize("name", [*OPTIMIZERS, *NOT_BY_ROW])
def test_every_optimizer_equals_its_dense_twin(name):
    found, _ = trained(name)
    assert_equal(found, dense_twin({**OPTIMIZERS, **NOT_BY_ROW}[name]))


def test_a_schedule_of_the_learning_rate():
    model = prepared(models.build, scheduled, parallax())
    assert_equal(fit(model), dense_twin(scheduled))


@pytest.mark.parametrize(("name", "partitions"), [("SGD", 1), ("AdamW", 7)])
def test_exact_equals_the_dense_twin(name, partitions):
    strategy = parallax(sparse_update="exact", partitions=partitions)
    model = prepared(models.build, OPTIMIZERS[name], strategy)
    assert_equal(fit(model), dense_twin(OPTIMIZERS[name]))
    assert [strategy.plan[table].update for table in TABLES] == ["exact"] * 2


@pytest.mark.parametrize("name", ["momentum", "AdamW"])
def test_lazy_updates_the_rows_of_the_batch_and_no_others(name):
    strategy = parallax(sparse_update="lazy")
    model = prepared(models.build, OPTIMIZERS[name], strategy)
    before = states_of(model)
    found = fit(model, steps=1)
    expected = dense_twin(OPTIMIZERS[name], steps=1)
    touched = np.unique(data(steps=1)[0])
    others = np.setdiff1d(np.arange(models.ROWS), touched)
    assert len(touched) and len(others)
    tables = 0
    for old, new, wanted in zip(before, found, expected, strict=True):
        if new.shape[:1] != (models.ROWS,):
            continue
        tables += 1
        np.testing.assert_allclose(new[touched], wanted[touched], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(new[others], old[others])
    assert tables >= 4
    assert [strategy.plan[table].update for table in TABLES] == ["lazy"] * 2


def test_a_variable_excluded_from_weight_decay_is_not_decayed():
    def make_optimizer():
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["embeddings", "whole"])
        return optimizer

    model = prepared(models.build, make_optimizer, parallax())
    assert_equal(fit(model), dense_twin(make_optimizer))


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_what_lazy_would_save_is_said_once_a_table(name, caplog):
    model = prepared(build_with_one_lookup, OPTIMIZERS[name], parallax())
    with caplog.at_level(logging.WARNING, "keras_parallax"):
        fit(model)
        fit(model)
    lines = [line for line in caplog.messages if "sparse_update='lazy'" in line]
    assert len(lines) == (name == "Adam")
    for line in lines:
        assert "Adam also changes rows" in line
        assert f"all {models.ROWS} rows" in line


def test_an_unknown_sparse_update_is_refused():
    with pytest.raises(errors.ConfigError, match="sparse_update='eager'"):
        parallax(sparse_update="eager")
