"""A table is whole nowhere: not on a worker, and while it begins not on a server."""

import sys

import numpy as np
import psutil
import pytest

from tests.multiprocess.harness import run_job

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.skipif(
        psutil.virtual_memory().available < 5 << 30, reason="needs 5 GiB of memory"
    ),
]

ROW_BYTES = 64 * 4
MIB = 1 << 20
SERVERS = 2


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Peaks of a job with a table of 2 MiB, and of one with a table of 2 GiB."""

    def run(table_bytes):
        job = run_job(
            "memory",
            tmp_path_factory.mktemp("memory"),
            table_bytes // ROW_BYTES,
            workers=2,
            servers=SERVERS,
        ).check()
        for result in job.results:
            assert np.isfinite(result["loss"]).all()
            assert len(result["server_peak_bytes"]) == SERVERS
            # Both ends of the table were drawn from (-0.05, 0.05), evenly.
            deviation = np.array(result["deviation_of_rows"])
            np.testing.assert_allclose(deviation, 0.1 / 12**0.5, rtol=0.3)
        return job.results

    return run(2 * MIB), run(2048 * MIB)


def test_a_worker_needs_no_memory_for_a_table_on_servers(peaks):
    for small, large in zip(*peaks, strict=True):
        added = large["worker_peak_bytes"] - small["worker_peak_bytes"]
        assert added < 300 * MIB, f"{added / MIB:.0f} MiB"


def test_a_server_holds_its_share_alone(peaks):
    (small, *_), (large, *_) = peaks
    base = max(small["server_peak_bytes"])
    share = 2048 * MIB // SERVERS
    for peak in large["server_peak_bytes"]:
        assert share < peak < 1.3 * share + base, f"{peak / MIB:.0f} MiB"
