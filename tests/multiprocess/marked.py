"""Finds every process of a job, of any generation, by a mark in its environment."""

import contextlib
import time

import psutil

MARK = "KERAS_PARALLAX_TEST_MARK"


def living(mark):
    """The processes that carry `mark` and have not ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def assert_none_left(mark, seconds=5.0):
    """Fails, and ends them, if processes that carry `mark` are left."""
    deadline = time.monotonic() + seconds
    while (left := living(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = [" ".join(process.cmdline()) for process in left if process.is_running()]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert not lines
