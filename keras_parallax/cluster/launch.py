"""Starts a job's servers and workers on this machine, and supervises them.

The launcher holds three things that a job has once: the `Coordinator`, Horovod's
rendezvous, and the processes. The first process that fails decides how the job
ends; what fails after it is taken to be its consequence.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from keras_parallax.cluster import rendezvous
from keras_parallax.cluster.coordinator import Coordinator
from keras_parallax.cluster.failure import EXIT_LOST, exit_code
from keras_parallax.cluster.lifeline import grace_seconds
from keras_parallax.cluster.output import Relay, Screen
from keras_parallax.cluster.processes import Child, free_ports, spawn, terminate
from keras_parallax.cluster.topology import (
    LIFELINE_VARIABLE,
    SERVERS_VARIABLE,
    assign_slots,
)
from keras_parallax.errors import ClusterError

# A worker takes its own grace first: the launcher gives it time to say so.
_MARGIN_SECONDS = 1.0
_TERMINATE_SECONDS = 3.0
# How long workers may take to stop after Ctrl-C or SIGTERM.
_INTERRUPT_SECONDS = 30.0
_POLL_SECONDS = 0.05
# How long a terminal that does not keep up may hold up the news of a failure.
_CATCH_UP_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class JobSpec:
    """What to launch.

    Attributes:
        command: Program and arguments of each worker.
        workers: Number of workers.
        servers: Number of server processes; 0 leaves it to the strategy.
        log_dir: Folder for a log of each process, or None.
        start_timeout_seconds: How long the servers may take to be ready.
        environ: The environment to add to; `os.environ` by default.
    """

    command: Sequence[str]
    workers: int = 1
    servers: int = 0
    log_dir: str | os.PathLike | None = None
    start_timeout_seconds: float = 120.0
    environ: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: dict(os.environ)
    )


def server_command(addresses: Sequence[str], index: int) -> list[str]:
    """The command line of server `index` of those at `addresses`."""
    module = "keras_parallax.servers.serve"
    where = ["--addresses", ",".join(addresses), "--index", str(index)]
    return [sys.executable, "-m", module, *where]


def run(job: JobSpec) -> int:
    """Launches a job and returns its exit code when all its processes have ended.

    Must be called in the main thread: it handles SIGINT and SIGTERM meanwhile.

    Args:
        job: What to launch.

    Returns:
        0; or the exit code of the process that failed first, 128 + n where
        signal n has ended it; or 128 + n when this process received signal n.

    Raises:
        ClusterError: The job could not be started.
    """
    launcher = _Launcher(job)
    with launcher.signals_handled():
        try:
            return launcher.run()
        finally:
            launcher.close()


class _Launcher:
    def __init__(self, job: JobSpec):
        self._job = job
        self._children: dict[tuple[str, int], Child] = {}
        self._relays: dict[tuple[str, int], list[Relay]] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._wake = threading.Event()
        self._signal: int | None = None
        self._signalled: set[tuple[str, int]] = set()
        self._signal_at = 0.0
        self._urgent = False
        self._resources = contextlib.ExitStack()
        self._out = Screen(sys.stdout.buffer)
        self._err = Screen(sys.stderr.buffer, beside=self._out)
        self._coordinator = Coordinator(
            expected_workers=job.workers,
            explain_seconds=1.0,
            on_event=self._on_event,
        )

    @contextlib.contextmanager
    def signals_handled(self) -> Iterator[None]:
        """Turns SIGINT, SIGTERM and SIGHUP into an orderly end of the job."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # A signal that is ignored, as under nohup, stays so.
        heeded = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]
        before = {n: signal.signal(n, self._on_signal) for n in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self) -> int:
        self._coordinator.start()
        self._resources.callback(self._coordinator.stop)
        hosts = ["127.0.0.1"] * self._job.workers
        address = self._start_rendezvous(hosts)
        servers = self._start_servers()
        if self._stopping() or not self._wait_for_servers():
            return self._verdict()
        self._start_workers(hosts, servers, address)
        self._supervise()
        return self._verdict()

    def close(self) -> None:
        """Leaves nothing running and nothing open."""
        self._terminate()
        for key in self._relays:
            self._drain(key, 2.0)
        self._resources.close()

    def _environment(self) -> dict[str, str]:
        """What servers and workers have in common; what the user has set, stays."""
        return {
            # Without this a worker's output would come in blocks, long after.
            "PYTHONUNBUFFERED": "1",
            # A crash in native code would leave nothing that tells where.
            "PYTHONFAULTHANDLER": "1",
            **self._job.environ,
            LIFELINE_VARIABLE: self._coordinator.address,
        }

    def _start_servers(self) -> list[str]:
        ports = free_ports(self._job.servers)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        env = self._environment()
        for index in range(len(addresses)):
            command = server_command(addresses, index)
            # TensorFlow prints a page when it starts: it is shown when a server
            # fails, and is in its log.
            self._spawn("server", index, command, env)
        return addresses

    def _wait_for_servers(self) -> bool:
        """Whether all servers have joined; an error is raised if they are late."""
        deadline = time.monotonic() + self._job.start_timeout_seconds
        while True:
            if self._poll() or self._stopping():
                return False
            ready = {m.index for m in self._coordinator.members()}
            late = [i for i in range(self._job.servers) if i not in ready]
            if not late:
                return True
            if time.monotonic() > deadline:
                for index in late:
                    self._show_tail(("server", index))
                names = ", ".join(f"server {i}" for i in late)
                raise ClusterError(
                    f"Not ready within {self._job.start_timeout_seconds:g} s: "
                    f"{names}. What it printed is above. Give it more time with "
                    "--start-timeout."
                )
            self._pause()

    def _start_workers(
        self, hosts: list[str], servers: list[str], address: str | None
    ) -> None:
        base = self._environment()
        # Else each worker's output begins with what TensorFlow was built for.
        base.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        if servers:
            base[SERVERS_VARIABLE] = ",".join(servers)
        for slot in assign_slots(hosts):
            env = rendezvous.with_worker_environment(base, slot, address)
            screens = (self._out, self._err)
            self._spawn("worker", slot.rank, self._job.command, env, screens)

    def _start_rendezvous(self, hosts: list[str]) -> str | None:
        try:
            server = rendezvous.start(hosts)
        except ClusterError:
            # One worker can do without Horovod.
            if len(hosts) == 1:
                return None
            raise
        self._resources.callback(server.close)
        return server.address

    def _spawn(
        self,
        role: str,
        index: int,
        command: Sequence[str],
        env: Mapping[str, str],
        screens: tuple[Screen | None, Screen | None] = (None, None),
    ) -> None:
        name = f"{role} {index}"
        alone = role == "worker" and self._job.workers == 1
        log = self._open_log(f"{role}-{index}.log")
        # A single worker keeps the terminal itself, for its progress bar.
        pipe = not alone or log is not None
        child = spawn(command, env, name=name, pipe=pipe)
        self._children[role, index] = child
        if child.stdout is not None and child.stderr is not None:
            prefix = None if alone else f"[{name}] "
            # What worker 0 prints is the program's own output, fit for a pipe.
            chief = role == "worker" and index == 0 and not alone
            self._relays[role, index] = [
                Relay(child.stdout, screens[0], "" if chief else prefix, log),
                Relay(child.stderr, screens[1], prefix, log),
            ]

    def _open_log(self, filename: str) -> IO[bytes] | None:
        if self._job.log_dir is None:
            return None
        folder = pathlib.Path(self._job.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        return self._resources.enter_context(open(folder / filename, "wb", buffering=0))

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "failure" in event:
            # What a worker said before it failed comes before what others say of it.
            for relay in self._relays.get((event["role"], event["index"]), []):
                relay.catch_up(_CATCH_UP_SECONDS)
        if event["event"] == "waiting":
            self._say(event["news"])
        self._wake.set()

    def _supervise(self) -> None:
        """Returns when the job is over; whoever still runs then is to be ended."""
        deadline: float | None = None
        while self._running("worker") and not self._urgent:
            failed = self._poll() or self._coordinator.announced() is not None
            now = time.monotonic()
            if failed and deadline is None:
                deadline = now + grace_seconds() + _MARGIN_SECONDS
            if self._signal is not None:
                self._hand_on(self._signal)
                limit = self._signal_at + _INTERRUPT_SECONDS
                deadline = limit if deadline is None else min(deadline, limit)
            if deadline is not None and now > deadline:
                return
            self._pause()
        if self._urgent or self._coordinator.first_failure() is not None:
            return
        self._coordinator.end()

    def _poll(self) -> bool:
        """Reports the processes that have ended; whether one of them failed."""
        ended = []
        for key, child in self._children.items():
            if key not in self._ends and child.poll() is not None:
                ended.append((key, child.returncode or 0))
        # Of those that ended between two looks, one that a signal has ended is
        # the likelier cause.
        for key, code in sorted(ended, key=lambda end: end[1]):
            self._ends[key] = code
            self._coordinator.report_exit(*key, code)
        return any(code or role == "server" for (role, _), code in self._ends.items())

    def _running(self, role: str) -> bool:
        return any(key[0] == role and key not in self._ends for key in self._children)

    def _pause(self) -> None:
        self._wake.wait(_POLL_SECONDS)
        self._wake.clear()

    def _stopping(self) -> bool:
        return self._signal is not None

    def _on_signal(self, number: int, frame: object) -> None:
        # Notes it and no more: the main thread may hold any lock just now.
        if self._signal is None:
            self._signal, self._signal_at = number, time.monotonic()
        else:
            self._urgent = True

    def _hand_on(self, number: int) -> None:
        for key, child in self._children.items():
            # The servers are needed until the workers have stopped.
            if key[0] == "worker" and key not in self._signalled:
                self._signalled.add(key)
                child.signal(number)

    def _terminate(self) -> None:
        grace = 0.0 if self._urgent else _TERMINATE_SECONDS
        terminate(self._children.values(), grace)

    def _verdict(self) -> int:
        """Ends what still runs, says how the job has ended; its exit code."""
        self._terminate()
        if self._signal is not None:
            name = signal.Signals(self._signal).name
            self._say(f"stopped by {name}")
            return 128 + self._signal
        failure = self._coordinator.first_failure()
        if failure is None:
            return 0
        # What the culprit has printed comes before what is said about it.
        key = (failure.role, -1 if failure.index is None else failure.index)
        self._show_tail(key)
        self._say(str(failure))
        # A process that was lost without ending has no exit code to hand on, nor has
        # one that was told to end.
        code = exit_code(self._ends.get(key, 0))
        return 1 if code in (0, EXIT_LOST) else code

    def _show_tail(self, key: tuple[str, int]) -> None:
        self._drain(key, 0.5)
        for relay in self._relays.get(key, ()):
            relay.show_tail(self._err)

    def _drain(self, key: tuple[str, int], timeout_seconds: float) -> None:
        for relay in self._relays.get(key, ()):
            relay.join(timeout_seconds)

    def _say(self, text: str) -> None:
        self._err.line(b"keras-parallax: ", text.encode())
