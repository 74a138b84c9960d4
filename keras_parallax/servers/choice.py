"""Which home a strategy gets, and how it is put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import tensorflow as tf

from keras_parallax import errors
from keras_parallax.cluster.addresses import split_address
from keras_parallax.cluster.connection import Connection
from keras_parallax.cluster.session import Session
from keras_parallax.cluster.topology import Topology
from keras_parallax.collectives.dense import DenseRoad
from keras_parallax.collectives.exchange import Group
from keras_parallax.collectives.meter import Meter
from keras_parallax.collectives.wire import Wire
from keras_parallax.roads import ALLGATHER, ALLREDUCE, SERVERS
from keras_parallax.servers.asynchronous import AsynchronousHome
from keras_parallax.servers.copies import CopiesHome
from keras_parallax.servers.dedicated import DedicatedHome
from keras_parallax.servers.home import Home
from keras_parallax.servers.homes import Homes
from keras_parallax.servers.in_process import InProcessHome
from keras_parallax.servers.local_aggregation import LocalAggregation
from keras_parallax.servers.peers import PeersHome
from keras_parallax.servers.storage import TableSpec

KINDS = ("auto", "in_process", "peers", "dedicated")


def kind_of_home(servers: str, topology: Topology, needs_servers: str = "") -> str:
    """The home that the argument `servers` of a strategy means in a job.

    Args:
        servers: As given to the strategy.
        topology: The job's.
        needs_servers: What of the other arguments asks for server processes, as it
            was written; empty if nothing does.

    Raises:
        ConfigError: There is none, or the job has too many workers for it.
    """
    if servers not in KINDS:
        raise errors.ConfigError(
            f"`servers` is one of {KINDS}. Received: servers={servers!r}"
        )
    if needs_servers and servers not in ("auto", "dedicated"):
        raise errors.ConfigError(
            f"{needs_servers} needs server processes. Received: servers={servers!r}; "
            "expected 'dedicated' or 'auto'."
        )
    if needs_servers:
        return "dedicated"
    if servers == "auto":
        if topology.servers:
            return "dedicated"
        return "peers" if topology.size > 1 else "in_process"
    if servers == "in_process" and topology.size > 1:
        raise errors.ConfigError(
            "servers='in_process' keeps tables in the memory of one worker, where "
            f"the other {topology.size - 1} of {topology.size} workers cannot reach "
            "them. Use servers='auto', 'peers' or 'dedicated'."
        )
    if servers == "peers" and topology.size == 1:
        return "in_process"
    return servers


@dataclasses.dataclass(frozen=True)
class Settled:
    """A home, put together.

    Attributes:
        home: The home.
        device: Device of this worker.
        meters: What counts its traffic.
    """

    home: Home
    device: str
    meters: tuple[Meter, ...] = ()


@dataclasses.dataclass(frozen=True)
class Manner:
    """How workers and servers exchange.

    Attributes:
        local_aggregation: Whether the workers of a machine act as one.
        wire: The form in which rows and gradients travel between machines.
        synchronous: Whether a step's push is the sum of all workers'.
        max_staleness: How many steps a worker may be ahead of the slowest, where
            it is not; None for any number.
    """

    local_aggregation: bool
    wire: Wire
    synchronous: bool = True
    max_staleness: int | None = None


def settle(kind: str, session: Session, manner: Manner) -> Settled:
    """Puts a home together for this worker.

    Args:
        kind: "in_process", "peers" or "dedicated".
        session: The job, joined, and connected to its servers if there are any.
        manner: How workers and servers exchange.
    """
    connection = session.connection
    wire = manner.wire
    # A process that is connected has to name its own job, too.
    gpu = tf.config.list_physical_devices("GPU")
    device = connection.device if connection else f"/{'GPU' if gpu else 'CPU'}:0"
    if kind == "in_process":
        return Settled(InProcessHome(device), device)
    meter = Meter(device)
    aggregates = manner.local_aggregation and manner.synchronous
    machines = session.machines if aggregates else None
    if machines is not None and not machines.have_two_stages:
        machines = None
    rank = session.job.rank
    local = None
    if machines is not None:
        local = _group("machine", session, machines.neighbours(rank), meter)
    if kind == "dedicated":
        return Settled(_dedicated(session, manner, meter, local), device, (meter,))
    if machines is None or local is None:
        everyone = list(range(session.job.size))
        group = _group("all", session, everyone, meter)
        return Settled(
            PeersHome(session.job, device, group, everyone, wire), device, (meter,)
        )
    across = _group("lane", session, machines.counterparts(rank), meter)
    indices = [machines.counterparts(r).index(r) for r in range(session.job.size)]
    peers = PeersHome(session.job, device, across, indices, wire)
    lanes = [place[1] for place in machines.places]

    def in_charge(ids: tf.Tensor, spec: TableSpec) -> tf.Tensor:
        return tf.gather(tf.constant(lanes), peers.owner(ids, spec))

    return Settled(LocalAggregation(peers, local, in_charge), device, (meter,))


def with_copies(
    settled: Settled, session: Session, dense: DenseRoad, wire: Wire
) -> Homes:
    """The home that was settled, and those that keep a copy in every worker.

    Args:
        settled: The home where tables live unless something else is said.
        session: The job.
        dense: The dense road.
        wire: The form in which gathered gradients travel.
    """
    homes: dict[str, Home] = {SERVERS: settled.home}
    job = session.job
    if job.size > 1 and settled.home.is_synchronous:
        others = job.size - 1
        near = 0
        if session.machines is not None:
            near = len(session.machines.neighbours(job.rank)) - 1
        for road, reduces in ((ALLGATHER, False), (ALLREDUCE, True)):
            homes[road] = CopiesHome(
                job,
                settled.device,
                dense,
                wire,
                settled.meters[0],
                (others - near) / others,
                reduces,
            )
    return Homes(homes)


def _dedicated(
    session: Session, manner: Manner, meter: Meter, local: Group | None
) -> Home:
    # `Session.join` has connected this process where tables live on servers.
    connection = cast(Connection, session.connection)
    me = session.job.topology.host
    on_machine = [split_address(server)[0] == me for server in connection.servers]
    given = (session.job, connection.server_devices, manner.wire, meter, on_machine)
    if not manner.synchronous:
        return AsynchronousHome(*given, manner.max_staleness)
    home = DedicatedHome(*given)
    if local is None:
        return home

    def in_charge(ids: tf.Tensor, spec: TableSpec) -> tf.Tensor:
        return tf.cast(tf.math.floormod(ids, local.size), tf.int32)

    return LocalAggregation(home, local, in_charge)


def _group(name: str, session: Session, ranks: Sequence[int], meter: Meter) -> Group:
    rank = session.job.rank
    machines = session.machines
    here = machines.neighbours(rank) if machines is not None else [rank]
    return Group(
        name=name,
        size=len(ranks),
        index=list(ranks).index(rank),
        on_machine=tuple(r in here for r in ranks),
        meter=meter,
        process_set=session.process_set(ranks),
    )
