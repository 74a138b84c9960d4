"""Child processes that cannot outlive their parent.

Each child leads a process group of its own, so that ending it ends whatever it
has started as well; and each group is under a guard (see `guard.py`), so that
none is left when the parent itself is killed.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from keras_parallax.cluster import guard
from keras_parallax.cluster.addresses import free_port, free_ports
from keras_parallax.cluster.failure import describe_exit
from keras_parallax.errors import ClusterError

__all__ = ["Child", "free_port", "free_ports", "spawn", "terminate"]

_POLL_SECONDS = 0.02
_TAIL_BYTES = 1 << 14


class Child:
    """A process that this one has started; made by `spawn`.

    Attributes:
        name: What users call it, such as `"worker 1"`.
        pid: Its process id, and its group's.
        log_path: The file its output goes to, if any.
    """

    def __init__(
        self, name: str, popen: subprocess.Popen, log_path: pathlib.Path | None
    ):
        self.name = name
        self.pid = popen.pid
        self.log_path = log_path
        self._popen = popen
        self._reaped = False
        self._lock = threading.Lock()

    @property
    def stdout(self) -> IO[bytes] | None:
        """Read end of its standard output, when it was started with a pipe."""
        return self._popen.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """Read end of its standard error, when it was started with a pipe."""
        return self._popen.stderr

    @property
    def returncode(self) -> int | None:
        """As `subprocess` gives it; None while it runs or was not polled."""
        return self._popen.returncode

    def poll(self) -> int | None:
        """Its return code, or None while it runs.

        Once it has ended, what it has started and left behind is ended too.
        """
        with self._lock:
            code = self._popen.poll()
            if code is not None and not self._reaped:
                self._reaped = True
                self._kill_group(signal.SIGKILL)
                _Guard.shared().release(self.pid)
        return code

    def wait(self, timeout_seconds: float) -> int | None:
        """Polls until it has ended or the time is over."""
        deadline = time.monotonic() + timeout_seconds
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return code

    def signal(self, number: int) -> None:
        """Sends a signal to it and to what it has started."""
        if self.poll() is None:
            self._kill_group(number)

    def tail(self) -> str:
        """The end of its log, for an error message; empty without a log."""
        if self.log_path is None or not self.log_path.exists():
            return ""
        with open(self.log_path, "rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    def describe(self) -> str:
        """What has become of it, in words."""
        code = self.poll()
        if code is None:
            return f"{self.name} runs (process {self.pid})"
        what, reason = describe_exit(code)
        return f"{self.name} {what} ({reason})"

    def _kill_group(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # Nobody is left in the group.
            pass


def spawn(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    log_path: str | os.PathLike | None = None,
    name: str | None = None,
    pipe: bool = False,
) -> Child:
    """Starts a process that ends, with all it starts, when this one ends.

    Args:
        command: Program and arguments.
        env: Its whole environment; this process's by default.
        log_path: File for both its outputs.
        name: What users call it; the program's name by default.
        pipe: Give its outputs as `stdout` and `stderr` of the child. Without
            this and `log_path` they are this process's own.

    Raises:
        ClusterError: The program cannot be started.
    """
    path = None if log_path is None else pathlib.Path(log_path)
    keeper = _Guard.shared()
    out: IO[bytes] | int | None = subprocess.PIPE if pipe else None
    err = out
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        out, err = open(path, "wb"), subprocess.STDOUT
    try:
        popen = subprocess.Popen(
            list(command),
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    except OSError as error:
        raise ClusterError(
            f"{name or command[0]} could not be started: {error}. "
            f"Received: command={list(command)}"
        ) from error
    finally:
        if path is not None:
            out.close()  # type: ignore[union-attr]
    keeper.add(popen.pid)
    return Child(name or os.path.basename(command[0]), popen, path)


def terminate(processes: Iterable[Child], grace_seconds: float = 5.0) -> None:
    """Ends processes: SIGTERM to each group, then SIGKILL to those that stay.

    Args:
        processes: What `spawn` has returned; those that have ended are skipped.
        grace_seconds: Time between the two signals.
    """
    processes = list(processes)
    for child in processes:
        child.signal(signal.SIGTERM)
        # A stopped process does not see SIGTERM before it goes on.
        child.signal(signal.SIGCONT)
    deadline = time.monotonic() + grace_seconds
    for child in processes:
        child.wait(max(0.0, deadline - time.monotonic()))
    for child in processes:
        child.signal(signal.SIGKILL)
    for child in processes:
        child.wait(10.0)


class _Guard:
    """This process's guard, started with the first child."""

    _instance: "_Guard | None" = None
    _instance_lock = threading.Lock()

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(self.owner)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @classmethod
    def shared(cls) -> "_Guard":
        """The guard of this process; a fork of it gets one of its own."""
        with cls._instance_lock:
            if cls._instance is None or cls._instance.owner != os.getpid():
                cls._instance = cls()
            return cls._instance

    def add(self, group: int) -> None:
        self._order(f"+{group}\n")

    def release(self, group: int) -> None:
        self._order(f"-{group}\n")

    def _order(self, order: str) -> None:
        try:
            # One small write to a pipe is never split.
            os.write(self._popen.stdin.fileno(), order.encode())  # type: ignore
        except OSError:
            # Someone has killed the guard: the lifeline is still there.
            pass
