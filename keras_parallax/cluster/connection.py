"""Connects this process to the servers of its job.

Each worker connects with a cluster of its own making, `{"w<rank>": itself, "ps":
servers}`, and one after the other: TensorFlow's servers crash when several clients
connect at the same moment, and a cluster that lists the other workers hangs.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.eager import context

from keras_parallax import errors
from keras_parallax.cluster.addresses import free_port, join_address, split_address
from keras_parallax.cluster.job import Job
from keras_parallax.cluster.processes import Child

#: How long a server may take until it accepts connections.
SERVER_START_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Connection:
    """What a connected worker calls itself and its servers.

    Attributes:
        device: Device of this worker.
        server_devices: One device of each server.
        servers: `"host:port"` of each server.
    """

    device: str
    server_devices: tuple[str, ...]
    servers: tuple[str, ...]


def in_use() -> bool:
    """Whether anything has been made with TensorFlow in this process."""
    return context.context_safe() is not None and bool(
        context.context()._context_handle
    )


def refuse_living_objects() -> None:
    """Raises `ScopeError` if TensorFlow is in use already.

    Connecting replaces TensorFlow's context; variables, datasets and random
    generators of the old one are dead afterwards, and fail much later with errors
    that do not tell why.
    """
    if in_use():
        raise errors.ScopeError(
            "ParallaxStrategy() was made after TensorFlow had been used in this "
            "process: something made a tensor, variable, dataset or model before. "
            "Connecting to parameter servers would leave those unusable. Move the "
            "line `strategy = keras_parallax.ParallaxStrategy(...)` to the top of "
            "the program, right after the imports."
        )


def connect(job: Job, servers: Sequence[str]) -> Connection:
    """Connects to the servers, in this worker's turn.

    Args:
        job: This worker's place in the job.
        servers: `"host:port"` of each server, the same list on every worker.

    Raises:
        ClusterError: A server does not accept connections.
    """
    for server in servers:
        wait_for_server(server)
    connection = None
    for turn in range(job.size):
        if turn == job.rank:
            connection = _connect(job, servers)
        job.barrier()
    assert connection is not None  # noqa: S101 (narrows the type)
    return connection


def wait_for_server(
    address: str, seconds: float = SERVER_START_SECONDS, child: Child | None = None
) -> None:
    """Returns when `address` accepts connections.

    Args:
        address: `"host:port"` of the server.
        seconds: How long it may take.
        child: The server's process, if this one has started it.

    Raises:
        ClusterError: It does not within the time, or has ended.
    """
    host, port = split_address(address)
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=5.0).close()
            return
        except OSError as error:
            if child is not None and child.poll() is not None:
                raise errors.ClusterError(
                    f"{child.describe()} before it accepted a connection at "
                    f"{address}. It printed:\n{child.tail()}"
                ) from error
            if time.monotonic() > deadline:
                raise errors.ClusterError(
                    f"The server at {address} did not accept a connection within "
                    f"{seconds:.0f} s ({error}). Check that it runs (its log says "
                    "so), and that the port is reachable from this machine."
                ) from error
            time.sleep(0.1)


def _connect(job: Job, servers: Sequence[str]) -> Connection:
    me = f"w{job.rank}"
    mine = join_address(job.topology.host, free_port())
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec({me: [mine], "ps": list(servers)}),
        job_name=me,
        task_index=0,
    )
    devices = tuple(
        f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(len(servers))
    )
    for device in devices:
        with tf.device(device):
            # The fetched value is the proof that the server takes our orders.
            tf.zeros([]).numpy()
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return Connection(
        f"/job:{me}/replica:0/task:0/device:{kind}:0", devices, tuple(servers)
    )
