"""The plan: plain data, shown as a table, found by path."""

import json

import pytest

from keras_parallax.plan.plan import Entry, Plan
from keras_parallax.roads import ALLREDUCE, SERVERS


def entry(variable, **changed):
    given = {
        "variable": variable,
        "shape": (10, 4),
        "dtype": "float32",
        "gradient": "unknown",
        "road": SERVERS,
        "partitions": 3,
        "home": "in_process",
        "update": "",
        "reason": "weights of an Embedding are looked up by row",
    }
    return Entry(**{**given, **changed})


@pytest.fixture
def plan():
    plan = Plan()
    plan.add("a", entry("lm/embedding/embeddings"))
    plan.add("b", entry("lm/dense/kernel", road=ALLREDUCE, home="workers"))
    plan.add("c", entry("lm/other/kernel", road=ALLREDUCE, shape=()))
    return plan


def test_iterates_in_order_of_creation(plan):
    assert len(plan) == 3
    assert [e.variable for e in plan] == [
        "lm/embedding/embeddings",
        "lm/dense/kernel",
        "lm/other/kernel",
    ]


def test_change_touches_one_entry_and_ignores_strangers(plan):
    plan.change("a", gradient="sparse")
    plan.change("unheard of", gradient="dense")
    assert [e.gradient for e in plan] == ["sparse", "unknown", "unknown"]
    assert plan.get("a").gradient == "sparse"


@pytest.mark.parametrize("path", ["lm/embedding/embeddings", "embeddings"])
def test_found_by_path_or_its_end(plan, path):
    assert plan[path].variable == "lm/embedding/embeddings"


def test_a_full_path_wins_over_an_end():
    plan = Plan()
    plan.add("a", entry("kernel"))
    plan.add("b", entry("dense/kernel"))
    assert plan["kernel"].variable == "kernel"


@pytest.mark.parametrize(
    ("path", "found"), [("kernel", 2), ("missing", 0), ("mbeddings", 0)]
)
def test_lookup_of_none_or_several_says_which_there_are(plan, path, found):
    with pytest.raises(KeyError, match=f"'{path}', which names {found} of") as caught:
        plan[path]
    assert "lm/dense/kernel" in str(caught.value)


def test_json_round_trip(plan):
    loaded = [
        Entry(**{**fields, "shape": tuple(fields["shape"])})
        for fields in json.loads(plan.to_json())
    ]
    assert loaded == list(plan)


def test_printed_columns_line_up(plan):
    plan.change("a", alpha=0.0184, predicted_bytes=12_345, predicted_seconds=0.0021)
    header, rule, *rows = str(plan).splitlines()[:5]
    starts = [i for i, c in enumerate(rule) if c == "-" and rule[i - 1 : i] != "-"]
    assert [header[i:].split()[0] for i in starts] == header.split()
    for row, line in zip(rows, plan, strict=True):
        assert all(row[max(0, i - 2) : i].isspace() for i in starts[1:] if i < len(row))
        assert row.startswith(line.variable)
    assert rows[0].split()[1:] == (
        "10x4 unknown 0.0184 in_process x3 12,345 2.1 ms".split()
    )
    assert "scalar" in rows[2]


def test_print_fits_a_terminal_and_tells_why(plan):
    plan.change("a", reason="a worker touches 1.8% of its rows in a step; " * 4)
    lines = str(plan).splitlines()
    assert all(len(line) <= 110 for line in lines)
    told = " ".join(" ".join(lines).split())
    assert "lm/embedding/embeddings: a worker touches 1.8%" in told


def test_a_moved_variable_stays_where_it_stood(plan):
    plan.add("new", entry("lm/dense/kernel", gradient="sparse"))
    plan.replace("new", "b")
    assert [e.variable for e in plan][1] == "lm/dense/kernel"
    assert plan.get("b").gradient == "sparse"
    assert len(plan) == 3


def test_where_names_home_and_partitions_on_servers_alone(plan):
    assert plan.get("a").where == "servers (in_process, 3 partitions)"
    assert plan.get("b").where == "allreduce"


def test_an_empty_plan_prints():
    assert "variable" in str(Plan())


def test_measured_time_is_shown_where_there_is_some(plan):
    assert "took" not in str(plan)
    plan.change("a", measured_bytes=12_345, measured_seconds=0.0021)
    header, _, first, second = str(plan).splitlines()[:4]
    assert header.split()[-2:] == ["moved", "took"]
    assert first.split()[-3:] == ["12,345", "2.1", "ms"]
    assert second.split()[-1] == "allreduce"
    assert json.loads(plan.to_json())[0]["measured_seconds"] == 0.0021
