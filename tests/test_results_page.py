"""The page of results says what the benchmarks' files say."""

import importlib.util
import json
import pathlib

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"


@pytest.fixture
def hook(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("hook", DOCS / "results_hook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DOCS", tmp_path)
    (tmp_path / "results").mkdir()
    return module


def test_figures_come_from_the_files(hook, tmp_path):
    report = {
        "name": "overhead",
        "rows": [
            {"model": "a|b", "step_ms": 1234.56, "rows": 2_000},
            {"model": "dense", "step_ms": 0.012345, "rows": 3},
            {"other": None},
        ],
        "checks": {"ratio": {"value": 1.25, "target": "<= 1.05", "holds": False}},
        "machine": {"cores": 2},
        "versions": {"python": "3.11"},
        "date": "2026-01-02T03:04:05+00:00",
    }
    (tmp_path / "results" / "overhead.json").write_text(json.dumps(report))
    page = hook.on_page_markdown(f"before\n\n{hook.PLACE}\n", page=None)
    assert page.startswith("before\n\n## Overhead\n\nStep time of one worker")
    assert "| ratio | 1.25 | <= 1.05 | **does not hold** |" in page
    assert "| model | step (ms) | rows |\n| --- | ---: | ---: |" in page
    assert "| a\\|b | 1,235 | 2,000 |\n| dense | 0.01235 | 3 |" in page
    assert "Measured on 2026-01-02 (cores: 2; python 3.11)." in page
    assert "img/" not in page


def test_a_column_that_says_nothing_is_left_out(hook):
    rows = [
        {"system": "ours", "least_mb": 4.5, "roads": "", "examples_per_s": 210},
        {"system": "horovod", "least_mb": "", "roads": None, "examples_per_s": 226},
    ]
    assert hook.table(rows).splitlines() == [
        "| system | least (MB) | examples per s |",
        "| --- | ---: | ---: |",
        "| ours | 4.5 | 210 |",
        "| horovod |  | 226 |",
    ]
    assert hook.table([{"roads": ""}]) == ""


def test_a_page_without_the_place_stays_as_it_is(hook):
    assert hook.on_page_markdown("text", page=None) == "text"


def test_no_files_are_said(hook):
    assert "`make bench`" in hook.on_page_markdown(hook.PLACE, page=None)


def test_the_page_has_the_place(hook):
    assert hook.PLACE in (DOCS / "results.md").read_text("utf-8")


def test_one_benchmarks_results_stand_on_any_page(hook, tmp_path):
    report = {"name": "roads", "rows": [{"rows": 7}], "checks": {}}
    (tmp_path / "results" / "roads.json").write_text(json.dumps(report))
    page = hook.on_page_markdown("before\n\n<!-- results: roads -->\n", page=None)
    assert page.startswith("before\n\n")
    assert "| 7 |" in page
    assert "## Roads" not in page
    missing = hook.on_page_markdown("<!-- results: nothing -->", page=None)
    assert "`make bench`" in missing
