"""`keras-parallax run`, with workers that join the lifeline and do little else."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

pytestmark = pytest.mark.multiprocess

# A worker does what the argument says, by rank; it never imports TensorFlow.
WORKER = """
import os, signal, subprocess, sys, time
from keras_parallax.cluster.lifeline import Member, install_excepthook

rank = int(os.environ["HOROVOD_RANK"])
member = Member.join(os.environ["KERAS_PARALLAX_LIFELINE"], "worker", rank)
install_excepthook(member)
member.at(12, 13, "at train.py:1")

class HorovodInternalError(RuntimeError): pass

def wait_for_ever():
    time.sleep(120)

def wait_for_a_death():
    # As Horovod does: the others learn of a death at once.
    while member.lost is None:
        time.sleep(0.01)
    raise HorovodInternalError("Horovod has been shut down")

def leave():
    member.leave()
    print("rank", rank, "leaves", flush=True)

def tell_step():
    # Any message carries it; of this one it is known when it has been read.
    member._tell({"type": "step"})

def kill():
    tell_step()
    os.kill(os.getpid(), signal.SIGKILL)

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def say_pids():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    print("ready", os.getpid(), child.pid, flush=True)
    wait_for_ever()

exec(sys.argv[1 + rank])
"""


@pytest.fixture
def launch(tmp_path):
    """Starts the launcher; at the end of the test nothing of it may be left."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    mark = uuid.uuid4().hex
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "KERAS_PARALLAX_GRACE_SECONDS": "1",
        "KERAS_PARALLAX_TEST_MARK": mark,
    }
    started = []

    def start(*workers, options=(), settings=()):
        command = [sys.executable, "-m", "keras_parallax.cli.main", "run"]
        command += ["-np", str(len(workers)), *options, "--"]
        command += [sys.executable, str(script), *workers]
        started.append(
            subprocess.Popen(
                command,
                env={k: v for k, v in {**env, **dict(settings)}.items() if v},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)
    left = _marked(mark)
    deadline = time.monotonic() + 5.0
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = _marked(mark)
    for process in left:
        process.kill()
    assert not left


def _marked(mark):
    """The processes, of any generation, that a launcher of this test started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("KERAS_PARALLAX_TEST_MARK") == mark:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def _finish(process, seconds=25):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def test_a_good_job_ends_with_0_and_leaves_logs(launch, tmp_path):
    log_dir = tmp_path / "logs"
    code, out, err = _finish(
        launch("leave()", "leave()", options=["--log-dir", str(log_dir)])
    )
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "[worker 1] rank 1 leaves",
        "rank 0 leaves",
    ]
    assert (log_dir / "worker-1.log").read_text() == "rank 1 leaves\n"


def test_a_single_worker_has_no_prefix(launch):
    assert _finish(launch("leave()"))[:2] == (0, "rank 0 leaves\n")


@pytest.mark.parametrize(("given", "level"), [("", "1"), ("0", "0")])
def test_tensorflow_says_how_it_was_built_where_it_is_asked_to(launch, given, level):
    say = "print(os.environ['TF_CPP_MIN_LOG_LEVEL']); leave()"
    code, out, _ = _finish(launch(say, settings={"TF_CPP_MIN_LOG_LEVEL": given}))
    assert (code, out.splitlines()[0]) == (0, level)


@pytest.mark.parametrize("given", ["", "5"])
def test_workers_share_the_cores(launch, given):
    say = "print('threads', os.environ['TF_NUM_INTRAOP_THREADS']); leave()"
    job = launch(say, say, settings={"TF_NUM_INTRAOP_THREADS": given})
    code, out, _ = _finish(job)
    expected = given or max(1, len(os.sched_getaffinity(0)) // 2)
    assert code == 0
    assert out.count(f"threads {expected}\n") == 2


def test_a_killed_worker_is_named_and_ends_the_job(launch):
    start = time.monotonic()
    code, _, err = _finish(launch("wait_for_ever()", "kill()"))
    assert time.monotonic() - start < 10
    assert code == 128 + signal.SIGKILL
    assert err.splitlines() == [
        "[worker 0] keras-parallax: worker 0 stops: worker 1 died (signal 9) at "
        "step 12",
        "keras-parallax: worker 1 died (signal 9) at step 12",
    ]


def test_a_crash_in_native_code_tells_where_it_was(launch):
    crash = (
        "import ctypes, resource; tell_step(); "
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); ctypes.string_at(0)"
    )
    code, _, err = _finish(launch("wait_for_ever()", crash))
    assert code == 128 + signal.SIGSEGV
    lines = err.splitlines()
    assert "[worker 1] Fatal Python error: Segmentation fault" in lines
    assert any("ctypes/__init__.py" in line for line in lines)
    assert lines[-1] == "keras-parallax: worker 1 died (signal 11, SIGSEGV) at step 12"


def test_an_exception_is_shown_once_and_first(launch):
    code, _, err = _finish(launch("wait_for_a_death()", "raise ValueError('bad')"))
    assert code == 1
    lines = err.splitlines()
    assert lines[0] == "[worker 1] Traceback (most recent call last):"
    assert err.count("Traceback") == 1
    assert lines.count("[worker 1] ValueError: bad") == 1
    assert lines[-1] == (
        "keras-parallax: worker 1 failed (exit status 1) at step 12: ValueError: bad"
    )


def test_the_exit_status_is_the_failed_workers_own(launch):
    code, _, err = _finish(
        launch("leave()", "wait_for_ever()", "tell_step(); sys.exit(3)")
    )
    assert code == 3
    assert err.splitlines()[-1] == (
        "keras-parallax: worker 2 failed (exit status 3) at step 12"
    )


def test_a_stopped_worker_does_not_hold_up_the_end(launch):
    start = time.monotonic()
    code, _, err = _finish(launch("stop()", "raise ValueError('bad')"))
    assert time.monotonic() - start < 12
    assert code == 1
    assert "worker 1 failed (exit status 1)" in err.splitlines()[-1]


def test_a_consequence_without_a_cause_is_shown_after_all(launch):
    error = "raise HorovodInternalError('Horovod has been shut down')"
    code, _, err = _finish(launch(error, "wait_for_ever()"))
    assert code == 1
    assert "Traceback" in err
    assert "worker 0 failed (exit status 1) at step 12" in err.splitlines()[-1]


def test_a_worker_that_leaves_the_others_in_the_lurch_is_named(launch):
    error = "time.sleep(5); raise HorovodInternalError('Horovod has been shut down')"
    code, _, err = _finish(launch(error, "leave()"))
    assert code == 1
    lines = err.splitlines()
    said = "worker 1 ended early (it left while the others went on) at step 12"
    assert lines[:2] == [
        f"[worker 0] keras-parallax: worker 0 stops: {said}",
        "[worker 0] Traceback (most recent call last):",
    ]
    assert lines[-1] == f"keras-parallax: {said}"


def _pids_of(process):
    line = process.stdout.readline()
    assert "ready" in line, line
    return [int(pid) for pid in line.split()[-2:]]


def test_nothing_outlives_a_killed_launcher(launch):
    process = launch("say_pids()", "say_pids()")
    pids = _pids_of(process) + _pids_of(process)
    process.kill()
    process.wait(timeout=5)
    deadline = time.monotonic() + 5.0
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "name", "status"),
    [(signal.SIGINT, "SIGINT", 130), (signal.SIGTERM, "SIGTERM", 143)],
)
def test_a_signal_is_handed_on(launch, number, name, status):
    process = launch("say_pids()", "say_pids()")
    _pids_of(process), _pids_of(process)
    process.send_signal(number)
    code, _, err = _finish(process)
    assert code == status
    assert err.splitlines()[-1] == f"keras-parallax: stopped by {name}"


def test_a_second_signal_ends_at_once(launch):
    deaf = "signal.signal(signal.SIGINT, signal.SIG_IGN); say_pids()"
    process = launch(deaf, deaf)
    _pids_of(process), _pids_of(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert _finish(process)[0] == 130
    assert time.monotonic() - start < 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-np", "0", "--", "python"], "-np is a number of processes, 1 or more"),
        (["-np", "x", "--", "python"], "invalid int value: 'x'"),
        (["--servers", "-1", "--", "python"], "--servers is a number of processes"),
        (["-np", "2"], "There is no command to run"),
        (["-np", "2", "--", "no-such-program"], "'no-such-program' is not found"),
    ],
)
def test_bad_arguments_get_one_sentence_and_status_2(arguments, expected, capsys):
    from keras_parallax.cli.main import main

    try:
        status = main(["run", *arguments])
    except SystemExit as end:
        status = end.code
    err = capsys.readouterr().err
    assert status == 2
    assert expected in err
    assert len(err.splitlines()) == 1


def test_the_launcher_and_its_commands_start_without_tensorflow():
    script = (
        "import sys, keras_parallax.cli.main\n"
        "print({'tensorflow', 'keras', 'horovod', 'numpy'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_a_server_serves_until_the_workers_have_left(launch, tmp_path):
    say = "print(os.environ['KERAS_PARALLAX_SERVERS'], flush=True); leave()"
    options = ["--servers", "1", "--log-dir", str(tmp_path)]
    code, out, err = _finish(launch(say, options=options), 60)
    assert (code, err) == (0, "")
    address = out.splitlines()[0]
    assert f"ready at {address}" in (tmp_path / "server-0.log").read_text()


def test_a_killed_server_is_named_and_ends_the_job(launch):
    find = (
        "import psutil; p = psutil.Process().parent(); "
        "s = [c for c in p.children() if 'serve' in ' '.join(c.cmdline())]; "
        "tell_step(); s[0].kill(); wait_for_ever()"
    )
    code, _, err = _finish(launch(find, "wait_for_ever()", options=["--servers=1"]), 60)
    assert code == 137
    assert err.splitlines()[-1].startswith(
        "keras-parallax: server 0 died (signal 9) at step 12; its address was 127."
    )
