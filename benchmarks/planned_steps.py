"""What a worker does to compare the plan that finds itself with all others.

Run by `plan_quality.py` as each worker of a cluster:

    python -m benchmarks.planned_steps '{"model": "recommender", …}'

with the fields of `Job`. First `fit` runs until the plan does not change any more.
Then tables are moved from road to road, and with each set of roads some steps are
timed; in rounds, every second one backwards, so that a slow spell of the machine hits
all. Last, the plan chosen and the two that came out fastest are compared once more, in
turns: the fastest of many is partly the luckiest.
"""

import dataclasses
import functools
import itertools
import json
import sys
import time

from benchmarks import report
from benchmarks.cluster import print_result
from benchmarks.models import kinds
from benchmarks.timed_steps import TimedSteps

ROADS = ("servers", "allgather", "allreduce")

_MOST_FITS = 5
_FIT_STEPS = 24
_BATCHES = 8
#: All combinations of roads are tried for so many tables, at most.
FEW_TABLES = 3


@dataclasses.dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        model: Key of `kinds.KINDS`.
        servers: As `ParallaxStrategy` takes it.
        batch: Global batch.
        rounds: Rounds over all plans.
        turns: Turns of the plan chosen and the two fastest.
        steps: Steps timed in a turn; fewer where they take long.
    """

    model: str
    servers: str
    batch: int
    rounds: int
    turns: int
    steps: int


def plans_to_try(rows):
    """Sets of roads to measure: all of them for few tables.

    For many: all tables on one road, and, for each size, those of up to as many rows
    all-reduced and the larger ones on one of the other roads.

    Args:
        rows: Dict of a table's path to its rows.

    Returns:
        List of dicts of path to road. Neighbours in it differ in little.
    """
    if len(rows) <= FEW_TABLES:
        found = itertools.product(ROADS, repeat=len(rows))
        return [dict(zip(rows, roads, strict=True)) for roads in found]
    sizes = sorted(set(rows.values()))
    plans = [dict.fromkeys(rows, "servers")]
    plans += [_split(rows, size, "servers") for size in sizes]
    plans += [_split(rows, size, "allgather") for size in reversed(sizes[:-1])]
    return [*plans, dict.fromkeys(rows, "allgather")]


def _split(rows, size, road):
    return {path: "allreduce" if n <= size else road for path, n in rows.items()}


def main(text):
    job = Job(**json.loads(text))
    import tensorflow as tf

    import keras_parallax as kp

    strategy = kp.ParallaxStrategy(servers=job.servers)
    with strategy.scope():
        model, data = kinds.KINDS[job.model](job.batch, _BATCHES)
    dataset = tf.data.Dataset.from_tensor_slices(data)
    dataset = dataset.batch(job.batch, drop_remainder=True).cache().repeat()
    found = find_plan(strategy, model, dataset)
    say(strategy, f"found {found['roads']} in {found['steps']} steps")
    bench = TimedSteps(strategy, model, dataset, job.steps)
    rows = {e.variable: e.shape[0] for e in found["entries"].values()}
    chosen = found["roads"]
    plans = plans_to_try(rows) if rows else [{}]
    if chosen not in plans:
        plans.append(chosen)
    turns = {i: functools.partial(bench.reroute, p) for i, p in enumerate(plans)}
    compared = report.compare(turns, job.rounds if len(plans) > 1 else 1)
    say(strategy, f"compared {len(plans)} plans: {compared.medians}")
    by_time = sorted(turns, key=compared.medians.get)
    last = {index: turns[index] for index in {*by_time[:2], plans.index(chosen)}}
    final = report.compare(last, job.turns).samples if len(plans) > 1 else None
    print_result(
        {
            "chosen": chosen,
            "final_ms": final and list(final.items()),
            "changes": found["changes"],
            "steps": found["steps"],
            "network": strategy.network.to_dict(),
            "rows": rows,
            "alphas": {p: e.alpha for p, e in found["entries"].items()},
            "plans": [
                {
                    "roads": plan,
                    "samples_ms": compared.samples[index],
                    "predicted_ms": 1e3 * predicted_s(plan, found),
                }
                for index, plan in enumerate(plans)
            ],
        }
    )


def say(strategy, what):
    """Tells how far it is; shown where a run is not over in time."""
    if strategy.is_chief:
        print(f"{time.process_time():.0f} s: {what}", flush=True)


def find_plan(strategy, model, dataset):
    """Trains until the plan does not change any more; returns what it is."""
    before, fits = None, 0
    while before != strategy.plan.changes and fits < _MOST_FITS:
        before = list(strategy.plan.changes)
        model.fit(dataset, steps_per_epoch=_FIT_STEPS, verbose=0)
        fits += 1
    entries = {e.variable: e for e in strategy.plan if e.costs}
    return {
        "steps": fits * _FIT_STEPS,
        "changes": list(strategy.plan.changes),
        "entries": entries,
        "roads": {path: entry.road for path, entry in entries.items()},
        "dense": any(e.gradient == "dense" for e in strategy.plan),
    }


def predicted_s(roads, found):
    """What the cost model says that tables cost a step on these roads, beside the
    dense variables' all-reduce, in seconds."""
    seconds, calls = 0.0, {}
    for path, road in roads.items():
        cost = next(c for c in found["entries"][path].costs if c["road"] == road)
        seconds += cost["transfer_s"] + cost["row_work_s"]
        calls.update(cost["calls"])
    if found["dense"]:
        # Made anyway.
        calls.pop("allreduce", None)
    return seconds + sum(calls.values())


if __name__ == "__main__":
    main(sys.argv[1])
