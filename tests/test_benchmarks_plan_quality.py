"""Which plans are compared with the one that finds itself, and what is said of them."""

import types

import pytest

from benchmarks import partition_search, plan_quality, planned_steps, report
from benchmarks.models import kinds


def test_few_tables_are_sent_by_all_combinations_of_roads():
    plans = planned_steps.plans_to_try({"a": 10, "b": 20})
    assert len(plans) == 9
    assert len({tuple(plan.values()) for plan in plans}) == 9


def test_many_tables_are_split_by_size():
    rows = {f"t{index}": n for index, n in enumerate(kinds.FEATURES)}
    plans = planned_steps.plans_to_try(rows)
    assert len({tuple(plan.values()) for plan in plans}) == len(plans) == 13
    for plan in plans:
        reduced = [rows[path] for path in plan if plan[path] == "allreduce"]
        others = [rows[path] for path in plan if plan[path] != "allreduce"]
        assert not reduced or not others or max(reduced) < min(others)
    assert {road for plan in plans for road in plan.values()} == set(
        planned_steps.ROADS
    )


def cost(road, transfer_s, **calls):
    return {"road": road, "transfer_s": transfer_s, "row_work_s": 1.0, "calls": calls}


def test_calls_are_shared_and_the_dense_one_is_made_anyway():
    costs = [cost("servers", 10.0, ids=0.1), cost("allreduce", 20.0, allreduce=0.5)]
    entry = types.SimpleNamespace(costs=costs)
    found = {"entries": {"a": entry, "b": entry}, "dense": True}
    both = {"a": "servers", "b": "servers"}
    assert planned_steps.predicted_s(both, found) == pytest.approx(22.1)
    split = {"a": "servers", "b": "allreduce"}
    assert planned_steps.predicted_s(split, found) == pytest.approx(32.1)
    found["dense"] = False
    assert planned_steps.predicted_s(split, found) == pytest.approx(32.6)


def test_plans_in_words():
    rows = {"a/e": 10, "b/e": 1000, "c/e": 20, "d/e": 20}
    few = {"a/e": "servers", "b/e": "allreduce"}
    assert plan_quality.in_words({}, {}) == "no table"
    assert plan_quality.in_words(dict.fromkeys(rows, "servers"), rows) == "all servers"
    assert plan_quality.in_words(few, rows) == "a servers, b allreduce"
    many = {**dict.fromkeys(rows, "allreduce"), "b/e": "servers"}
    words = plan_quality.in_words(many, rows)
    assert words == "allreduce 10+20 rows, servers 1,000 rows"


CLUSTER = types.SimpleNamespace(emulated=True)


def test_the_plan_chosen_is_compared_in_the_final():
    found = {
        "chosen": {"a": "servers"},
        "final_ms": [[0, [10.0, 11.0]], [1, [10.0, 10.0]]],
        "plans": [
            {"roads": {"a": "servers"}, "samples_ms": [12.0], "predicted_ms": 3.0},
            {"roads": {"a": "allreduce"}, "samples_ms": [9.0], "predicted_ms": 4.0},
        ],
        "rows": {"a": 5},
        "steps": 48,
        "network": {},
        "alphas": {},
        "changes": [],
    }
    results = report.Report("plan_quality")
    job = planned_steps.Job("language model", "peers", 8, 1, 2, 3)
    plan_quality.add(results, CLUSTER, 200, job, found)
    (check,) = results.checks.values()
    assert check["value"] == pytest.approx(1.05)
    assert [row["is_chosen"] for row in results.rows] == [True, False]
    assert [row["is_fastest"] for row in results.rows] == [False, True]


def test_a_search_is_compared_with_the_sweep():
    found = {
        "chosen": 4,
        "fastest": 2,
        "fit": {
            "constant_s": 0.1,
            "shared_s": 0.0,
            "each_s": 0.01,
            "samples": [[2, 0.12], [4, 0.14]],
        },
        "search_steps": 60,
        "sweep_ms": [[1, [150.0]], [2, [120.0]], [4, [121.0]]],
        "duel_ms": [[4, [121.0]], [2, [110.0]]],
        "losses": [1.0, 0.5],
        "losses_of_search": [1.0, 0.5],
    }
    results = report.Report("partition_search")
    partition_search.add(results, CLUSTER, 200, found)
    values = [check["value"] for check in results.checks.values()]
    assert values == pytest.approx([1.1, 60, 0.0])
    assert [row["searched_ms"] for row in results.rows] == ["", 120.0, 140.0]
    assert results.rows[0]["fitted_ms"] == pytest.approx(110.0)
