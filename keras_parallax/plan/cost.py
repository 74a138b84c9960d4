"""Seconds and bytes of a training step, for each road that a variable can take.

Plain data in, plain data out: no TensorFlow, no job, nothing is measured here. A
road's seconds are the sum of three parts, none of which hides another:

- **transfer**: what the busiest machine sends or receives, whichever is more, over
  its link's bandwidth; or what stays on a machine, over the local one, if that takes
  longer. With local aggregation one comes after the other, and both count.
- **latency**: the calls that the road makes. Two variables on one road share them, for
  all tables' pulls travel together, and so do all dense gradients: `step` counts
  each call once.
- **row work**: reading, summing and writing rows in memory. A step that updates a
  copy from a dense gradient touches every row of the table on every worker, in
  order; one with a sparse gradient touches the rows that were looked up, by their
  ids, which takes about five times as long for each.

With `n` rows of `w` bytes and ids of `i` bytes, `M` machines of `k` workers, `W = M·k`,
and `alpha·n` distinct rows that one worker touches (`alpha_machine·n` the workers of a
machine, `alpha_all·n` all of them), one machine sends, and receives as much:

| road | bytes |
|---|---|
| servers | `k·alpha·n·(i + 2w)·(M-1)/M` |
| servers, local aggregation | `alpha_machine·n·(i + 2w)·(M-1)/M` |
| all-gather of slices | `alpha·n·(i + w)·(W-1)` |
| all-reduce, dense | `2·n·w·(W-1)/W` |

With one worker a machine, and ids left out, in and out together are table 1 of Kim et
al., "Parallax", EuroSys 2019: `4·alpha·w·n·(N-1)/N` for sparse variables on servers,
`2·alpha·w·n·(N-1)` gathered, and `4·w·n·(N-1)/N` for dense ones, on servers
(alpha = 1) or around a ring. A ring of several workers a machine has one link into
the machine and one out of it, however many workers it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from keras_parallax.plan.network import Cluster
from keras_parallax.plan.use import Use
from keras_parallax.roads import ALLGATHER, ALLREDUCE, SERVERS

PEERS = "peers"
DEDICATED = "dedicated"
#: Where a variable lives of which every worker has a copy.
WORKERS = "workers"

# How often a row is read or written in memory, counted from the implementation:
# the worker scatters what it pulled and sums its gradient by row; who has the row
# reads it, receives a gradient and adds it up.
_PASSES_OF_WORKER = 4
_PASSES_OF_OWNER = 3
# Joined, sorted by id, added up.
_PASSES_OF_GATHERED = 3
# Into the buffer, added to a neighbour's, out of it.
_PASSES_OF_REDUCED = 3
# What a pass over all rows, in order, takes of one that picks rows by their ids.
_IN_ORDER = 0.2


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that a road makes in each step, whatever number of variables it carries.

    Attributes:
        name: What it does; calls of one name are one call.
        seconds: What it takes when it carries nothing.
        messages: Messages that one worker sends in it.
    """

    name: str
    seconds: float
    messages: int


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one variable costs a step on one road, alone.

    Attributes:
        path: Path of the variable.
        road: "servers", "allreduce" or "allgather".
        home: "peers" or "dedicated" on servers, else "workers".
        aggregated: Whether the workers of a machine act as one.
        sent_bytes: What the busiest machine sends to others.
        received_bytes: What it receives from others.
        local_bytes: What its processes send to each other.
        transfer_s: Seconds of sending all that.
        row_work_s: Seconds of reading and writing rows in memory.
        calls: The calls that it makes; see `step`.
        memory_bytes: What one worker has of the variable and its slots.
        obstacle: Why it cannot be, in one sentence; empty if it can.
    """

    path: str
    road: str
    home: str
    aggregated: bool
    sent_bytes: float
    received_bytes: float
    local_bytes: float
    transfer_s: float
    row_work_s: float
    calls: tuple[Call, ...]
    memory_bytes: float
    obstacle: str = ""

    @property
    def latency_s(self) -> float:
        """Seconds of its calls, if no other variable shared them."""
        return sum(call.seconds for call in self.calls)

    @property
    def messages(self) -> int:
        """Messages that one worker sends."""
        return sum(call.messages for call in self.calls)

    @property
    def seconds(self) -> float:
        """Seconds a step, alone."""
        return self.transfer_s + self.latency_s + self.row_work_s

    @property
    def own_s(self) -> float:
        """Seconds a step that it never shares: transfer and row work."""
        return self.transfer_s + self.row_work_s

    @property
    def machine_bytes(self) -> float:
        """What the busiest machine sends and receives."""
        return self.sent_bytes + self.received_bytes

    @property
    def feasible(self) -> bool:
        """Whether it can be."""
        return not self.obstacle

    @property
    def label(self) -> str:
        """Road and home in one word or two."""
        return f"{self.road} ({self.home})" if self.road == SERVERS else self.road

    def to_dict(self) -> dict:
        """It, as plain data; of its calls, their seconds by name."""
        fields = dataclasses.asdict(self)
        fields["calls"] = {call.name: call.seconds for call in self.calls}
        names = ("machine_bytes", "latency_s", "seconds", "messages")
        return {**fields, **{name: getattr(self, name) for name in names}}


def candidates(
    use: Use,
    cluster: Cluster,
    homes: Sequence[str] = (PEERS,),
    roads: Sequence[str] = (SERVERS, ALLREDUCE),
) -> list[Cost]:
    """What a variable costs on each road that it could take.

    Args:
        use: The variable.
        cluster: Who takes part.
        homes: Homes that tables could have: "peers", "dedicated".
        roads: Roads there are. Slices cannot be gathered of a dense gradient.

    Returns:
        One for each road, and for each home on servers; those that cannot be say
        why.
    """
    found = []
    if SERVERS in roads:
        found += [_on_servers(use, cluster, home) for home in homes]
    if ALLREDUCE in roads:
        found.append(_all_reduced(use, cluster))
    if ALLGATHER in roads and use.gradient == "sparse":
        found.append(_all_gathered(use, cluster))
    return found


@dataclasses.dataclass(frozen=True)
class StepCost:
    """What all variables together cost a step.

    Attributes:
        transfer_s: Seconds of sending.
        latency_s: Seconds of the calls, each counted once.
        row_work_s: Seconds of reading and writing rows.
        sent_bytes: What the busiest machine sends to others.
        received_bytes: What it receives from others.
        local_bytes: What its processes send to each other.
        messages: Messages that one worker sends.
        memory_bytes: What one worker has of all variables and their slots.
    """

    transfer_s: float
    latency_s: float
    row_work_s: float
    sent_bytes: float
    received_bytes: float
    local_bytes: float
    messages: int
    memory_bytes: float

    @property
    def seconds(self) -> float:
        """Seconds a step, besides computing."""
        return self.transfer_s + self.latency_s + self.row_work_s

    @property
    def machine_bytes(self) -> float:
        """What the busiest machine sends and receives."""
        return self.sent_bytes + self.received_bytes

    def to_dict(self) -> dict:
        """It, as plain data."""
        names = ("seconds", "machine_bytes")
        return {
            **dataclasses.asdict(self),
            **{name: getattr(self, name) for name in names},
        }


def step(costs: Iterable[Cost]) -> StepCost:
    """What variables cost a step together, where each takes the road of its cost.

    Nothing overlaps: bytes add up, since they share a link, and so do calls of
    different names, since they share the thread that makes them.
    """
    costs = list(costs)
    calls = {call.name: call for cost in costs for call in cost.calls}
    return StepCost(
        transfer_s=sum(cost.transfer_s for cost in costs),
        latency_s=sum(call.seconds for call in calls.values()),
        row_work_s=sum(cost.row_work_s for cost in costs),
        sent_bytes=sum(cost.sent_bytes for cost in costs),
        received_bytes=sum(cost.received_bytes for cost in costs),
        local_bytes=sum(cost.local_bytes for cost in costs),
        messages=sum(call.messages for call in calls.values()),
        memory_bytes=sum(cost.memory_bytes for cost in costs),
    )


def _on_servers(use: Use, cluster: Cluster, home: str) -> Cost:
    """Rows pulled from where they live, and their gradients pushed there.

    Ids go out once, rows come back, gradients follow the ids.
    """
    workers, machines = cluster.workers, cluster.machines
    one, machine, everyone = use.touched_rows(cluster)
    each = cluster.workers_per_machine
    owners = workers if home == PEERS else max(1, cluster.servers or machines)
    asks, answers = use.id_bytes + use.travel_bytes, use.travel_bytes
    rows = machine if cluster.aggregates else one * each
    away = home == DEDICATED and cluster.server_machines > 0
    if away:
        # A machine of servers talks to all workers' machines; which is busier?
        busier = max(1.0, machines / cluster.server_machines)
        sent, received = busier * rows * asks, busier * rows * answers
        local = 0.0
    else:
        sent = received = rows * (asks + answers) * (machines - 1) / machines
        # Of the rows that stay on the machine, a peer has some itself.
        stays = (each - 1) / each if home == PEERS else 1.0
        local = rows * (asks + answers) / machines * stays
    if cluster.aggregates:
        within = each * one * (asks + answers) * (each - 1) / each
        local = within if home == PEERS else within + local
    if workers == 1 and home == PEERS:
        sent = received = local = 0.0
    served = rows * machines / owners
    work = (
        _PASSES_OF_WORKER * one
        + _PASSES_OF_OWNER * served
        + _updated_rows(use, everyone) / owners
    ) * use.row_bytes
    copies = use.size_bytes * (1 + use.slots)
    return _cost(
        use,
        cluster,
        road=SERVERS,
        home=home,
        aggregated=cluster.aggregates,
        traffic=(sent, received, local),
        work_bytes=work,
        calls=_server_calls(use, cluster, home),
        memory_bytes=copies / workers if home == PEERS else 0.0,
    )


def _all_reduced(use: Use, cluster: Cluster) -> Cost:
    """A copy on each worker, and the dense gradient summed around a ring."""
    share = (cluster.workers - 1) / cluster.workers
    around = 2 * use.num_rows * use.travel_bytes * share
    rows = _IN_ORDER * _PASSES_OF_REDUCED * use.num_rows
    if use.gradient == "sparse":
        # Filled with zeros, and the slices put in. A dense variable is what it is,
        # and its update part of computing.
        one, _, _ = use.touched_rows(cluster)
        rows += _IN_ORDER * use.num_rows + one
        rows += _IN_ORDER * _update_passes(use) * use.num_rows
    steps = 2 * (cluster.workers - 1)
    return _copies(
        use,
        cluster,
        ALLREDUCE,
        around,
        rows * use.row_bytes,
        [_ring_call(ALLREDUCE, cluster, steps)],
    )


def _all_gathered(use: Use, cluster: Cluster) -> Cost:
    """A copy on each worker, and each worker's slices sent to all."""
    one, _, everyone = use.touched_rows(cluster)
    around = one * (use.id_bytes + use.travel_bytes) * (cluster.workers - 1)
    joined = _PASSES_OF_GATHERED * one * cluster.workers
    work = (joined + _updated_rows(use, everyone)) * use.row_bytes
    # Ids and rows are of two types: twice around, but agreed on once.
    calls = [_ring_call(ALLGATHER, cluster, 2 * (cluster.workers - 1))]
    return _copies(use, cluster, ALLGATHER, around, work, calls)


def _copies(
    use: Use,
    cluster: Cluster,
    road: str,
    around: float,
    work_bytes: float,
    calls: Sequence[Call],
) -> Cost:
    """A road with a copy on each worker; `around` are the bytes that a ring's link
    carries."""
    crosses = around if cluster.machines > 1 else 0.0
    each = cluster.workers_per_machine
    # A ring that goes through a machine has one link less in it than workers.
    links = each - 1 if cluster.machines > 1 or each == 1 else each
    return _cost(
        use,
        cluster,
        road=road,
        home=WORKERS,
        aggregated=False,
        traffic=(crosses, crosses, around * links),
        work_bytes=work_bytes,
        calls=calls,
        memory_bytes=use.size_bytes * (1 + use.slots),
    )


def _cost(
    use: Use,
    cluster: Cluster,
    *,
    road: str,
    home: str,
    aggregated: bool,
    traffic: tuple[float, float, float],
    work_bytes: float,
    calls: Sequence[Call],
    memory_bytes: float,
) -> Cost:
    sent, received, local = traffic
    network = cluster.network
    away_s = max(sent, received) / network.bandwidth_bytes_per_s
    local_s = local / network.local_bandwidth_bytes_per_s
    limit = cluster.memory_limit_bytes
    obstacle = ""
    if limit is not None and memory_bytes > limit:
        obstacle = (
            f"a worker would need {memory_bytes:,.0f} bytes for it and its slots, and "
            f"has {limit:,.0f}"
        )
    return Cost(
        path=use.path,
        road=road,
        home=home,
        aggregated=aggregated,
        sent_bytes=sent,
        received_bytes=received,
        local_bytes=local,
        # What one exchange sends within machines and between them goes at the same
        # time; with aggregation these are exchanges of their own.
        transfer_s=away_s + local_s if aggregated else max(away_s, local_s),
        row_work_s=work_bytes / network.memory_bytes_per_s,
        calls=tuple(call for call in calls if call.messages),
        memory_bytes=memory_bytes,
        obstacle=obstacle,
    )


def _updated_rows(use: Use, touched: float) -> float:
    """Passes of rows that the optimizer's update makes."""
    if use.updates_all_rows or use.gradient == "dense":
        return _IN_ORDER * _update_passes(use) * use.num_rows
    return _update_passes(use) * touched


def _update_passes(use: Use) -> int:
    """The gradient is read; value and slots are read and written."""
    return 3 + 2 * use.slots


def _server_calls(use: Use, cluster: Cluster, home: str) -> list[Call]:
    """Ids for all tables; rows and gradients for each width of row; where workers of
    a machine act as one, the same within the machine before."""
    whats = ["ids", f"rows of {use.row_bytes:g}", f"gradients of {use.row_bytes:g}"]
    network, machines = cluster.network, cluster.machines
    each = cluster.workers_per_machine
    found = []
    if home == PEERS or cluster.relays:
        apart = cluster.aggregates and home == PEERS
        others = (machines if apart else cluster.workers) - 1
        seconds = network.call_s + cluster.link_latency_s
        found += [Call(f"{home} {what}", seconds, others) for what in whats]
    if home == DEDICATED and cluster.relays:
        # With the server beside it; and word to all that the gradients are in.
        trip = network.server_trip_s + 2 * network.local_latency_s
        found += [Call(f"{home} {what}", trip, 1) for what in ("pull", "push")]
        found.append(_ring_call(f"{home} end", cluster, 2 * (cluster.workers - 1)))
    elif home == DEDICATED:
        # A round trip for the rows; the gradients, and word that they are in.
        trip = network.server_trip_s + 2 * cluster.link_latency_s
        servers = max(1, cluster.servers or machines)
        rounds = ("pull", "push", "token")
        found += [Call(f"{home} {what}", trip, servers) for what in rounds]
    if cluster.aggregates:
        seconds = network.call_s + network.local_latency_s
        found += [Call(f"machine {what}", seconds, each - 1) for what in whats]
    return found


def _ring_call(name: str, cluster: Cluster, steps: int) -> Call:
    seconds = cluster.network.call_s + steps * cluster.link_latency_s
    return Call(name, seconds, steps)
