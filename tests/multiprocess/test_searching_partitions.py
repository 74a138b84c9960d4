"""A search for the number of partitions ends, loses nothing, and is remembered."""

import numpy as np
import pytest

from keras_parallax.plan.network import NETWORK_VARIABLE
from tests.multiprocess.harness import run_job
from tests.multiprocess.models import BATCH, data

pytestmark = pytest.mark.multiprocess


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("searching")
    environ = {
        NETWORK_VARIABLE: "bandwidth=1Gbit,latency=0.1ms",
        "KERAS_PARALLAX_CACHE": str(folder / "cache"),
    }
    job = run_job(
        "partition_search", folder, workers=2, servers=2, environ=environ
    ).check()
    # In batches, losses are each worker's own.
    losses = [[run.pop("losses") for run in runs] for runs in job.results]
    assert job.results[0] == job.results[1]
    return job.results[0], losses


def test_it_ends_in_time_with_an_answer(runs):
    (plain, searched, _), _ = runs
    assert plain["tried"] == {}
    assert searched["steps_taken"] <= 40
    ((path, tried),) = searched["tried"].items()
    assert len(tried) >= 3
    chosen = searched["chosen"][path]
    assert chosen in tried
    assert set(searched["partitions"].values()) == {chosen}


def test_no_step_is_lost(runs):
    _, losses = runs
    for plain, *others in losses:
        assert len(plain) == len(data()[0]) // BATCH
        for found in others:
            np.testing.assert_allclose(found, plain, rtol=1e-4)


def test_the_answer_is_remembered(runs):
    (_, searched, again), _ = runs
    assert again["tried"] == {}
    assert again["steps_taken"] == 0
    assert again["partitions"] == searched["partitions"]
