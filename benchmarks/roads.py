"""Step time and bytes of the sparse road on emulated hosts: servers, peers, all-gather.

Raw pulls and pushes, no model (see `sparse_steps.py`), with one worker on each host
and, for `dedicated`, one server: over the number of ids that a worker looks up in a
step, their distribution, and whether ids come several times.

`bytes / least` compares what crossed the hosts' interfaces, headers and all that
Horovod and gRPC have to say included, with the least that could have:

    2 · d · (4 + 2 · row bytes), summed over workers,

where `d` is the number of distinct rows that a worker wants of other hosts: the id
once, the row once, its gradient once, each out of one host and into another.
`fixed_mb` is what a host sends and receives in a step of one id: what messages say
besides ids and rows, however many these are. `without fixed` leaves it out: it is what
grows with the rows, headers of the network included (the kernel counts one for each
piece of up to 64 KiB that it hands to the link; with one for each 1,514 bytes, and
acknowledgements, a real wire would carry 6% more).

The latency of a step with 200 ids is measured on four workers without shaping,
beside the three all-to-alls alone that peers make of it (`raw`), in turns.
"""

import dataclasses
import functools
import json
import statistics
import sys

from benchmarks import report, sparse_steps
from benchmarks.cluster import EmulatedCluster

ROWS = 400_000
WIDTH = 64
# Together they are measured by processes that are not connected to any server.
JOBS = (("peers", "allgather"), ("dedicated",))
CASE_KEYS = ("distribution", "duplicates", "ids")
TARGET_CASE = ("uniform", False, 8000)
LATENCY_CASE = ("uniform", False, 200)
FIXED_CASE = ("uniform", False, 1)
_MEGA = 1e6


def main():
    parser = report.arguments(__doc__, plots=True)
    args = parser.parse_args()
    results = report.Report("roads")
    latency(results, rounds=3 if args.quick else 7)
    for rate in (200,) if args.quick else (200, 1000):
        for hosts in (8, 4):
            steps = 3 if args.quick else 4
            rows = measure(hosts, rate, cases_of(args.quick), steps)
            for row in rows:
                results.add_row(**row)
            print(report.format_table(rows), flush=True)
            check(results, hosts, rate, rows)
    results.finish(args.json)
    if args.plot:
        plot(results.rows, args.plot)


def cases_of(quick):
    """What the workers look up, as `sparse_steps.Plan` has it."""
    if quick:
        return [("uniform", False, 200), TARGET_CASE]
    counts = (200, 2000, 8000, 20_000)
    cases = [
        (*kind, n) for kind in (("uniform", False), ("zipf", True)) for n in counts
    ]
    return [*cases, ("uniform", True, 8000), ("zipf", False, 8000)]


def measure(hosts, rate_mbit, cases, steps):
    """Measures all roads on a cluster; returns a row for each road and case."""
    rows = []
    cases = (FIXED_CASE, *cases)
    with EmulatedCluster(hosts, 1, rate_mbit) as cluster:
        for roads in JOBS:
            plan = sparse_steps.Plan(roads, ROWS, WIDTH, cases, steps)
            fixed = {}
            for found in run(cluster, plan):
                road = found[0]["road"]
                first = {key: found[0][key] for key in CASE_KEYS}
                case = tuple(first.values())
                crossed = least = None
                if cluster.emulated:
                    crossed = sum(f["sent_bytes"] + f["received_bytes"] for f in found)
                    least = least_bytes(plan, case, hosts)
                if case == FIXED_CASE:
                    fixed[road] = crossed and crossed - least
                    continue
                row = {
                    "hosts": hosts,
                    "rate_mbit": rate_mbit if cluster.emulated else "none",
                    **first,
                    "road": road,
                    "step_ms": 1e3 * max(f["step_seconds"] for f in found),
                }
                if crossed is not None:
                    row["mb_per_host"] = crossed / hosts / _MEGA
                    row["least_mb"] = least / hosts / _MEGA
                    row["fixed_mb"] = fixed[road] / hosts / _MEGA
                    row["bytes / least"] = crossed / least
                    row["without fixed"] = (crossed - fixed[road]) / least
                rows.append(row)
    return rows


def run(cluster, plan):
    """Runs a plan; returns what the workers say of each measurement, by rank."""
    text = json.dumps(dataclasses.asdict(plan))
    command = [sys.executable, "-m", "benchmarks.sparse_steps", text]
    done = cluster.run(command, timeout_seconds=900)
    return list(zip(*(worker.result for worker in done.workers), strict=True))


@functools.cache
def least_bytes(plan, case, hosts):
    """The least that crosses all hosts' boundaries in a step of the plan."""
    machines = range(hosts)
    steps = sparse_steps.measured_steps(plan, case)
    return statistics.mean(
        sparse_steps.least_bytes(
            plan,
            [sparse_steps.draw(plan, case, rank, step) for rank in machines],
            lambda ids: ids % hosts,
            machines,
        )
        for step in steps
    )


def check(results, hosts, rate_mbit, rows):
    """Checks one cluster's rows against what was asked for."""
    where = f"{hosts} hosts, {rate_mbit} Mbit/s"
    for road in ("dedicated", "peers"):
        mine = [row for row in rows if row["road"] == road and "least_mb" in row]
        for label, few in (("200 ids", True), ("more ids", False)):
            these = [row for row in mine if (row["ids"] <= 200) == few]
            for key in ("bytes / least", "without fixed") if these else ():
                name = f"{road}, {where}, {label}: most {key}"
                results.add_check(name, max(row[key] for row in these), "<=", 1.10)
    if (hosts, rate_mbit) != (8, 200):
        return
    times = {
        row["road"]: row["step_ms"]
        for row in rows
        if tuple(row[key] for key in CASE_KEYS) == TARGET_CASE
    }
    for road in ("dedicated", "peers"):
        gain = times["allgather"] / times[road]
        name = f"all-gather / {road}, {where}, 8,000 uniform ids: time"
        results.add_check(name, gain, ">=", 2.5)


def latency(results, rounds):
    """Measures the step of few ids on four workers of this machine, unshaped."""
    times = {}
    with EmulatedCluster(4) as cluster:
        for roads in (("peers", "raw"), ("dedicated",)):
            cases = (LATENCY_CASE,) * rounds
            plan = sparse_steps.Plan(roads, ROWS, WIDTH, cases, steps=8)
            for found in run(cluster, plan):
                slowest = 1e3 * max(f["step_seconds"] for f in found)
                times.setdefault(found[0]["road"], []).append(slowest)
    for road, samples in times.items():
        results.add_row(
            hosts=4,
            rate_mbit="none",
            **dict(zip(CASE_KEYS, LATENCY_CASE, strict=True)),
            road=road,
            step_ms=statistics.median(samples),
        )
    ratio = report.Paired({r: times[r] for r in ("peers", "raw")}).ratio("peers", "raw")
    results.add_check("latency, 200 ids, 4 workers: peers / raw", ratio, "<=", 1.5)


def plot(rows, path):
    """Draws step time and bytes per host over the number of ids."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in rows if "mb_per_host" in row]
    places = sorted({(row["hosts"], row["rate_mbit"]) for row in rows})
    figure, axes = plt.subplots(
        2, len(places), figsize=(3.4 * len(places), 6.4), sharex=True, sharey="row",
        squeeze=False, layout="constrained",
    )  # fmt: skip
    colors = {"allgather": "tab:red", "dedicated": "tab:blue", "peers": "tab:green"}
    names = {"allgather": "all-gather", "dedicated": "dedicated", "peers": "peers"}
    kinds = {("uniform", False): "-", ("zipf", True): "--"}
    for column, place in zip(axes.T, places, strict=True):
        here = [row for row in rows if (row["hosts"], row["rate_mbit"]) == place]
        column[0].set_title(f"{place[0]} hosts, {place[1]} Mbit/s", fontsize=10)
        for road, color in colors.items():
            for (distribution, duplicates), style in kinds.items():
                mine = [
                    row
                    for row in here
                    if (row["road"], row["distribution"], row["duplicates"])
                    == (road, distribution, duplicates)
                ]
                repeated = "with duplicates" if duplicates else "distinct"
                label = f"{names[road]}, {distribution}, {repeated}"
                for axis, key in zip(column, ("step_ms", "mb_per_host"), strict=True):
                    axis.plot(
                        [row["ids"] for row in mine], [row[key] for row in mine],
                        style, color=color, marker="o", markersize=3, label=label,
                    )  # fmt: skip
        for axis in column:
            axis.set(xscale="log", yscale="log")
            axis.grid(alpha=0.3)
        column[1].set_xlabel("ids a worker looks up in a step")
    axes[0, 0].set_ylabel("step time (ms)")
    axes[1, 0].set_ylabel("sent + received, MB a host")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
