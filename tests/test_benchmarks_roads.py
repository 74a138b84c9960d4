"""What the benchmarks of the sparse road ask for, and what they compare it with."""

import sys

import numpy as np
import pytest

from benchmarks import local_aggregation, many_tables, roads, sparse_steps
from benchmarks.cluster import EmulatedCluster

PLAN = sparse_steps.Plan(("peers",), 1000, 4, (), 2)


@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
@pytest.mark.parametrize("duplicates", [False, True])
def test_ids_are_as_many_as_asked_for_and_the_same_on_every_call(
    distribution, duplicates
):
    case = (distribution, duplicates, 200)
    ids = sparse_steps.draw(PLAN, case, rank=1, step=3)
    np.testing.assert_array_equal(ids, sparse_steps.draw(PLAN, case, 1, 3))
    assert (ids.dtype, ids.shape) == (np.int32, (200,))
    assert 0 <= ids.min() and ids.max() < PLAN.rows
    assert (len(np.unique(ids)) < 200) == duplicates
    assert not np.array_equal(ids, sparse_steps.draw(PLAN, case, rank=2, step=3))


def test_zipf_prefers_the_first_rows():
    for duplicates in (False, True):
        ids = sparse_steps.draw(PLAN, ("zipf", duplicates, 300), 0, 0)
        assert np.mean(ids < 100) > 2 * np.mean(ids >= 900)


def test_least_bytes_counts_each_row_of_others_once_at_both_ends():
    # Row 3 is worker 1's, and 5 too; the rest each has itself.
    wanted = [np.array([3, 3, 5, 2]), np.array([1, 3])]
    row_bytes = 4 * PLAN.width
    expected = 2 * 2 * (4 + 2 * row_bytes)
    least = sparse_steps.least_bytes(PLAN, wanted, lambda ids: ids % 2, [0, 1])
    assert least == expected


def test_least_bytes_of_a_machine_are_those_of_the_union():
    case = ("zipf", True, 500)
    apart = local_aggregation.least_bytes(PLAN, case, 4, together=False)
    union = local_aggregation.least_bytes(PLAN, case, 4, together=True)
    assert 0 < union < apart


def test_a_cluster_is_checked_against_its_own_rows():
    def row(road, milliseconds, ratio):
        case = dict(zip(roads.CASE_KEYS, roads.TARGET_CASE, strict=True))
        bytes_of = {"least_mb": 1.0, "bytes / least": ratio}
        bytes_of["without fixed"] = ratio - 0.1
        return {**case, "road": road, "step_ms": milliseconds, **bytes_of}

    results = roads.report.Report("roads")
    rows = [
        row("peers", 100, 1.15),
        row("dedicated", 200, 1.0),
        row("allgather", 300, 4),
    ]
    roads.check(results, 8, 200, rows)
    held = {name: check["holds"] for name, check in results.checks.items()}
    assert held == {
        "dedicated, 8 hosts, 200 Mbit/s, more ids: most bytes / least": True,
        "dedicated, 8 hosts, 200 Mbit/s, more ids: most without fixed": True,
        "peers, 8 hosts, 200 Mbit/s, more ids: most bytes / least": False,
        "peers, 8 hosts, 200 Mbit/s, more ids: most without fixed": True,
        "all-gather / dedicated, 8 hosts, 200 Mbit/s, 8,000 uniform ids: time": False,
        "all-gather / peers, 8 hosts, 200 Mbit/s, 8,000 uniform ids: time": True,
    }


def test_results_are_drawn(tmp_path):
    rows = [
        {
            "hosts": 4, "rate_mbit": 200, "distribution": "uniform",
            "duplicates": False, "ids": ids, "road": road, "step_ms": ids / 10,
            "mb_per_host": ids / 1000,
        }
        for road in ("peers", "dedicated", "allgather")
        for ids in (200, 2000)
    ]  # fmt: skip
    roads.plot(rows, tmp_path / "made" / "roads.png")
    assert (tmp_path / "made" / "roads.png").stat().st_size > 10_000


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_both_roads_through_homes_move_what_they_must():
    case = ("uniform", True, 400)
    plan = sparse_steps.Plan(("dedicated", "peers"), 2000, 16, (case,), 2)
    with EmulatedCluster(2) as cluster:
        found = roads.run(cluster, plan)
        assert [f[0]["road"] for f in found] == ["dedicated", "peers"]
        least = roads.least_bytes(plan, case, 2)
        for workers in found:
            assert all(worker["step_seconds"] > 0 for worker in workers)
            if cluster.emulated:
                crossed = sum(w["sent_bytes"] + w["received_bytes"] for w in workers)
                assert crossed > least
        peers = found[1]
        assert sum(w["counted_bytes"] for w in peers) == pytest.approx(least)


def test_one_table_and_many_are_the_same_model():
    import keras

    one, many = (many_tables.build(keras, 3, single) for single in (True, False))
    tables = [tuple(w.shape) for w in many.weights if w.shape[0] > 1000]
    rows = many_tables.ROWS_PER_FEATURE
    assert tables == [(rows, many_tables.WIDTH)] * 3
    assert one.count_params() == many.count_params()
