"""Reports of benchmarks: rows, checks, tables of text and JSON."""

import json
import math

import numpy as np
import pytest

from benchmarks import report


def filled():
    made = report.Report("overhead")
    made.add_row(model="dense", seconds=0.01234567, steps=3)
    made.add_row(model="language model", seconds=1234.5, ratio=np.float32(1.5))
    made.add_check("dense ratio", 1.02, "<=", 1.05)
    made.add_check("table ratio", np.float64(1.3), "<=", 1.15)
    return made


@pytest.mark.parametrize(
    ("value", "comparison", "target", "holds"),
    [
        (1, "<=", 1, True),
        (1, "<", 1, False),
        (2, ">=", 1, True),
        (1, ">", 1, False),
        (1, "==", 1, True),
        (math.nan, "<=", 1, False),
        (math.nan, ">=", 1, False),
    ],
)
def test_checks(value, comparison, target, holds):
    made = report.Report("x")
    assert made.add_check("c", value, comparison, target) is holds
    assert made.checks["c"]["holds"] is holds
    assert made.checks["c"]["target"] == f"{comparison} {target}"


def test_checks_refuse_what_would_mislead():
    made = filled()
    with pytest.raises(ValueError, match="comparison='~'"):
        made.add_check("other", 1, "~", 1)
    with pytest.raises(ValueError, match="name='dense ratio'"):
        made.add_check("dense ratio", 1, "<", 1)


def test_text_shows_every_row_and_whether_checks_hold():
    lines = filled().to_text().splitlines()
    assert lines[0] == "overhead"
    assert lines[2].split() == ["model", "seconds", "steps", "ratio"]
    assert lines[4].split() == ["dense", "0.01235", "3"]
    assert "1,234" in lines[5] or "1,235" in lines[5]
    assert lines[-2].endswith("holds")
    assert lines[-1].endswith("DOES NOT HOLD")


def test_finish_prints_and_writes_the_same(tmp_path, capsys):
    path = tmp_path / "deep" / "results.json"
    made = filled()
    made.add_check("missing", math.nan, "<", 1)
    made.finish(path)
    assert made.to_text() in capsys.readouterr().out
    loaded = json.loads(path.read_text())
    assert loaded["name"] == "overhead"
    assert loaded["rows"][1]["ratio"] == 1.5
    assert loaded["checks"]["dense ratio"] == {
        "value": 1.02,
        "target": "<= 1.05",
        "holds": True,
    }
    assert loaded["checks"]["missing"]["value"] is None
    assert loaded["machine"]["cores"] >= 1
    assert {"python", "tensorflow", "keras"} <= set(loaded["versions"])


def test_alternatives_are_measured_in_turns():
    order = []

    def measure(name, value):
        order.append(name)
        return value

    paired = report.compare(
        {"a": lambda: measure("a", 2), "b": lambda: measure("b", 4)}, repeats=3
    )
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert paired.medians == {"a": 2.0, "b": 4.0}
    assert paired.ratio("b", "a") == 2.0


def test_a_ratio_is_of_pairs_not_of_medians():
    paired = report.Paired({"a": [1.0, 10.0, 100.0], "b": [2.0, 20.0, 100.0]})
    assert paired.ratio("b", "a") == 2.0


def test_arguments():
    parser = report.arguments("Measures.\n\nMore words.")
    assert parser.description == "Measures."
    given = parser.parse_args(["--quick", "--json", "out.json"])
    assert given.quick and given.json.name == "out.json"
    assert not parser.parse_args([]).quick


def test_an_empty_table_of_text_has_no_rows():
    assert report.Report("nothing").to_text() == "nothing"
