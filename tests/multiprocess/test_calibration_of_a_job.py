"""Workers that measure their network together."""

import pytest

from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess


def test_all_workers_end_with_the_same_figures(tmp_path):
    environ = {"KERAS_PARALLAX_NETWORK": ""}
    results = (
        run_job("calibration", tmp_path, workers=2, environ=environ).check().results
    )
    first, second = results
    assert first["measured"] == second["measured"]
    # Worker 0 alone has kept them, and tells the other.
    assert (first["kept"], second["kept"]) == (True, False)
    assert first["again"] == second["again"] == first["measured"]
    assert first["seconds"] < 10  # Under 2 on a machine with nothing else to do.
    assert first["measured"]["bandwidth_bytes_per_s"] > 1e6
    assert 0 < first["measured"]["call_s"] < 1
