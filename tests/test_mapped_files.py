"""Pages of mapped files are given back, and nothing else changes."""

import pathlib
import re
import sys

import numpy as np
import pytest

from keras_parallax.servers.mapped_files import release_pages

SIZE_BYTES = 64 << 20


def resident_file_bytes():
    """What this process holds of files."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"RssFile:\s+(\d+) kB", status)[1]) << 10


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(b"\1" * SIZE_BYTES)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("view", [lambda m: m, lambda m: np.asarray(m)[5:].T])
def test_what_was_read_is_given_back_and_can_be_read_again(path, view):
    mapped = np.memmap(path, np.uint8, "r")
    before = resident_file_bytes()
    assert mapped.sum() == SIZE_BYTES
    assert resident_file_bytes() - before > SIZE_BYTES / 2
    release_pages(view(mapped))
    assert resident_file_bytes() - before < SIZE_BYTES / 8
    assert mapped.sum() == SIZE_BYTES


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_changes_are_kept(path, mode):
    mapped = np.memmap(path, np.uint8, mode)
    mapped[::4096] = 7
    release_pages(mapped)
    assert np.all(mapped[::4096] == 7) and np.all(mapped[1::4096] == 1)


def test_other_arrays_stay_as_they_are():
    array = np.arange(10)
    release_pages(array[2:])
    np.testing.assert_array_equal(array, np.arange(10))
