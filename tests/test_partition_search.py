"""Which numbers of partitions are tried and kept, and what the callback refuses."""

import keras
import numpy as np
import pytest

import keras_parallax as kp
from keras_parallax.errors import ConfigError
from keras_parallax.plan.partition_search import PartitionSearch


def run(seconds, start=4, least=1, most=64, most_samples=8):
    """A search over made-up step times; returns it, and what it tried in order."""
    search = PartitionSearch(start, least, most, most_samples)
    tried = []
    while (count := search.next_count()) is not None:
        tried.append(count)
        search.add(count, seconds(count))
    return search, tried


def test_doubles_while_that_helps_then_halves():
    search, tried = run(lambda p: 0.1 + 0.4 / p + 0.01 * p)
    assert tried == [4, 8, 16, 2]
    assert search.chosen == 8
    assert search.fit.r2 == pytest.approx(1)


def test_goes_on_where_a_difference_may_be_noise():
    _, tried = run(lambda p: 0.1)
    assert sorted(tried) == [1, 2, 4, 8, 16, 32, 64]


def test_keeps_to_its_limits():
    _, tried = run(lambda p: 1 / p, start=5, least=3, most=20)
    assert sorted(tried) == [4, 8, 16]
    _, tried = run(lambda p: 0.1, most_samples=3)
    assert len(tried) == 3
    # No power of two fits between them.
    assert run(lambda p: 0.1, start=3, least=3, most=3)[1] == [3]


def test_few_samples_are_taken_as_they_are():
    search, _ = run(lambda p: {2: 0.3, 4: 0.2, 8: 0.25}.get(p, 1.0), least=2, most=8)
    assert search.chosen == 4


def test_a_fit_that_does_not_hold_is_not_believed():
    times = {1: 0.1, 2: 0.102, 4: 0.099, 8: 0.102, 16: 0.098, 32: 0.102, 64: 0.1}
    search, _ = run(times.get)
    assert search.fit.r2 < 0.5
    assert search.chosen == 16


def test_a_fit_does_not_overrule_what_was_seen():
    times = {1: 1.0, 2: 0.5, 4: 0.3, 8: 0.1, 16: 0.3, 32: 0.5, 64: 0.9}
    search = PartitionSearch(4, 1, 64, 8)
    for count, seconds in times.items():
        search.add(count, seconds)
    assert search.chosen == 8


@pytest.mark.parametrize("seed", range(5))
def test_noise_costs_little(seed):
    random = np.random.default_rng(seed)

    def model(count):
        return 0.1 + 0.2 / count + 0.002 * count

    search, _ = run(lambda p: model(p) * random.normal(1, 0.02))
    best = min(model(1 << n) for n in range(7))
    assert model(search.chosen) <= 1.05 * best


def test_a_search_has_room_for_its_steps():
    with pytest.raises(ConfigError, match="most_steps=5"):
        kp.callbacks.PartitionSearch(steps=8, most_steps=5)


def test_a_model_of_another_strategy_is_refused():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((2, 1), "float32")
    with pytest.raises(ConfigError, match="scope of a ParallaxStrategy"):
        model.fit(x, x, verbose=0, callbacks=[kp.callbacks.PartitionSearch()])
