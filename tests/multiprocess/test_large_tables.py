"""A table's initial value can be a file that no worker reads into memory."""

import sys

import numpy as np
import psutil
import pytest

from tests.multiprocess.harness import run_job

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the peak in kilobytes"),
    pytest.mark.skipif(
        psutil.virtual_memory().available < 3 << 30, reason="needs 3 GiB of memory"
    ),
]

ROWS, WIDTH = 1_200_000, 64
MIB = 1 << 20


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file of 300 MB, in which each row has its own number in every column."""
    path = tmp_path_factory.mktemp("large") / "rows.npy"
    rows = np.lib.format.open_memmap(
        path, mode="w+", dtype="float32", shape=(ROWS, WIDTH)
    )
    rows[:] = np.arange(ROWS, dtype="float32")[:, None]
    del rows
    yield path
    path.unlink()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mapped_file_is_sent_to_servers_in_pieces(file, workers, tmp_path):
    job = run_job("large_tables", tmp_path, file, workers=workers, servers=2).check()
    for result in job.results:
        expected = np.repeat(np.array(result["ids"], "float32")[:, None], WIDTH, 1)
        np.testing.assert_array_equal(result["rows"], expected)
        added = result["added_bytes"] / MIB
        assert added < 100, f"{added:.0f} MiB in {result['seconds']:.1f} s"


@pytest.mark.parametrize(
    ("home", "servers", "where"),
    [("dedicated", 2, "servers 0, 1"), ("peers", 0, "workers 0, 1")],
)
def test_a_table_that_fits_nowhere_is_refused_on_every_worker(
    home, servers, where, tmp_path
):
    job = run_job("table_too_large", tmp_path, home, workers=2, servers=servers).check()
    for result in job.results:
        assert result["table"] == "words/embeddings"
        assert "8,589,934,592 x 64 float32, 2,048.0 GiB" in result["message"]
        assert f"the machine of {where}," in result["message"]
