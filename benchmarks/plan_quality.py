"""The plan that finds itself against an exhaustive measurement of roads.

Five kinds of model (`models/kinds.py`) on four emulated hosts of one worker each. In
one job for each, `fit` runs until the plan does not change any more; then all tables
are sent by all roads, step times are measured, and the plan chosen is compared with
the fastest (`planned_steps.py`). With up to three tables every combination of roads is
measured. The recommender's ten tables have 59,049; measured are all tables on one road
and, for each size, the smaller ones all-reduced and the larger ones on servers, or
gathered.

`predicted_ms` is what the cost model says that tables cost a step; the rest of a step,
computing above all, is the same for all plans of a model.
"""

import dataclasses
import json
import sys
import tempfile

from benchmarks import planned_steps, report
from benchmarks.cluster import EmulatedCluster
from benchmarks.models import kinds

HOSTS = 4
BATCHES = {
    "language model": 128,
    "tied language model": 128,
    "translator": 128,
    "recommender": 1024,
    "CNN": 128,
}
#: Home of tables on servers, and rate of the links.
CLUSTERS = (("peers", 200), ("dedicated", 200), ("peers", 1000))
MOST = 1.05


def main():
    parser = report.arguments(__doc__, plots=True)
    parser.add_argument("--models", nargs="*", choices=kinds.KINDS, metavar="MODEL")
    parser.add_argument("--clusters", nargs="*", type=int, metavar="INDEX")
    args = parser.parse_args()
    results = report.Report("plan_quality")
    chosen = args.clusters or range(1 if args.quick else len(CLUSTERS))
    for servers, rate in [CLUSTERS[index] for index in chosen]:
        with EmulatedCluster(HOSTS, 1, rate) as cluster:
            for model in args.models or kinds.KINDS:
                rounds, turns, steps = (1, 3, 8) if args.quick else (2, 5, 32)
                if model == "recommender":
                    # Ten tables take seconds to move and to trace.
                    rounds = 1
                job = planned_steps.Job(
                    model, servers, BATCHES[model], rounds, turns, steps
                )
                add(results, cluster, rate, job, measure(cluster, job))
                print(results.to_text(), flush=True)
    results.finish(args.json)
    if args.plot:
        plot(results.rows, args.plot)


def measure(cluster, job):
    """Runs a job; returns what worker 0 says of it."""
    command = [sys.executable, "-m", "benchmarks.planned_steps"]
    command.append(json.dumps(dataclasses.asdict(job)))
    with tempfile.TemporaryDirectory() as cache:
        # Emulated hosts have the same addresses whatever their links can do.
        environ = {"KERAS_PARALLAX_NETWORK": "measure", "KERAS_PARALLAX_CACHE": cache}
        return cluster.run(command, environ, timeout_seconds=900).workers[0].result


def add(results, cluster, rate, job, found):
    """Adds what was found of a model: a row for each plan, and a check."""
    where = f"{job.model}, {job.servers}, {rate} Mbit/s"
    if not cluster.emulated:
        where += ", NOT SHAPED"
    paired = report.Paired(
        {index: plan["samples_ms"] for index, plan in enumerate(found["plans"])}
    )
    final = report.Paired(dict(found["final_ms"] or [(0, [1.0])]))
    fastest = min(final.medians, key=final.medians.get)
    (chosen,) = [
        index
        for index, plan in enumerate(found["plans"])
        if plan["roads"] == found["chosen"]
    ]
    for index, plan in enumerate(found["plans"]):
        results.add_row(
            model=job.model,
            home=job.servers,
            rate_mbit=rate,
            plan=in_words(plan["roads"], found["rows"]),
            step_ms=paired.medians[index],
            predicted_ms=plan["predicted_ms"],
            final_ms=final.medians.get(index, "") if found["final_ms"] else "",
            is_chosen=index == chosen,
            is_fastest=index == fastest,
        )
    ratio = final.ratio(chosen, fastest)
    results.add_check(f"{where}: chosen / fastest", ratio, "<=", MOST)
    network = found["network"]
    print(
        f"{where}: {found['steps']} steps; {network}; alphas {found['alphas']}; "
        f"{found['changes']}; final {found['final_ms']}",
        flush=True,
    )


def in_words(roads, rows):
    """A plan in few words: which tables go where."""
    if not roads:
        return "no table"
    if len(set(roads.values())) == 1:
        return f"all {next(iter(roads.values()))}"
    if len(roads) <= planned_steps.FEW_TABLES:
        return ", ".join(f"{path.split('/')[0]} {road}" for path, road in roads.items())
    by_road = {}
    for path, road in sorted(roads.items(), key=lambda item: rows[item[0]]):
        by_road.setdefault(road, []).append(rows[path])
    return ", ".join(
        f"{road} {'+'.join(f'{n:,}' for n in dict.fromkeys(sizes))} rows"
        for road, sizes in by_road.items()
    )


def plot(rows, path):
    """Draws measured over predicted, for each plan of each model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    rows = [row for row in rows if row["plan"] != "no table"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    places = list(dict.fromkeys((row["home"], row["rate_mbit"]) for row in rows))
    figure, axes = plt.subplots(
        len(places), len(models), figsize=(3.2 * len(models), 3 * len(places)),
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for line, (home, rate) in zip(axes, places, strict=True):
        for axis, model in zip(line, models, strict=True):
            here = [
                row
                for row in rows
                if (row["model"], row["home"], row["rate_mbit"]) == (model, home, rate)
            ]
            for row in here:
                color = "tab:green" if row["is_chosen"] else "tab:gray"
                marker = "*" if row["is_fastest"] else "o"
                size = 130 if row["is_fastest"] else 30
                measured = row["final_ms"] or row["step_ms"]
                axis.scatter(
                    row["predicted_ms"], measured, size, color, marker, zorder=3
                )
            axis.set(xscale="log", yscale="log")
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
                scale.set_major_formatter(ticker.ScalarFormatter())
                scale.set_minor_formatter(ticker.NullFormatter())
            axis.set_title(f"{model}\n{home}, {rate} Mbit/s", fontsize=9)
            axis.grid(alpha=0.3)
        line[0].set_ylabel("measured step (ms)")
    for axis in axes[-1]:
        axis.set_xlabel("predicted cost of tables (ms)")
    figure.suptitle("green: chosen; star: fastest; each dot is a plan", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
