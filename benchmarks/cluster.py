"""Runs a script as the workers of a cluster that is emulated on this machine.

    with EmulatedCluster(hosts=4, workers_per_host=1, rate_mbit=200) as cluster:
        run = cluster.run([sys.executable, "train.py"])
        print(cluster.label, run.seconds, run.traffic)

Each host is a network namespace behind a shaped link (see `network.py`), so that
what a job sends is slowed down and counted where it crosses between hosts. The
processors are shared: a step computes as slowly as all hosts together need.

A script that ends with a line `result: {…}` of JSON hands that to the caller.
"""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import tempfile
import time

from benchmarks import network
from keras_parallax.cluster import processes, rendezvous
from keras_parallax.cluster.coordinator import Coordinator
from keras_parallax.cluster.lifeline import grace_seconds
from keras_parallax.cluster.threads import THREADS_VARIABLE, share_of_cores
from keras_parallax.cluster.topology import LIFELINE_VARIABLE, assign_slots

logger = logging.getLogger(__name__)

RESULT = "result: "

_MARGIN_SECONDS = 2.0
_POLL_SECONDS = 0.02
_TAIL_CHARACTERS = 3000


class RunError(RuntimeError):
    """A worker has failed, or the run was not over in time."""


@dataclasses.dataclass(frozen=True)
class WorkerRun:
    """What one worker did.

    Attributes:
        rank: Its index among all workers.
        host: Address of its host.
        output: All that it printed.
        result: What followed `result: ` in the last line that begins so, from
            JSON; None without such a line.
    """

    rank: int
    host: str
    output: str
    result: object


@dataclasses.dataclass(frozen=True)
class ClusterRun:
    """What a run of a script on all workers gave.

    Attributes:
        workers: A `WorkerRun` of each, in order of rank.
        seconds: From the start of the first process to the end of the last.
        traffic: `network.Traffic` of each host over the whole run, its set-up
            included; None where nothing is counted. For a part of the run a
            worker calls `host_traffic`.
    """

    workers: list
    seconds: float
    traffic: list | None


class EmulatedCluster:
    """Hosts on which scripts run as workers; use it as a context manager.

    Without root, `ip` or `tc` the workers run on the loopback interface, neither
    shaped nor counted, and `label` says so. Each host is an address of its own
    there, too, so that the strategy makes the same arrangement.

    Args:
        hosts: Number of hosts.
        workers_per_host: Workers on each of them.
        rate_mbit: Rate of each host's link, each way, in Mbit/s; None leaves it
            as fast as the machine is.
        latency_ms: Delay of each link, each way, in milliseconds.

    Attributes:
        emulated: Whether there are hosts, rather than loopback for all.
        label: What runs here, in words, for the head of a table.

    Raises:
        network.NetworkError: A latency is wanted that this kernel cannot make.
    """

    def __init__(self, hosts, workers_per_host=1, rate_mbit=None, latency_ms=0):
        reason = network.why_unavailable()
        self.emulated = reason is None
        self._workers_per_host = workers_per_host
        size = f"{hosts} hosts x {workers_per_host} workers"
        if self.emulated:
            self._network = network.Network(hosts, rate_mbit, latency_ms)
            rate = "unshaped" if rate_mbit is None else f"{rate_mbit:g} Mbit/s"
            self.label = f"{size}, emulated, {rate}, {latency_ms:g} ms"
        else:
            self._network = None
            self.label = f"{size}, on loopback, NOT SHAPED ({reason})"
            logger.warning("No network is emulated: %s.", reason)
        self._loopback = [f"127.0.0.{1 + host}" for host in range(hosts)]

    def __enter__(self):
        if self._network is not None:
            self._network.__enter__()
        return self

    def __exit__(self, *exception):
        if self._network is not None:
            self._network.close()

    @property
    def hosts(self):
        """Address of each host."""
        return self._network.addresses if self.emulated else self._loopback

    def run(self, command, environ=None, timeout_seconds=300.0):
        """Runs `command` as each of the workers, as a launcher would.

        Args:
            command: Program and arguments.
            environ: Variables to add to this process's environment.
            timeout_seconds: How long the run may take.

        Returns:
            `ClusterRun`.

        Raises:
            RunError: A worker has failed, or the time was over; with the end of
                what was printed by the worker to blame.
        """
        places = [host for host in self.hosts for _ in range(self._workers_per_host)]
        address = self._network.address if self.emulated else "127.0.0.1"
        children = []
        with contextlib.ExitStack() as at_end:
            folder = at_end.enter_context(tempfile.TemporaryDirectory())
            meeting = rendezvous.start(places, address)
            at_end.callback(meeting.close)
            coordinator = Coordinator(
                address, expected_workers=len(places), explain_seconds=1.0
            ).start()
            at_end.callback(coordinator.stop)
            at_end.callback(self._end, children)
            base = {**os.environ, **(environ or {})}
            base[LIFELINE_VARIABLE] = coordinator.address
            base.setdefault("PYTHONUNBUFFERED", "1")
            base.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            # All hosts are this machine.
            base.setdefault(THREADS_VARIABLE, str(share_of_cores(len(places))))
            before = self._traffic()
            start = time.monotonic()
            for slot in assign_slots(places):
                env = rendezvous.with_worker_environment(base, slot, meeting.address)
                children.append(self._spawn(slot, command, env, folder))
            _supervise(children, coordinator, start + timeout_seconds)
            seconds = time.monotonic() - start
            traffic = self._traffic_since(before)
            workers = [
                _read(rank, host, child)
                for rank, (host, child) in enumerate(zip(places, children, strict=True))
            ]
            return ClusterRun(workers, seconds, traffic)

    def _spawn(self, slot, command, env, folder):
        if self.emulated:
            env["HOROVOD_GLOO_IFACE"] = network.INTERFACE
            command = self._network.command(self.hosts.index(slot.host), command)
        log = pathlib.Path(folder, f"worker-{slot.rank}.log")
        return processes.spawn(command, env, log, f"worker {slot.rank}")

    def _end(self, children):
        processes.terminate(children, 1.0)
        if self.emulated:
            # A worker that was killed may have left its server.
            self._network.kill()

    def _traffic(self):
        return self._network.traffic() if self.emulated else None

    def _traffic_since(self, before):
        if before is None:
            return None
        return [b - a for a, b in zip(before, self._traffic(), strict=True)]


def host_traffic():
    """`network.Traffic` of this worker's host until now; None on loopback."""
    if os.environ.get("HOROVOD_GLOO_IFACE") != network.INTERFACE:
        return None
    return network.interface_traffic()


def print_result(result):
    """Hands `result`, plain data, to whoever runs this script."""
    print(f"{RESULT}{json.dumps(result)}", flush=True)


def _supervise(children, coordinator, deadline):
    """Returns when all have ended well; raises `RunError` otherwise."""
    ended = set()
    give_up = None
    while len(ended) < len(children):
        for rank, child in enumerate(children):
            if rank not in ended and child.poll() is not None:
                ended.add(rank)
                coordinator.report_exit("worker", rank, child.returncode)
        now = time.monotonic()
        if give_up is None and coordinator.first_failure() is not None:
            # The others take their grace, and say what they have seen.
            give_up = now + grace_seconds() + _MARGIN_SECONDS
        if give_up is not None and now > give_up:
            break
        if now > deadline:
            late = [c for rank, c in enumerate(children) if rank not in ended]
            names = ", ".join(child.name for child in late)
            raise RunError(
                f"Not over in time: {names}. Give the run more time or less to do. "
                f"What was printed last:\n{_tails(late)}"
            )
        time.sleep(_POLL_SECONDS)
    failure = coordinator.first_failure()
    if failure is not None:
        # A server's output is in that of the worker that has started it.
        blamed = [c for c in children if c.name == failure.name] or children
        raise RunError(f"{failure}. What was printed last:\n{_tails(blamed)}")


def _tails(children):
    return "\n".join(f"[{c.name}] {c.tail()[-_TAIL_CHARACTERS:]}" for c in children)


def _read(rank, host, child):
    output = child.log_path.read_text("utf-8", errors="replace")
    results = [line for line in output.splitlines() if line.startswith(RESULT)]
    result = json.loads(results[-1][len(RESULT) :]) if results else None
    return WorkerRun(rank, host, output, result)
