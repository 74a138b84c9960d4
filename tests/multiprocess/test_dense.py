"""Dense gradients in buckets, and what is averaged beside them."""

import os

import numpy as np
import pytest

from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess

COUNTS = [2, 3] if os.environ.get("KERAS_PARALLAX_TEST_ALL") == "1" else [3]


@pytest.fixture(scope="module", params=COUNTS)
def results(request, tmp_path_factory):
    """What each of some workers found."""
    folder = tmp_path_factory.mktemp("dense")
    job = run_job("dense", folder, workers=request.param, timeout_seconds=280).check()
    return job.results


def check_close(found, wanted):
    assert len(found["values"]) == len(wanted["values"])
    for mine, yours in zip(found["values"], wanted["values"], strict=True):
        np.testing.assert_allclose(mine, yours, rtol=1e-3, atol=1e-5)


def test_all_workers_have_the_same(results):
    for how, found in results[0].items():
        if "values" in found:
            assert all(other[how]["values"] == found["values"] for other in results)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("fit", "fit at once"),
        ("steps", "fit at once"),
        ("eager", "fit at once"),
        ("loop", "loop at once"),
        ("buckets", "buckets at once"),
    ],
)
def test_it_is_what_comes_of_reducing_all_at_once(results, how, wanted):
    check_close(results[0][how], results[0][wanted])


def test_moving_means_are_those_of_the_whole_batch(results):
    for result in results:
        statistics = result["statistics"]
        np.testing.assert_allclose(
            statistics["found"], statistics["wanted"], rtol=1e-4, atol=1e-7
        )


def test_a_step_reduces_nothing_but_gradients(results):
    """Neither slots, which are the same everywhere, nor statistics by themselves."""
    found = results[0]["buckets"]["operations"]
    assert found.pop("gradients") >= 3
    assert set(found) <= {"examples"}
    # Statistics that are read again within the step cannot wait for the gradients.
    assert results[0]["fit"]["operations"]["mean"] == 2


def test_messages_of_all_sizes_arrive_as_they_were_sent(results):
    assert [result["messages"] for result in results] == ["all as sent"] * len(results)


def test_the_time_of_several_buckets_adds_up(results):
    for result in results:
        timed = result["timed"]
        assert timed["told_steps"] == timed["steps"] > 0
        assert 0 < timed["allreduce_seconds"] <= timed["step_seconds"]
        assert 0 <= timed["wait_seconds"] <= timed["travel_seconds"]
