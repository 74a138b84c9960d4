"""Real data, whose sparsity is a matter of the batch size alone."""

import importlib.util

import numpy as np
import pytest

from keras_parallax.plan.choose import choose
from keras_parallax.plan.network import NETWORK_VARIABLE, Cluster, Network
from keras_parallax.plan.use import Use
from keras_parallax.roads import ROADS
from tests.multiprocess.harness import run_job

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(
        importlib.util.find_spec("recbole") is None,
        reason="the data is in a package that the examples need",
    ),
]

# Rows are slow to work on, so that it matters how many there are.
GIVEN = (
    "bandwidth=1Gbit,latency=0.1ms,local_bandwidth=1Gbit,local_latency=0.1ms,"
    "call=5ms,memory=20MB"
)
ROWS = {"users/embeddings": 943, "items/embeddings": 1682}
ROW_BYTES = 32 * 4


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("movielens")
    job = run_job("movielens", folder, workers=2, environ={NETWORK_VARIABLE: GIVEN})
    first, second = job.check().results
    assert first == second
    return first


@pytest.mark.parametrize("phase", [0, 1], ids=["batch-64", "batch-1024"])
@pytest.mark.parametrize("path", ROWS)
def test_alpha_is_what_counting_by_hand_gives(results, phase, path):
    found = results["found"][phase]
    sparsity = found["sparsity"][path]
    # Since the table has last moved.
    counted = np.array(found["counted"][path][-sparsity["steps"] :]) / ROWS[path]
    assert len(counted) == sparsity["steps"] > 5
    np.testing.assert_allclose(
        sparsity["by_worker"], counted[:, :2].mean(0), rtol=1e-12
    )
    np.testing.assert_allclose(sparsity["alpha"], counted[:, :2].mean(), rtol=1e-12)
    np.testing.assert_allclose(sparsity["spread"], counted[:, :2].std(), rtol=1e-6)
    if sparsity["alpha_all"] is not None:
        np.testing.assert_allclose(
            sparsity["alpha_all"], counted[:, 2].mean(), rtol=1e-12
        )


def test_whole_batches_touch_what_is_known_of_the_data(results):
    small, large = results["found"]
    for found, users, items in ((small, 0.064, 0.036), (large, 0.53, 0.33)):
        for path, expected in zip(ROWS, (users, items), strict=True):
            of_batch = np.mean(np.array(found["counted"][path])[:, 2]) / ROWS[path]
            assert of_batch == pytest.approx(expected, rel=0.05)


def test_the_plan_differs_as_the_cost_model_says(results):
    cluster = Cluster(2, 1, Network(1.0).changed(GIVEN))
    plans = []
    for found in results["found"]:
        uses = [Use("dense", 1, 132, gradient="dense")]
        for path, rows in ROWS.items():
            alpha = np.mean(np.array(found["counted"][path])[:, :2]) / rows
            together = np.mean(np.array(found["counted"][path])[:, 2]) / rows
            uses.append(Use(path, rows, ROW_BYTES, alpha, together, together))
        expected = choose(uses, cluster, roads=ROADS)
        plans.append({path: expected[path].road for path in ROWS})
    assert [found["plan"] for found in results["found"]] == plans
    assert plans[0] != plans[1]
    moves = [line for line in results["changes"] if "-> allreduce" in line]
    assert len(moves) == 2
