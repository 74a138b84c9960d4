"""A job that takes one step and measures its network, and what it tells.

`run_job` starts it, by the launcher that users have; `python -m
keras_parallax.cli.self_test` is the program of each of its workers. Worker 0 prints
one line of JSON, which any launcher's output can be searched for.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from keras_parallax.cli.findings import ERROR, OK, WARNING, Finding
from keras_parallax.cluster.processes import spawn, terminate
from keras_parallax.cluster.rendezvous import PLACE_VARIABLES
from keras_parallax.cluster.topology import LIFELINE_VARIABLE, SERVERS_VARIABLE

TIMEOUT_SECONDS = 120.0

_MARK = "keras-parallax-self-test: "
# The environment's own job, if there is one, is not this one.
_OTHERS = (*PLACE_VARIABLES, "TF_CONFIG", SERVERS_VARIABLE, LIFELINE_VARIABLE)
_POLL_SECONDS = 0.5
# The launcher ends its processes in less, and is ended itself thereafter.
_GRACE_SECONDS = 10.0
_TAIL_LINES = 15

# Between hosts less than this is seldom meant.
_LEAST_BYTES_PER_S = 10e6
_MOST_LATENCY_S = 5e-3
_MOST_CLOCK_SECONDS = 2.0

# What the step of `main` gives, worked out by hand: each row is looked up once or
# twice in four examples, predicts 2 where 0 was wanted, and the rate is 0.1.
_IDS = [1, 1, 2, 5]
_ROWS = {0: 1.0, 1: 0.8, 2: 0.9, 5: 0.9}
_KERNEL = 0.6


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a self-test has ended.

    Attributes:
        report: What worker 0 told; None if it came to nothing.
        seconds: How long it took, from start to end.
        problem: Why it came to nothing, in a sentence; else empty.
        output: The last lines that its processes printed.
    """

    report: dict[str, Any] | None
    seconds: float
    problem: str = ""
    output: str = ""


def run_job(
    workers: int,
    servers: int,
    hosts: str | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    on_wait: Callable[[float], object] = lambda seconds: None,
) -> Outcome:
    """Runs the self-test as a job; nothing of it is left when this returns.

    Args:
        workers: Number of workers, on this machine.
        servers: Number of server processes.
        hosts: `"host1:2,host2:2"` to run it there instead, without servers.
        timeout_seconds: How long it may take.
        on_wait: Called every so often with the seconds that it has taken so far.
    """
    launcher = [sys.executable, "-m", "keras_parallax.cli.main", "run"]
    if hosts is None:
        launcher += ["-np", str(workers), "--servers", str(servers)]
    else:
        launcher += ["-H", hosts]
    command = [*launcher, "--", sys.executable, "-m", __name__]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="keras-parallax-doctor-") as folder:
        log = pathlib.Path(folder) / "output.log"
        child = spawn(command, environment(os.environ), log, "the self-test")
        try:
            while child.wait(_POLL_SECONDS) is None:
                seconds = time.monotonic() - begun
                on_wait(seconds)
                if seconds > timeout_seconds:
                    break
            status = child.poll()
        finally:
            terminate([child], _GRACE_SECONDS)
        output = log.read_text("utf-8", errors="replace")
    seconds = time.monotonic() - begun
    tail = "\n".join(output.strip().splitlines()[-_TAIL_LINES:])
    if status is None:
        problem = f"it had not ended after {timeout_seconds:g} s, and was ended"
        return Outcome(None, seconds, problem, tail)
    report = find_report(output)
    if status or report is None:
        problem = f"`{shlex.join(launcher)} ...` ended with exit status {status}"
        return Outcome(None, seconds, problem, tail)
    return Outcome(report, seconds)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the self-test: this one, without any other job's."""
    env = {name: value for name, value in environ.items() if name not in _OTHERS}
    env["KERAS_PARALLAX_NETWORK"] = "measure"
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return env


def find_report(output: str) -> dict[str, Any] | None:
    """What worker 0 has told, in the output of a launcher; None if it has not."""
    match = re.search(re.escape(_MARK) + r"(\{.*\})", output)
    return json.loads(match[1]) if match else None


def check_outcome(outcome: Outcome, hosts: str | None = None) -> list[Finding]:
    """Findings about a self-test.

    Args:
        outcome: How it has ended.
        hosts: Where it ran, as given to `run_job`.
    """
    report = outcome.report
    if report is None:
        mend = (
            "Mend what the other findings say first; then run the command by itself "
            "with --log-dir, and read the log of each process."
            if hosts is None
            else "See that `ssh HOST true` works without a password, and that each "
            "host's name stands for the address that the others reach; on each, "
            "`keras-parallax doctor` has to pass."
        )
        found = f"{outcome.problem}. It printed last:\n{outcome.output}"
        return [Finding("self-test", ERROR, found, mend)]
    what = _count(report["workers"], "worker")
    if report["servers"]:
        what += f" and {_count(report['servers'], 'server')}"
    if report["problems"]:
        step = Finding(
            "self-test",
            ERROR,
            f"{what} took a step, but {'; '.join(report['problems'])}",
            "Build Horovod again, keras-parallax build-horovod --force; if that does "
            "not mend it, report this with the output of "
            "`keras-parallax doctor --json`.",
        )
    else:
        found = (
            f"{what} took a step and have the right sums "
            f"({outcome.seconds:.0f} s, nearly all of it the start)"
        )
        step = Finding("self-test", OK, found)
    several_hosts = len(set(report["hosts"])) > 1
    findings = [step, check_network(report["network"], several_hosts)]
    if several_hosts:
        findings.append(check_clocks(report["hosts"], report["clocks_seconds"]))
    return findings


def check_network(network: Mapping[str, float], several_hosts: bool) -> Finding:
    """What the workers' exchanges attain.

    Args:
        network: A `plan.network.Network`, as its `to_dict` gives it.
        several_hosts: Whether the workers were on several hosts.
    """
    bandwidth, latency = network["bandwidth_bytes_per_s"], network["latency_s"]
    if not several_hosts:
        bandwidth = network["local_bandwidth_bytes_per_s"]
        latency = network["local_latency_s"]
    where = "hosts" if several_hosts else "workers of this machine"
    found = (
        f"{where} exchange {in_bandwidth(bandwidth)}, a message takes "
        f"{1e3 * latency:.2g} ms, a call of all workers "
        f"{1e3 * network['call_s']:.2g} ms"
    )
    if several_hosts and (bandwidth < _LEAST_BYTES_PER_S or latency > _MOST_LATENCY_S):
        return Finding(
            "network",
            WARNING,
            found,
            "See which of the hosts' networks is used: each host's name should stand "
            "for its address in the fastest.",
        )
    return Finding("network", OK, found)


def check_clocks(hosts: list[str], clocks_seconds: list[float]) -> Finding:
    """Whether the hosts' clocks agree, read at the same moment.

    Args:
        hosts: Each worker's host.
        clocks_seconds: What its clock said.
    """
    apart = max(clocks_seconds) - min(clocks_seconds)
    found = f"the hosts' clocks are {apart:.2g} s apart"
    if apart > _MOST_CLOCK_SECONDS:
        slow = hosts[clocks_seconds.index(min(clocks_seconds))]
        return Finding(
            "clocks",
            WARNING,
            f"{found}; {slow} is the last",
            "Let a time service (NTP) keep them: logs and checkpoints of the hosts "
            "are compared by time.",
        )
    return Finding("clocks", OK, found)


def in_bandwidth(bytes_per_s: float) -> str:
    """A bandwidth as people say it: `"1.2 GB/s"`."""
    for unit in ("B", "kB", "MB"):
        if bytes_per_s < 999.5:
            return f"{bytes_per_s:.3g} {unit}/s"
        bytes_per_s /= 1000
    return f"{bytes_per_s:,.3g} GB/s"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def main() -> None:
    """What each worker of the self-test does."""
    import keras
    import tensorflow as tf

    from keras_parallax.strategy import ParallaxStrategy

    strategy = ParallaxStrategy(routes={"*/embeddings": "servers"}, partitions=2)
    network = strategy.network
    strategy.everyones(None)
    clocks = strategy.everyones(time.time())
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((1,), dtype="int32"),
                keras.layers.Embedding(8, 2, embeddings_initializer="ones"),
                keras.layers.Flatten(),
                keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    ids = tf.constant(_IDS * strategy.num_workers)[:, None]
    data = tf.data.Dataset.from_tensor_slices((ids, tf.zeros_like(ids, tf.float32)))
    model.fit(data.batch(len(ids)), verbose=0)
    rows, kernel = model.get_weights()
    problems = [
        f"row {row} of its table is {rows[row].tolist()}, not {expected}"
        for row, expected in _ROWS.items()
        if abs(rows[row] - expected).max() > 1e-5
    ]
    if abs(kernel - _KERNEL).max() > 1e-5:
        problems.append(f"its kernel is {kernel.ravel().tolist()}, not {_KERNEL}")
    everyones = strategy.everyones((socket.gethostname(), problems))
    report = {
        "workers": strategy.num_workers,
        "servers": strategy.num_servers,
        "network": network.to_dict(),
        "hosts": [host for host, _ in everyones],
        "clocks_seconds": clocks,
        "problems": [
            f"on worker {rank} {problem}"
            for rank, (_, found) in enumerate(everyones)
            for problem in found
        ],
    }
    if strategy.is_chief:
        print(_MARK + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
