"""Models are saved whole, and loaded with and without this package."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.multiprocess import models
from tests.twins import assert_equal, data, fit, parallax, prepared, states_of

# What Keras 3.15 does with its own variables when it saves them.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)

PLAIN_KERAS = """
import sys
import keras
import numpy as np

model = keras.models.load_model(sys.argv[1])
given = np.load(sys.argv[2])
before = model.predict(given["x"], verbose=0)
model.fit(given["x"], given["y"], batch_size=10, shuffle=False, verbose=0)
states = [*model.weights, *model.optimizer.variables[2:]]
np.savez(sys.argv[3], before, *[np.asarray(state) for state in states])
assert "keras_parallax" not in sys.modules
"""


def build():
    """A model of stock layers, which every Keras can load."""
    words = keras.Input((models.LENGTH,), dtype="int32")
    x = keras.layers.Embedding(models.ROWS, models.WIDTH)(words)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(words, keras.layers.Dense(1)(x))


def adagrad():
    return keras.optimizers.Adagrad(0.1)


@pytest.fixture
def model():
    model = prepared(build, adagrad, parallax())
    fit(model, steps=2)
    return model


def test_get_and_set_weights(model):
    other = prepared(build, adagrad, parallax(partitions=7))
    other.set_weights(model.get_weights())
    assert_equal(other.get_weights(), model.get_weights(), rtol=0, atol=0)
    x, _ = data()
    np.testing.assert_allclose(
        other.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5
    )


@pytest.mark.parametrize("partitions", [1, 7])
def test_weights_are_loaded_into_any_number_of_partitions(model, partitions, tmp_path):
    path = tmp_path / "m.weights.h5"
    model.save_weights(path)
    other = prepared(build, adagrad, parallax(partitions=partitions))
    other.load_weights(path)
    assert_equal(states_of(other)[:3], states_of(model)[:3], rtol=0, atol=0)
    plain = prepared(build, adagrad)
    plain.load_weights(path)
    assert_equal(states_of(plain)[:3], states_of(model)[:3], rtol=0, atol=0)


def test_weights_of_plain_keras_are_loaded_into_tables(tmp_path):
    plain = prepared(build, adagrad)
    fit(plain, steps=2)
    plain.save_weights(tmp_path / "m.weights.h5")
    model = prepared(build, adagrad, parallax())
    model.load_weights(tmp_path / "m.weights.h5")
    assert_equal(model.get_weights(), plain.get_weights(), rtol=0, atol=0)


def test_training_resumes_as_if_it_had_not_stopped(model, tmp_path):
    model.save(tmp_path / "m.keras")
    expected = fit(model, steps=3)
    strategy = parallax(partitions=3)
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "m.keras")
    assert strategy.plan["embeddings"].partitions == 3
    assert int(loaded.optimizer.iterations) == 2
    assert_equal(fit(loaded, steps=3), expected, rtol=1e-5)


def test_a_saved_model_is_a_plain_keras_model(model, tmp_path):
    x, y = data(3)
    model.save(tmp_path / "m.keras")
    np.savez(tmp_path / "given.npz", x=x, y=y)
    predictions = model.predict(x, verbose=0)
    expected = fit(model, steps=3)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_KERAS, "m.keras", "given.npz", "found.npz"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "found.npz") as saved:
        found = [saved[key] for key in saved.files]
    np.testing.assert_allclose(found[0], predictions, rtol=1e-5, atol=1e-6)
    # Stock Keras does not sum duplicate ids, so the tables part company; what it
    # shows is that the file holds the state of the optimizer.
    assert len(found) - 1 == len(expected)
    assert np.all(found[-1] >= expected[-1] * 0.99)


def test_cloned_and_plain_copies_hold_no_tables(model):
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    x, _ = data()
    np.testing.assert_allclose(
        clone(x[:5]), model.predict(x[:5], verbose=0), rtol=1e-4, atol=1e-6
    )
