"""Each push is applied as it comes, and nobody runs too far ahead."""

import json

import pytest

from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess


def run(tmp_path, **arguments):
    job = run_job("asynchrony", tmp_path, json.dumps(arguments), workers=3, servers=2)
    return job.check().results


@pytest.mark.parametrize("max_staleness", [1, 4])
def test_no_worker_is_too_far_ahead_and_no_push_is_lost(tmp_path, max_staleness):
    results = run(tmp_path, synchronous=False, max_staleness=max_staleness)
    leads = [result["max_lead_steps"] for result in results]
    assert max(leads) <= max_staleness
    # The late worker is waited for, but not at every step. It may take a step between
    # the others' last permission and their look at the clock.
    assert max(leads) >= max_staleness - 1
    for result in results:
        assert result["home"] == "AsynchronousHome"
        assert result["table_error"] < 1e-3
        assert result["scale_error"] < 1e-3
        assert result["loss"] == results[0]["loss"]


def test_without_a_bound_no_push_is_lost(tmp_path):
    for result in run(tmp_path, synchronous=False):
        assert result["max_lead_steps"] is None
        assert result["table_error"] < 1e-3
        assert result["scale_error"] < 1e-3


def test_no_staleness_is_synchronous(tmp_path):
    for result in run(tmp_path, synchronous=False, max_staleness=0):
        assert result["home"] == "DedicatedHome"
        assert result["table_error"] < 1e-3
        assert result["scale_error"] < 1e-3
