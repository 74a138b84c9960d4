"""The plan finds itself, and follows what the training does."""

import numpy as np
import pytest

from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess

# Given, so that the plan does not depend on the machine that this runs on.
NETWORK = {
    "KERAS_PARALLAX_NETWORK": "bandwidth=100Mbit,latency=0.1ms,"
    "local_bandwidth=100Mbit,local_latency=0.1ms,call=20ms,memory=4GB"
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapting")
    found = {}
    for may_adapt in ("yes", "no"):
        job = run_job("adapting", folder, may_adapt, workers=3, environ=NETWORK)
        results = job.check().results
        for result in results:
            # Each worker has moved other rows.
            moved = result["plan"][0].pop("measured_bytes")
            assert may_adapt == "no" or moved > 0
        assert results[0] == results[1] == results[2]
        with np.load(folder / f"{may_adapt}.npz") as saved:
            found[may_adapt] = results[0], [saved[key] for key in saved.files]
    return found


def test_a_weight_of_any_layer_becomes_a_table_when_its_rows_are_looked_up(runs):
    result, _ = runs["yes"]
    assert any(
        "gathered/rows: allreduce -> servers" in line for line in result["changes"]
    )
    line = result["plan"][0]
    assert line["variable"] == "gathered/rows"
    assert line["gradient"] == "sparse"
    assert line["update"] == "lazy"


def test_the_road_follows_the_batch_size_and_does_not_flap(runs):
    result, _ = runs["yes"]
    first, second, third = result["places"]
    assert first == "allgather"
    assert second == third == "allreduce"
    to_dense = [line for line in result["changes"] if "-> allreduce" in line]
    assert len(to_dense) == 1


def test_moving_changes_nothing_of_the_result(runs):
    _, moved = runs["yes"]
    _, stayed = runs["no"]
    for found, expected in zip(moved, stayed, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_alpha_is_what_counting_by_hand_gives(runs):
    result, _ = runs["yes"]
    assert len(result["sparsity"]) == 3
    # What came before a move is counted up to it.
    first = result["sparsity"][0]
    found = first["found"]
    np.testing.assert_allclose(found["by_worker"], first["expected"], rtol=0.02)
    last = result["sparsity"][-1]
    np.testing.assert_allclose(last["found"]["by_worker"], last["expected"], rtol=1e-6)


def test_plan_has_what_every_road_would_cost(runs):
    result, _ = runs["yes"]
    line = result["plan"][0]
    roads = {cost["road"]: cost["seconds"] for cost in line["costs"]}
    assert set(roads) == {"servers", "allgather", "allreduce"}
    assert min(roads, key=roads.get) == line["road"] == "allreduce"
    assert line["predicted_bytes"] > 0


def test_the_road_follows_the_network(tmp_path):
    found = {}
    for when in ("at-once", "later"):
        (folder := tmp_path / when).mkdir()
        job = run_job("network_changes", folder, when, workers=2).check()
        assert job.results[0] == job.results[1]
        found[when] = job.results[0]
    # Fast as it is at first, the table is not worth a server's three exchanges.
    for result in found.values():
        assert result["changes"][0].startswith("words/embeddings: servers")
        assert "-> allreduce" in result["changes"][0]
    assert found["later"]["measured"] == 1
    assert len(found["later"]["changes"]) == 1
    assert "words/embeddings: allreduce -> " in found["at-once"]["changes"][1]
    assert found["at-once"]["loss"] == pytest.approx(found["later"]["loss"], rel=1e-5)


def test_what_was_chosen_with_nothing_known_is_not_clung_to(tmp_path):
    job = run_job("network_changes", tmp_path, "tie", workers=2).check()
    assert job.results[0] == job.results[1]
    (change,) = job.results[0]["changes"]
    assert change.startswith("words/embeddings: servers")
    assert "-> allreduce" in change


def test_rows_that_are_needed_late_travel_apart_where_that_pays_off(tmp_path):
    job = run_job("needed_later", tmp_path, workers=2).check()
    assert job.results[0] == job.results[1]
    slow, fast = job.results[0]["slow"], job.results[0]["fast"]
    # Two lookups in one table and one in each of the others.
    assert fast["pulls"][-1] == 4
    assert fast["changes"] == []
    assert slow["pulls"][-3:] == [4, 1, 3]
    assert len(slow["changes"]) == 2
    for change in slow["changes"]:
        assert "its rows travel while the step computes" in change
    assert slow["loss"] == pytest.approx(fast["loss"], rel=1e-5)


def test_a_road_that_the_user_said_stays_until_it_is_given_back(tmp_path):
    job = run_job("network_changes", tmp_path, "at-once", "told", workers=2).check()
    assert job.results[0] == job.results[1]
    result = job.results[0]
    where, said, given_back = result["lines"]
    assert where == "allreduce"
    assert said == "reroute() says so"
    assert given_back.startswith("reroute() gave it back to the plan")
    first, second = result["changes"]
    assert "servers" in first and "-> allreduce (reroute() says so)" in first
    assert "words/embeddings: allreduce -> " in second
