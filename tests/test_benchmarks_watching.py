"""The benchmark of the callback's cost: what it makes of what the workers tell."""

import pytest

from benchmarks import report, watching


@pytest.mark.parametrize(("watched", "holds"), [(100.5, True), (103.0, False)])
def test_the_callback_may_cost_a_hundredth_of_a_step(monkeypatch, watched, holds):
    told = {
        "step_ms": {"alone": [100.0] * 5, "watched": [watched] * 5},
        "epoch_end_ms": [7.0, 9.0, 8.0],
        "numbers": 31,
    }
    monkeypatch.setattr(watching, "run_job", lambda servers, turns: told)
    results = report.Report("watching")
    watching.measure(results, servers=1, turns=5)
    (row,) = results.rows
    assert row["ratio"] == pytest.approx(watched / 100)
    assert (row["epoch_end_ms"], row["numbers_written"]) == (8.0, 31)
    (check,) = results.checks.values()
    assert check["holds"] == holds
