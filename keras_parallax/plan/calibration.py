"""How fast this job's workers exchange, measured in less than two seconds.

A plan wants seconds, and what a link attains is known only by using it. When a job
starts and the plan asks for it, the workers exchange some small messages and some
large ones by the same calls that training uses. What they find is kept in the
user's cache under the names of the machines, so that the next start measures
nothing. All workers end with the same figures, or they would disagree on the plan.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pathlib
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from keras_parallax.cache import cache_dir, keep, kept
from keras_parallax.cluster.addresses import split_address
from keras_parallax.cluster.connection import Connection
from keras_parallax.cluster.job import Job
from keras_parallax.cluster.machines import Machines
from keras_parallax.plan.network import NETWORK_VARIABLE, Network, parse_network

logger = logging.getLogger("keras_parallax")

#: Value of `KERAS_PARALLAX_NETWORK` that measures although figures are kept.
MEASURE = "measure"

#: What is taken where nothing can be measured: one worker.
ALONE = Network(bandwidth_bytes_per_s=1.25e9)

_VERSION = 3
_SMALL_REPEATS = 8
_LARGE_REPEATS = 2
_FIRST_BYTES = 256 << 10
_MOST_BYTES = 16 << 20
_LARGE_SECONDS = 0.1
_ROWS, _ROW_FLOATS = 65_536, 64


class JoinedJob(Protocol):
    """What is wanted of `cluster.session.Session`."""

    job: Job
    machines: Machines | None
    connection: Connection | None

    def process_set(self, ranks: Sequence[int]) -> Any:
        """Horovod's process set of some workers."""


def network_of(
    session: JoinedJob,
    given: str | Network | None = None,
    servers: Sequence[str] = (),
) -> Network:
    """The network of a job: given, kept from an earlier start, or measured.

    Every worker calls it, between steps; worker 0 decides which of the three it is.

    Args:
        session: The job.
        given: A network, or what is known of it, as in `"bandwidth=1Gbit"`; by
            default the environment's `KERAS_PARALLAX_NETWORK`. With bandwidth and
            latency both given nothing is measured. `"measure"` measures anew.
        servers: Devices of the servers that this worker speaks with in a step.

    Raises:
        ConfigError: `given` cannot be read.
    """
    job = session.job
    if isinstance(given, Network):
        return job.share(given)
    text = given if given is not None else os.environ.get(NETWORK_VARIABLE, "")
    text = job.share(text).strip()
    anew, known = text == MEASURE, {} if text == MEASURE else parse_network(text)
    if job.size == 1 or {"bandwidth_bytes_per_s", "latency_s"} <= known.keys():
        return Network.of({**ALONE.to_dict(), **known})
    path = _path_of(session)
    figures = job.share(_read(path) if job.rank == 0 and not anew else None)
    network = Network.of(figures) if figures else measure(session, servers)
    if job.rank == 0 and not figures:
        keep(path, "The network's figures", network.to_dict())
        logger.info("The network was measured: %s", network)
    return Network.of({**network.to_dict(), **known})


def measure(session: JoinedJob, servers: Sequence[str] = ()) -> Network:
    """Measures the network; every worker calls it, and gets the same figures.

    Args:
        session: The job.
        servers: Devices of the servers that this worker speaks with in a step.
    """
    job, machines = session.job, session.machines
    each = machines.workers_each if machines is not None else 1
    count = machines.count if machines is not None else job.size
    with tf.init_scope():
        everyone = _Exchange("all", job.size, None)
        small = everyone.seconds(job.size, _SMALL_REPEATS)
        ring = _ring_seconds()
        large = _bytes_per_s(job, everyone, small)
        near = None
        if machines is not None and machines.have_two_stages:
            ranks = machines.neighbours(job.rank)
            near = _Exchange("machine", len(ranks), session.process_set(ranks))
        found = {"small": small, "ring": ring, "large": large}
        if near is not None:
            found["near_small"] = near.seconds(near.size, _SMALL_REPEATS)
            found["near_large"] = _bytes_per_s(job, near, found["near_small"])
        if servers:
            found["server_trip"] = _server_seconds(job, servers)
        job.barrier()
        found["memory"] = _memory_bytes_per_s()
    everyones = job.gather(found)
    middle = {
        name: statistics.median(worker[name] for worker in everyones) for name in found
    }
    return _network_from(middle, job.size, count, each)


def _network_from(
    found: dict[str, float], workers: int, machines: int, each: int
) -> Network:
    """What the times mean.

    A small all-to-all is a call and one message's latency; a small all-reduce is a
    call and the latency of `2·(W-1)` messages, one after the other.
    """
    hops = 2 * (workers - 1)
    latency = max(0.0, found["ring"] - found["small"]) / max(1, hops - 1)
    latency = min(latency, found["small"] / 2)
    call = found["small"] - latency
    trip = ALONE.server_trip_s
    if "server_trip" in found:
        # At most once over the network and back.
        trip = max(found["server_trip"] / 2, found["server_trip"] - 2 * latency)
    if machines == 1:
        # One worker sends `large`; all of the machine, so many times as much.
        local = found["large"] * workers
        return Network(local, latency, local, latency, call, trip, found["memory"])
    # Of what a worker sends, this leaves the machine; its workers share the link.
    away = each * (workers - each) / (workers - 1)
    near_latency = min(latency, ALONE.local_latency_s)
    near_bandwidth = ALONE.local_bandwidth_bytes_per_s
    if "near_small" in found:
        near_latency = min(latency, max(0.0, found["near_small"] - call))
        near_bandwidth = found["near_large"] * each
    return Network(
        found["large"] * away,
        latency,
        near_bandwidth,
        near_latency,
        call,
        trip,
        found["memory"],
    )


class _Exchange:
    """An all-to-all of equal pieces, outside the graph."""

    _calls = 0

    def __init__(self, name: str, size: int, process_set: object | None):
        self.name = name
        self.size = size
        self._process_set = process_set

    def seconds(self, sent_bytes: int, repeats: int, best: bool = False) -> float:
        """What it takes when each worker has `sent_bytes`, its own share included:
        the median, or the best, of some repeats."""
        import horovod.tensorflow as hvd

        values = tf.zeros([max(1, sent_bytes // self.size) * self.size], tf.uint8)

        def exchange() -> None:
            _Exchange._calls += 1
            hvd.alltoall(
                values,
                name=f"keras_parallax/calibration/{self.name}/{_Exchange._calls}",
                process_set=self._process_set or hvd.global_process_set,
            ).numpy()

        return _timed(exchange, repeats, min if best else statistics.median)


def _ring_seconds() -> float:
    """What an all-reduce of one number takes."""
    import horovod.tensorflow as hvd

    value = tf.zeros([1])

    def reduce() -> None:
        _Exchange._calls += 1
        name = f"keras_parallax/calibration/ring/{_Exchange._calls}"
        hvd.allreduce(value, op=hvd.Sum, name=name).numpy()

    return _timed(reduce, _SMALL_REPEATS, statistics.median)


def _server_seconds(job: Job, servers: Sequence[str]) -> float:
    """What a number takes to some servers and back, while all workers send theirs."""

    @tf.function
    def ask(value):
        answers = []
        for server in servers:
            with tf.device(server):
                answers.append(value + 1.0)
        return tf.add_n(answers)

    value = tf.zeros([])
    ask(value)  # Tracing takes different workers different times.
    job.barrier()
    return _timed(lambda: ask(value).numpy(), _SMALL_REPEATS, statistics.median)


def _bytes_per_s(job: Job, exchange: _Exchange, small_s: float) -> float:
    """Bytes that one worker sends to others in a second, while all do so."""
    share = (exchange.size - 1) / exchange.size

    def attained(size_bytes: int) -> float:
        seconds = exchange.seconds(size_bytes, _LARGE_REPEATS, best=True)
        # The call itself is counted apart. What is left of a time that is hardly
        # longer means little, and nothing at all if it is shorter.
        return size_bytes * share / max(seconds - small_s, seconds / 4)

    first = statistics.median(job.gather(attained(_FIRST_BYTES)))
    wanted = int(first * _LARGE_SECONDS / share)
    if wanted <= _FIRST_BYTES:
        return first
    return attained(min(wanted, _MOST_BYTES))


def _memory_bytes_per_s() -> float:
    """Bytes read and written in a second by the operations that rows go through,
    while all workers do so: picked by id, and added up by id."""
    rows = tf.ones([_ROWS, _ROW_FLOATS])
    ids = tf.constant(np.random.default_rng(0).permutation(_ROWS), tf.int32)

    def pick_and_sum() -> None:
        picked = tf.gather(rows, ids)
        tf.math.unsorted_segment_sum(picked, ids, _ROWS)[0, 0].numpy()

    size = rows.shape.num_elements() * rows.dtype.size
    return 4 * size / _timed(pick_and_sum, _LARGE_REPEATS, min)


def _timed(
    action: Callable[[], object], repeats: int, reduce: Callable[[list[float]], float]
) -> float:
    action()  # The first makes connections and buffers.
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return reduce(times)


def _path_of(session: JoinedJob) -> pathlib.Path:
    """Where the figures of these machines are kept; every worker calls it."""
    job, connection = session.job, session.connection
    # Many machines have no address of their own but the loopback's.
    places = job.gather((job.topology.host, socket.gethostname()))
    addresses = connection.servers if connection is not None else ()
    servers = [split_address(address)[0] for address in addresses]
    text = json.dumps([_VERSION, sorted(map(list, places)), sorted(servers)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache_dir() / "networks" / f"{digest}.json"


def _read(path: pathlib.Path) -> dict[str, float] | None:
    """Figures that were kept, if they are those of a network."""
    figures = kept(path)
    try:
        Network.of(figures)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    return figures
