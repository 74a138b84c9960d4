"""A process of a job that trains dies or freezes: the job ends, and says why."""

import signal
import time

import pytest

from tests.multiprocess.harness import run_job
from tests.multiprocess.marked import MARK, assert_none_left

pytestmark = pytest.mark.multiprocess

LIMIT_SECONDS = 30.0
SILENCE_SECONDS = 8.0


def _run(folder, fault, culprit, home="auto", servers=0, stall_seconds=0.0):
    """The exit status, and the lines that the package itself has printed."""
    mark = str(folder)
    environ = {
        MARK: mark,
        "KERAS_PARALLAX_SILENCE_SECONDS": f"{SILENCE_SECONDS}",
        "KERAS_PARALLAX_STALL_SECONDS": f"{stall_seconds}",
    }
    job = run_job(
        "fault_training",
        folder,
        fault,
        culprit,
        home,
        workers=2,
        environ=environ,
        servers=servers,
    )
    ended = time.time()
    assert_none_left(mark)
    at = folder / "fault"
    assert at.exists(), f"{job.stdout}\n{job.stderr}"
    assert ended - float(at.read_text()) < LIMIT_SECONDS
    assert job.stderr.count("Traceback") == (fault == "exit")
    ours = [line for line in job.stderr.splitlines() if "keras-parallax: " in line]
    # Another thread may have been in the middle of a line of its own.
    return job.returncode, [" ".join(line.split()) for line in ours]


def test_a_killed_worker_is_named_with_its_step(tmp_path):
    code, lines = _run(tmp_path, "kill", 1)
    assert code == 128 + signal.SIGKILL
    assert lines == [
        "[worker 0] keras-parallax: worker 0 stops: worker 1 died (signal 9) at step 5",
        "keras-parallax: worker 1 died (signal 9) at step 5",
    ]


def test_a_worker_that_exits_does_not_leave_the_others_waiting(tmp_path):
    # It owns the server, so it would be the last to end.
    code, lines = _run(tmp_path, "exit", 0, "dedicated")
    assert code == 3
    assert lines == [
        "[worker 1] keras-parallax: worker 1 stops: worker 0 ended early (it left "
        "while the others went on) at step 5",
        "keras-parallax: worker 0 failed (exit status 3) at step 5",
    ]


def test_a_frozen_worker_is_lost(tmp_path):
    code, lines = _run(tmp_path, "freeze", 1)
    assert code == 1
    lost = "worker 1 is lost (not answering for 8 s) at step 5"
    assert lines == [
        f"[worker 0] keras-parallax: worker 0 stops: {lost}",
        f"keras-parallax: {lost}",
    ]


def test_a_worker_in_an_endless_loop_is_told_of_and_ended(tmp_path):
    code, lines = _run(tmp_path, "loop", 1, stall_seconds=12.0)
    assert code == 1
    news, *ends = lines
    waited = "worker 0 has waited for worker 1 for "
    place = "it is at fault_training.py:"
    assert news.startswith(f"keras-parallax: {waited}")
    assert place in news
    assert ", in endless. The job ends after 12 s of it" in news
    assert len(ends) == 3
    for end in ends:
        assert f"worker 1 is stuck ({waited}12 s; {place}" in end
        assert end.endswith(", in endless) at step 5")


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ("kill-server", 137, "died (signal 9)"),
        ("freeze-server", 1, "is lost (not answering for 8 s)"),
    ],
)
def test_a_lost_server_is_named_with_what_it_held(tmp_path, fault, code, reason):
    found, lines = _run(tmp_path, fault, 0, servers=1)
    assert found == code
    lines = [line for line in lines if "[server 0]" not in line]
    assert len(lines) == 3
    for line in lines:
        assert f"server 0 {reason} at step " in line
        assert "; its address was 127.0.0.1:" in line
        assert line.endswith("; it held 53 of 53 rows of words/embeddings")
