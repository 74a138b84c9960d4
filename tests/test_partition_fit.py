"""The fit of step time over the number of partitions."""

import json

import numpy as np
import pytest

from keras_parallax.plan.partition_fit import PartitionFit

COUNTS = [1, 2, 4, 8, 16, 32, 64]


def model(count, constant=0.1, shared=0.05, each=0.001):
    return constant + shared / count + each * count


def test_it_finds_what_made_the_samples():
    fit = PartitionFit.of((count, model(count)) for count in [64, 1, 4, 16])
    assert fit.constant_s == pytest.approx(0.1)
    assert fit.shared_s == pytest.approx(0.05)
    assert fit.each_s == pytest.approx(0.001)
    assert fit.r2 == pytest.approx(1)
    assert fit.residual_s == pytest.approx(0, abs=1e-9)
    assert fit.argmin(COUNTS) == 8
    assert [count for count, _ in fit.samples] == [1, 4, 16, 64]


def test_noise_is_averaged_and_shows_in_the_residual():
    random = np.random.default_rng(0)
    samples = [(count, model(count) * random.normal(1, 0.02)) for count in COUNTS * 10]
    fit = PartitionFit.of(samples)
    assert fit.argmin(COUNTS) in (4, 8, 16)
    assert 0 < fit.residual_s < 0.005
    assert 0.5 < fit.r2 < 1


@pytest.mark.parametrize("trend", [1.0, -1.0])
def test_no_coefficient_is_negative(trend):
    """Bent the other way: the best that times can be is kept."""
    samples = [(count, 1 + trend * 0.1 * np.log(count)) for count in COUNTS]
    fit = PartitionFit.of(samples)
    assert min(fit.constant_s, fit.shared_s, fit.each_s) >= 0
    assert fit.argmin(COUNTS) == (1 if trend > 0 else 64)
    concave = PartitionFit.of([(1, 1.0), (8, 2.0), (64, 1.0)])
    assert min(concave.constant_s, concave.shared_s, concave.each_s) >= 0


def test_one_sample_is_a_constant():
    fit = PartitionFit.of([(4, 0.3)])
    assert fit.seconds(1) == fit.seconds(64) == pytest.approx(0.3)
    assert fit.argmin(COUNTS) == 1
    assert fit.r2 == 1


def test_two_samples_are_gone_through():
    falls = PartitionFit.of([(1, 0.3), (2, 0.2)])
    assert falls.seconds(2) == pytest.approx(0.2)
    assert falls.argmin([1, 2, 4]) == 4
    rises = PartitionFit.of([(1, 0.2), (2, 0.3)])
    assert rises.seconds(1) == pytest.approx(0.2)
    assert rises.argmin([1, 2, 4]) == 1
    same = PartitionFit.of([(2, 0.2), (2, 0.4)])
    assert same.seconds(7) == pytest.approx(0.3)


@pytest.mark.parametrize(
    "samples", [[], [(0, 0.1)], [(1, 0.0)], [(1, float("nan"))], [(1, float("inf"))]]
)
def test_what_is_no_sample_is_refused(samples):
    with pytest.raises(ValueError, match="Received"):
        PartitionFit.of(samples)


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(ValueError, match="numbers of partitions"):
        PartitionFit.of([(1, 0.1)]).argmin([])


def test_it_is_shown():
    fit = PartitionFit.of((count, model(count)) for count in [1, 4, 16])
    assert str(fit) == "100 + 50/P + 1*P ms (R2 1.00 of 3 samples)"
    assert json.loads(json.dumps(fit.to_dict()))["samples"] == [
        [count, model(count)] for count in [1, 4, 16]
    ]
