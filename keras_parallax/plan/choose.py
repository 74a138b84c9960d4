"""Which road each variable takes: the set of roads with the cheapest step.

Roads are not chosen one variable at a time, for the variables of one road share its
calls: the first table on servers pays for the exchange of ids, and the second rides
along. That is why a small table goes the dense way where it would be the only one,
and with the others where there are some.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from keras_parallax import errors
from keras_parallax.plan.cost import PEERS, Cost, candidates, step
from keras_parallax.plan.network import Cluster
from keras_parallax.plan.use import Use
from keras_parallax.roads import ALLREDUCE, SERVERS

#: A change of plan has to save more than this share of what the step costs now.
HYSTERESIS = 0.1


@dataclasses.dataclass(frozen=True)
class Choice:
    """The road of one variable.

    Attributes:
        cost: What it costs there.
        alternatives: What it would cost elsewhere, cheapest first.
        extra_s: By how much the step would be longer if this variable alone took
            the next best road; infinite where there is no other, negative where a
            better one does not save enough for a change.
        reason: Why, in one sentence.
    """

    cost: Cost
    alternatives: tuple[Cost, ...]
    extra_s: float
    reason: str

    @property
    def road(self) -> str:
        """Road that it takes."""
        return self.cost.road

    @property
    def home(self) -> str:
        """Where it lives."""
        return self.cost.home

    @property
    def label(self) -> str:
        """Road and home."""
        return self.cost.label


def choose(
    uses: Iterable[Use],
    cluster: Cluster,
    *,
    current: Mapping[str, str] | None = None,
    fixed: Mapping[str, str] | None = None,
    hysteresis: float = HYSTERESIS,
    homes: Sequence[str] = (PEERS,),
    roads: Sequence[str] = (SERVERS, ALLREDUCE),
) -> dict[str, Choice]:
    """Gives each variable its road.

    It starts from the current plan, and, for each set of roads, from the plan in which
    each variable takes the one of them that is cheapest but for shared calls. It moves
    one variable at a time while that helps; the cheapest plan found is taken.

    Args:
        uses: The variables. Dense ones are all-reduced, and pay for that call.
        cluster: Who takes part.
        current: Road of variables now, by path. A change of plan has to save more
            than `hysteresis`, as a share of what these variables cost now, and within
            it each variable's change its part.
        fixed: Road of variables that are not to be asked, by path.
        hysteresis: See `current`.
        homes: Homes that tables can have; all tables get the same one.
        roads: Roads there are.

    Returns:
        A choice for each variable, by path.

    Raises:
        ConfigError: A variable cannot take any road.
    """
    uses = list(uses)
    best: dict[str, Cost] | None = None
    for home in homes:
        options = {
            use.path: _options(use, cluster, home, roads, fixed or {}) for use in uses
        }
        found = _cheapest(options, _starts(options, current))
        if best is None or _seconds(found) < _seconds(best):
            best, best_options = found, options
    if best is None:
        raise errors.ConfigError(
            f"`homes` names at least one home of tables. Received: homes={homes!r}"
        )
    now = _plan_of(best_options, current)
    if now is not None:
        best = _with_hysteresis(now, best, hysteresis)
    uses_by_path = {use.path: use for use in uses}
    running = _Running(best)
    return {
        path: _choice(uses_by_path[path], running, best_options[path]) for path in best
    }


def saving_s(choices: Mapping[str, Choice], roads: Mapping[str, str]) -> float:
    """Seconds a step that choices save.

    Args:
        choices: The road chosen for each variable, by path.
        roads: The road of variables now; of the others, the one chosen.
    """
    now = []
    for path, choice in choices.items():
        costs = [choice.cost, *choice.alternatives]
        road = roads.get(path, choice.road)
        now.append(next((c for c in costs if c.road == road), choice.cost))
    chosen = [choice.cost for choice in choices.values()]
    return step(now).seconds - step(chosen).seconds


def _options(
    use: Use,
    cluster: Cluster,
    home: str,
    roads: Sequence[str],
    fixed: Mapping[str, str],
) -> list[Cost]:
    """The costs that a variable chooses from."""
    if use.path in fixed:
        roads = [fixed[use.path]]
    elif use.gradient == "dense" and ALLREDUCE in roads:
        roads = [ALLREDUCE]
    found = candidates(use, cluster, [home], roads)
    possible = [cost for cost in found if cost.feasible]
    if not possible:
        obstacles = "; ".join(f"{cost.label}: {cost.obstacle}" for cost in found)
        raise errors.ConfigError(
            f"{use.path} fits on none of its roads. Give the workers more memory, or "
            f"the tables more servers. Received: roads={list(roads)}. {obstacles}"
        )
    return possible


def _starts(
    options: Mapping[str, list[Cost]], current: Mapping[str, str] | None
) -> list[dict[str, Cost]]:
    """Plans to begin with."""
    roads = list(dict.fromkeys(c.road for costs in options.values() for c in costs))
    starts = [
        {path: _cheapest_on(costs, allowed) for path, costs in options.items()}
        for size in range(1, len(roads) + 1)
        for allowed in itertools.combinations(roads, size)
    ]
    now = _plan_of(options, current)
    return starts if now is None else [now, *starts]


def _plan_of(
    options: Mapping[str, list[Cost]], roads: Mapping[str, str] | None
) -> dict[str, Cost] | None:
    """The plan in which variables take `roads`; new ones, what is cheapest."""
    if not roads:
        return None
    return {
        path: _on(costs, roads.get(path, "")) or _by_itself(costs)
        for path, costs in options.items()
    }


def _cheapest_on(costs: Sequence[Cost], roads: Sequence[str]) -> Cost:
    """The cheapest but for calls on some roads; anywhere, where there is none."""
    return _by_itself([cost for cost in costs if cost.road in roads] or costs)


def _on(costs: Sequence[Cost], road: str) -> Cost | None:
    return next((cost for cost in costs if cost.road == road), None)


def _by_itself(costs: Sequence[Cost]) -> Cost:
    return min(costs, key=lambda cost: cost.own_s)


def _seconds(plan: Mapping[str, Cost]) -> float:
    return step(plan.values()).seconds


def _cheapest(
    options: Mapping[str, list[Cost]], starts: Sequence[dict[str, Cost]]
) -> dict[str, Cost]:
    """The cheapest plan to which single changes lead from the starts."""
    found = [_improved(start, options) for start in starts]
    return min(found, key=_seconds, default={})


def _improved(
    plan: dict[str, Cost], options: Mapping[str, list[Cost]]
) -> dict[str, Cost]:
    """Changes one variable at a time, in turns, while that helps."""
    running = _Running(plan)
    helped = True
    while helped:
        helped = False
        for path, costs in options.items():
            better = min(costs, key=lambda cost: running.extra_s(path, cost))
            # Else rounding could turn it in a circle.
            if running.extra_s(path, better) < -1e-9 * running.seconds:
                running.change(path, better)
                helped = True
    return running.plan


class _Running:
    """The seconds of a plan whose variables change their roads one by one.

    Args:
        plan: The plan to begin with.
    """

    def __init__(self, plan: Mapping[str, Cost]):
        self.plan = dict(plan)
        self.seconds = _seconds(plan)
        # How many variables make each call.
        self._callers = collections.Counter(
            call.name for cost in plan.values() for call in cost.calls
        )

    def extra_s(self, path: str, cost: Cost) -> float:
        """Seconds that the step would take longer if a variable took that road."""
        now = self.plan[path]
        if cost is now:
            return 0.0
        kept = {call.name for call in now.calls}
        stays = {call.name for call in cost.calls}
        saved = sum(
            call.seconds
            for call in now.calls
            if call.name not in stays and self._callers[call.name] == 1
        )
        added = sum(
            call.seconds
            for call in cost.calls
            if call.name not in kept and not self._callers[call.name]
        )
        return cost.own_s - now.own_s + added - saved

    def change(self, path: str, cost: Cost) -> None:
        """Has the variable take that road."""
        self.seconds += self.extra_s(path, cost)
        self._callers.subtract(call.name for call in self.plan[path].calls)
        self._callers.update(call.name for call in cost.calls)
        self.plan[path] = cost


def _with_hysteresis(
    now: dict[str, Cost], best: dict[str, Cost], hysteresis: float
) -> dict[str, Cost]:
    """The best plan as far as the changes to it are worth being made."""
    before = _seconds(now)
    changed = [path for path in best if best[path] is not now[path]]
    # What makes next to no difference stays where it is, though the rest moves.
    threshold = hysteresis * before / max(1, len(changed))
    running = _Running(best)
    for path in changed:
        if running.extra_s(path, now[path]) <= threshold:
            running.change(path, now[path])
    return running.plan if before - running.seconds > hysteresis * before else now


def _choice(use: Use, plan: _Running, options: Sequence[Cost]) -> Choice:
    cost = plan.plan[use.path]
    others = {
        other: plan.extra_s(use.path, other) for other in options if other is not cost
    }
    alternatives = tuple(sorted(others, key=lambda other: others[other]))
    extra = others[alternatives[0]] if alternatives else float("inf")
    return Choice(cost, alternatives, extra, _reason(use, cost, alternatives, extra))


def _reason(use: Use, cost: Cost, alternatives: Sequence[Cost], extra_s: float) -> str:
    if use.gradient == "dense":
        return "its gradient is dense"
    touched = f"a worker touches {in_percent(use.alpha)} of its rows in a step"
    if not alternatives:
        return f"{touched}; there is no other road for it"
    other = alternatives[0].label
    if extra_s < 0:
        return (
            f"{touched}; {other} would save {in_time(-extra_s)} a step, too little for "
            "a change"
        )
    return f"{touched}; {other} would take {in_time(extra_s)} more a step"


def in_percent(share: float) -> str:
    """A share for people: `1.8%`."""
    return f"{100 * share:.2g}%" if share < 0.995 else "all"


def in_time(seconds: float) -> str:
    """A duration for people: `1.8 ms`."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-6:.2g} us"
