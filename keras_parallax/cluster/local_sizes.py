"""How many workers each machine has, where a launcher tells only about one's own.

What Horovod's launcher tells a worker of its place does not say whether all machines
have equally many workers, and to take for even what is not would end in a wait for
ever: Horovod's process sets must be the same on all workers when it starts. So the
workers tell each other before, through the rendezvous by which Horovod starts.
"""

import http.client
import os
import time
from collections.abc import Mapping

from keras_parallax.cluster.topology import Topology
from keras_parallax.errors import ClusterError

_SCOPE = "keras_parallax_local_sizes"
_WAIT_SECONDS = 300.0
_RETRY_SECONDS = 0.1


def local_sizes(
    topology: Topology,
    environ: Mapping[str, str] | None = None,
    timeout_seconds: float = _WAIT_SECONDS,
) -> list[int] | None:
    """Workers of each machine, in order of rank; every worker calls it.

    Args:
        topology: This worker's place.
        environ: The environment; `os.environ` by default.
        timeout_seconds: How long to wait for a machine.

    Returns:
        The numbers; or None where they need not be asked for, or cannot be.

    Raises:
        ClusterError: The rendezvous could not be reached, or a machine has not told.
    """
    environ = os.environ if environ is None else environ
    host = environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    port = environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    # One machine, or one worker on each: its own place tells a worker so.
    plain = topology.size in (topology.local_size, topology.cross_size)
    if topology.source != "horovod" or plain or not host or not port:
        return None
    try:
        if topology.local_rank == 0:
            body = str(topology.local_size)
            _ask(host, port, "PUT", topology.rank, body)
        sizes: list[int] = []
        # The first worker of each machine speaks for it.
        while sum(sizes) < topology.size:
            sizes.append(_told_by(host, port, sum(sizes), timeout_seconds))
    except OSError as error:
        raise ClusterError(
            f"Horovod's rendezvous at {host}:{port} cannot be reached ({error}). The "
            "launcher runs it: see whether it is still there, and whether this "
            "machine may connect to it."
        ) from error
    return sizes


def _told_by(host: str, port: str, rank: int, timeout_seconds: float) -> int:
    deadline = time.monotonic() + timeout_seconds
    while True:
        status, body = _ask(host, port, "GET", rank)
        if status == http.client.OK:
            return int(body)
        if time.monotonic() > deadline:
            raise ClusterError(
                f"Worker {rank} has not come within {timeout_seconds:g} s. Look at "
                "what it has printed, and at its machine."
            )
        time.sleep(_RETRY_SECONDS)


def _ask(
    host: str, port: str, method: str, rank: int, body: str | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request(method, f"/{_SCOPE}/{rank}", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
