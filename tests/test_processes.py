"""Children end with their parent, and take what they have started with them."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from keras_parallax.cluster.processes import free_ports, spawn, terminate
from keras_parallax.errors import ClusterError

# Prints the pid of a process that it starts, and waits.
WITH_GRANDCHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(60)\n"
)
STUBBORN = (
    "import signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)


def _python(script):
    return [sys.executable, "-c", script]


def _gone(pid, seconds=5.0):
    """Whether a process ends in time; a zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_terminate_ends_the_children_of_children():
    child = spawn(_python(WITH_GRANDCHILD), pipe=True)
    grandchild = int(child.stdout.readline())
    terminate([child], grace_seconds=2.0)
    assert child.returncode == -signal.SIGTERM
    assert _gone(grandchild)
    child.stdout.close()
    child.stderr.close()


def test_terminate_kills_what_does_not_listen_and_what_is_stopped():
    stubborn = spawn(_python(STUBBORN), pipe=True)
    stopped = spawn(_python("import time; time.sleep(60)"))
    assert stubborn.stdout.readline() == b"ready\n"
    os.kill(stopped.pid, signal.SIGSTOP)
    terminate([stubborn, stopped], grace_seconds=0.3)
    assert stubborn.returncode == -signal.SIGKILL
    assert stopped.returncode == -signal.SIGTERM
    stubborn.stdout.close()
    stubborn.stderr.close()


def test_a_child_that_ends_leaves_no_one_behind():
    script = WITH_GRANDCHILD.replace("time.sleep(60)\n", "")
    child = spawn(_python(script), pipe=True)
    grandchild = int(child.stdout.readline())
    assert child.wait(5.0) == 0
    assert _gone(grandchild)
    child.stdout.close()
    child.stderr.close()


def test_children_end_when_their_parent_is_killed():
    script = (
        "import sys, time\n"
        "from keras_parallax.cluster.processes import spawn\n"
        f"child = spawn([sys.executable, '-c', {WITH_GRANDCHILD!r}], pipe=True)\n"
        "print(child.pid, int(child.stdout.readline()), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        _python(script),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        guard_pids = [p.pid for p in psutil.Process(parent.pid).children()]
        parent.kill()
    assert all(_gone(pid) for pid in [*pids, *guard_pids])


def test_the_log_holds_both_outputs(tmp_path):
    script = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    child = spawn(_python(script), log_path=tmp_path / "logs" / "a.log", name="it")
    assert child.wait(10.0) == 0
    assert child.tail() == "out\nerr"
    assert child.describe() == "it ended early (exit status 0)"


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(ClusterError, match="no-such-program"):
        spawn(["no-such-program"])


def test_free_ports_differ():
    assert len(set(free_ports(5))) == 5
