"""What a step would take on a cluster that one does not have.

The roads' costs (`cost.py`) are put together into the ways of training that there
are, ours and others', and computing is added: nothing is taken to overlap.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from keras_parallax.plan.choose import Choice, choose
from keras_parallax.plan.cost import DEDICATED, PEERS, Cost, StepCost, candidates, step
from keras_parallax.plan.network import Cluster
from keras_parallax.plan.use import Use, union_share
from keras_parallax.roads import ALLGATHER, ALLREDUCE, ROADS, SERVERS

HYBRID = "hybrid"
PS = "ps"
GATHER = "allgather"
DENSIFY = "allreduce"

#: What each way of training does, by name.
SYSTEMS = {
    HYBRID: "this package's plan",
    PS: "all variables on servers, each worker by itself",
    GATHER: "all-reduce; sparse gradients gathered, as Horovod does",
    DENSIFY: "all-reduce; sparse gradients made dense",
}


@dataclasses.dataclass(frozen=True)
class System:
    """One way of training.

    Attributes:
        name: Key of `SYSTEMS`.
        home: Where its tables live, if it has any, and whether a machine's workers
            act as one.
        cost: What its exchanges cost a step.
        compute_s: Seconds that a worker computes.
        examples: Examples of a step, of all workers together.
        obstacle: Why it cannot be; empty if it can.
    """

    name: str
    home: str
    cost: StepCost
    compute_s: float
    examples: int
    obstacle: str = ""

    @property
    def seconds(self) -> float:
        """Seconds a step."""
        return self.compute_s + self.cost.seconds

    @property
    def examples_per_s(self) -> float:
        """Examples of all workers in a second."""
        return self.examples / self.seconds

    def to_dict(self) -> dict:
        """It, as plain data."""
        return {
            "name": self.name,
            "home": self.home,
            "seconds": self.seconds,
            "examples_per_s": self.examples_per_s,
            "compute_s": self.compute_s,
            "obstacle": self.obstacle,
            "exchange": self.cost.to_dict(),
        }


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The plan for a cluster, and what it is worth.

    Attributes:
        choices: The road of each variable, by path.
        systems: Each way of training; this package's first.
    """

    choices: Mapping[str, Choice]
    systems: tuple[System, ...]

    def __getitem__(self, name: str) -> System:
        """The way of training of that name."""
        return next(system for system in self.systems if system.name == name)


def predict(
    uses: Sequence[Use],
    cluster: Cluster,
    *,
    compute_s: float,
    examples: int,
    homes: Sequence[str] = (PEERS, DEDICATED),
    roads: Sequence[str] = ROADS,
) -> Prediction:
    """The plan for a cluster, and the step time of it and of other ways.

    Args:
        uses: The variables, as one worker's step uses them.
        cluster: The cluster.
        compute_s: Seconds that one worker computes in a step.
        examples: Examples that one worker has in a step.
        homes: Homes to choose from for this package's tables.
        roads: Roads to choose from for them.
    """
    apart = dataclasses.replace(cluster, local_aggregation=False)
    # Local aggregation is a switch of the strategy: it has to be worth its calls.
    variants = [cluster, apart] if cluster.aggregates else [cluster]
    found = [choose(uses, variant, homes=homes, roads=roads) for variant in variants]
    choices = min(found, key=lambda plan: step(c.cost for c in plan.values()).seconds)
    plans = {
        HYBRID: [choice.cost for choice in choices.values()],
        PS: [_only(use, apart, SERVERS) for use in uses],
        GATHER: [
            _only(use, cluster, ALLGATHER if use.gradient == "sparse" else ALLREDUCE)
            for use in uses
        ],
        DENSIFY: [_only(use, cluster, ALLREDUCE) for use in uses],
    }
    return Prediction(
        choices,
        tuple(
            _system(name, costs, cluster, compute_s, examples)
            for name, costs in plans.items()
        ),
    )


def _only(use: Use, cluster: Cluster, road: str) -> Cost:
    (cost,) = candidates(use, cluster, [DEDICATED], [road])
    return cost


def _system(
    name: str, costs: Sequence[Cost], cluster: Cluster, compute_s: float, examples: int
) -> System:
    homes = dict.fromkeys(
        f"{cost.home}, local aggregation" if cost.aggregated else cost.home
        for cost in costs
        if cost.road == SERVERS
    )
    limit = cluster.memory_limit_bytes
    cost = step(costs)
    obstacle = ""
    if limit is not None and cost.memory_bytes > limit:
        obstacle = (
            f"a worker would need {cost.memory_bytes:,.0f} bytes for variables and "
            f"slots, and has {limit:,.0f}"
        )
    return System(
        name, "".join(homes), cost, compute_s, examples * cluster.workers, obstacle
    )


def grown_share(shares: Sequence[float], draws: int) -> float:
    """Share of a table's rows that `draws` batches touch together.

    The number of distinct words in a text grows as a power of its length (Heaps'
    law); the exponent is read off the batches at hand. The result is never more than
    what batches drawn independently and evenly would touch.

    Args:
        shares: Share of the rows that the first batch touches, the first two
            together, and so on.
        draws: Number of batches.
    """
    first, last, known = shares[0], shares[-1], len(shares)
    independent = union_share(first, draws)
    if known == 1 or first == 0:
        return independent
    exponent = min(1.0, math.log(last / first) / math.log(known))
    return min(independent, first * draws**exponent)
