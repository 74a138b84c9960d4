"""Step time and memory over the size of a table: what is checked, and one size."""

import pytest

from benchmarks import report, table_size


def row(system, rows, over_smallest, worker_gib):
    return {
        "system": system,
        "rows": rows,
        "step_ms": 10 * over_smallest,
        "over smallest": over_smallest,
        "worker_gib": worker_gib,
    }


def test_a_large_table_is_compared_with_a_small_one(tmp_path):
    results = report.Report("table_size")
    large = 1 << 27  # 2 GiB, and its slot as much: a worker's share are 2 GiB.
    results.rows = [
        row("stock", 10_000, 1.0, 0.5),
        row("stock", large, 100.0, 4.5),
        row("peers", 10_000, 1.0, 0.5),
        row("peers", large, 1.1, 2.55),
        row("dedicated", 10_000, 1.0, 0.5),
        row("dedicated", large, 1.5, 0.5),
    ]
    table_size.check(results)
    values = [check["value"] for check in results.checks.values()]
    assert values == pytest.approx([1.1, 0.05, 1.5, 0.0])
    holds = [check["holds"] for check in results.checks.values()]
    assert holds == [True, True, False, True]
    table_size.plot(results.rows, tmp_path / "made" / "sizes.png")
    assert (tmp_path / "made" / "sizes.png").stat().st_size > 10_000


@pytest.mark.multiprocess
def test_a_size_is_measured():
    found = table_size.measure("peers", 1000)
    assert found["rows"] == 1000
    assert found["step_ms"] > 0
    assert found["worker_gib"] <= found["worker_peak_gib"] < 2
