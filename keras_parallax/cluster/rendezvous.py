"""Brings up Horovod without horovodrun: its rendezvous and its variables.

The workers of a Gloo job find each other through a small HTTP store. Horovod's
own launcher runs it and sets some `HOROVOD_*` variables; here the launcher does
so, or worker 0 of a TF_CONFIG cluster.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Mapping, Sequence

from keras_parallax.cluster.addresses import join_address, reach, split_address
from keras_parallax.cluster.coordinator import Coordinator
from keras_parallax.cluster.lifeline import Member
from keras_parallax.cluster.threads import THREADS_VARIABLE, share_of_cores
from keras_parallax.cluster.topology import (
    LIFELINE_VARIABLE,
    SERVERS_VARIABLE,
    Slot,
    Topology,
    assign_slots,
)
from keras_parallax.errors import ClusterError
from keras_parallax.versions import of_exchange

JOIN_SECONDS = 300.0

# Where a worker stands, as against how it talks: only the latter is a choice
# that users can make in the environment.
PLACE_VARIABLES = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)


class Rendezvous:
    """Horovod's rendezvous, running in a thread; made by `start`.

    Attributes:
        host: Under which the workers reach it.
        port: On which it listens.
    """

    def __init__(self, host: str, server):
        self.host = host
        self.port: int = server.server_address[1]
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, name="keras-parallax-rendezvous", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """`"host:port"`."""
        return join_address(self.host, self.port)

    def close(self) -> None:
        """Stops it; workers that are still connecting fail."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def start(hosts: Sequence[str], address_host: str = "127.0.0.1") -> Rendezvous:
    """Starts Horovod's rendezvous for one worker on each entry of `hosts`.

    Args:
        hosts: The host of each worker, in order of rank.
        address_host: Name of this machine, under which all of them reach it.

    Raises:
        ClusterError: Horovod is not installed.
    """
    try:
        from horovod.runner.http.http_server import (
            RendezvousHandler,
            RendezvousHTTPServer,
        )
    except ImportError as error:
        raise horovod_missing(len(hosts)) from error
    local = reach(address_host) == "loopback"
    # Horovod's launcher opens it on every interface; a job on one machine needs
    # the loopback alone.
    bind_to = "127.0.0.1" if local else ""
    server = RendezvousHTTPServer((bind_to, 0), RendezvousHandler, 0)
    server.daemon_threads = True
    server.init([_HorovodSlot(slot) for slot in assign_slots(hosts)])
    return Rendezvous("127.0.0.1" if local else address_host, server)


def horovod_missing(workers: int) -> ClusterError:
    """The error to raise when several workers are asked for without Horovod."""
    return ClusterError(
        f"{workers} workers exchange their gradients through Horovod, which is not "
        "installed in this Python. Build it for the installed TensorFlow with "
        "`keras-parallax build-horovod`; it takes a few minutes, once."
    )


def worker_environment(slot: Slot, rendezvous: str | None) -> dict[str, str]:
    """The `HOROVOD_*` variables of one worker, and the number of its threads.

    Args:
        slot: The worker's place.
        rendezvous: `"host:port"` of Horovod's rendezvous; None for one worker
            that has no need of it.
    """
    env = {
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        THREADS_VARIABLE: str(share_of_cores(slot.local_size)),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
        "HOROVOD_HOSTNAME": slot.host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if rendezvous is not None:
        host, port = split_address(rendezvous)
        env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = host
        env["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
        if reach(host) == "loopback":
            env["HOROVOD_GLOO_IFACE"] = _loopback_interface()
    return env


def with_worker_environment(
    environ: Mapping[str, str], slot: Slot, rendezvous: str | None
) -> dict[str, str]:
    """`environ` with `worker_environment` added; what the user has set, stays.

    Raises:
        ClusterError: `environ` already gives this process a place in a job.
    """
    placed = {key: environ[key] for key in PLACE_VARIABLES if key in environ}
    if placed:
        raise ClusterError(
            "This process is part of a Horovod job already, and cannot be given a "
            "place in another. Unset these variables, or start the script itself "
            f"rather than a launcher. Received: {placed}"
        )
    return {**worker_environment(slot, rendezvous), **environ}


def bootstrap(
    topology: Topology, timeout_seconds: float = JOIN_SECONDS
) -> tuple[Coordinator | None, Member | None]:
    """Joins this process to its job; afterwards Horovod can be initialised.

    In a TF_CONFIG cluster worker 0 starts the job's coordinator, on its own
    address, and Horovod's rendezvous; the others wait for it, and put into
    `os.environ` what it tells them. Elsewhere the launcher has done so.

    Args:
        topology: What `topology.resolve` has found.
        timeout_seconds: How long to wait for the coordinator.

    Returns:
        The coordinator, in the one process that runs it, else None; and this
        process's connection to it, or None where the job has none.

    Raises:
        ClusterError: The coordinator could not be started or reached.
    """
    role = "server" if topology.task == "ps" else "worker"
    exchanges = role == "worker" and topology.size > 1
    info = {"alike": of_exchange()} if exchanges else {}
    if topology.source != "tf_config":
        if topology.size > 1:
            threads = str(share_of_cores(topology.local_size))
            os.environ.setdefault(THREADS_VARIABLE, threads)
        member = None
        if topology.lifeline is not None:
            member = Member.join(
                topology.lifeline, role, topology.index, timeout_seconds, info=info
            )
        return None, member
    if topology.size == 1 and not topology.servers:
        return None, None
    hosts = [split_address(worker)[0] for worker in topology.workers]
    _check_own_name(hosts)
    coordinator = None
    lifeline = topology.workers[0]
    if topology.rank == 0:
        coordinator = _start_coordinator(topology, hosts)
    # A server follows its member itself, and ends in its own order.
    on_lost = (lambda failure: None) if role == "server" else None
    try:
        member = Member.join(
            lifeline, role, topology.index, timeout_seconds, info, on_lost
        )
    except ClusterError:
        if coordinator is not None:
            coordinator.stop()
        raise
    if role == "worker":
        slot = assign_slots(hosts)[topology.rank]
        rendezvous = member.welcome.get("rendezvous")
        os.environ.update(with_worker_environment(os.environ, slot, rendezvous))
        # Whoever asks again, in this process or one it starts, finds the same.
        os.environ[SERVERS_VARIABLE] = ",".join(topology.servers)
        os.environ[LIFELINE_VARIABLE] = lifeline
    return coordinator, member


def _start_coordinator(topology: Topology, hosts: list[str]) -> Coordinator:
    host, port = split_address(topology.workers[0])
    with contextlib.ExitStack() as undo:
        welcome = {}
        if topology.size > 1:
            rendezvous = start(hosts, host)
            undo.callback(rendezvous.close)
            welcome["rendezvous"] = rendezvous.address
        coordinator = Coordinator(
            host, port, topology.size, name="worker 0", welcome=welcome
        ).start()
        coordinator.at_stop(undo.pop_all().close)
    return coordinator


def _check_own_name(hosts: list[str]) -> None:
    """Refuses what Gloo would only time out on: a host's name that is loopback."""
    if all(reach(host) == "loopback" for host in set(hosts)) or len(set(hosts)) == 1:
        return
    name = socket.gethostname()
    if reach(name) == "loopback":
        raise ClusterError(
            f"The workers are on several hosts, but this host's name, {name!r}, "
            "stands for a loopback address here, and Horovod tells the others to "
            "connect to what it stands for. Give it the address that the others "
            f"reach, in /etc/hosts of this host. Received: hosts={hosts}"
        )


def _loopback_interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")


class _HorovodSlot:
    """What Horovod's rendezvous reads of a slot, under its names."""

    def __init__(self, slot: Slot):
        self.hostname = slot.host
        self.size = slot.size
        self.local_rank = slot.local_rank
        self.local_size = slot.local_size
        self.cross_size = slot.cross_size
