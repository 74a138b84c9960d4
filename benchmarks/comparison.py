"""Systems side by side on emulated hosts: what the paper's benchmarks share.

A benchmark is a list of cases, a `Case` for each model, number of hosts and link rate,
and checks of the rows that come of them:

    comparison.main(__doc__, "language_model", cases, check)

The systems of a case take turns in the same processes; those with server processes in
a job of their own, since being connected to servers slows others down. Pairs of steps,
from which ratios come, are of the same turn.

Columns: `of computing` is the step time by that of the stock model when each worker
trains by itself, all of them at once; `of ours` by that of `ours`. `mb_per_host` is
what crossed a host's interface in a step, both ways, headers included; `least_mb` what
has to cross it by the roads that the plan has chosen: distinct rows, once each way, and
their ids; dense gradients by a ring.
"""

import dataclasses
import json
import statistics
import sys
import tempfile

from benchmarks import mirrored, report, system_steps, systems, tensorflow_servers
from benchmarks.cluster import EmulatedCluster

CASE_KEYS = ("hosts", "workers", "rate_mbit", "batch")
OURS = ("ours", "ours, servers", "ours, fixed")
MOST_SLOWER = 1.03
MOST_BYTES = 1.10
_MEGA = 1e6
#: What cannot share a process with Horovod, or with a connection to servers.
_FOREIGN = {systems.TENSORFLOW: tensorflow_servers, systems.MIRRORED: mirrored}
_TIMEOUT_S = 900


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured in one or two jobs.

    Attributes:
        model: Key of `system_steps.builders()`.
        hosts: Number of hosts.
        rate_mbit: Rate of their links; None leaves these as fast as they are.
        systems: Names of the systems.
        batch: Batch of one worker.
        options: What else the model's builder is given.
        workers: Workers on each host.
        turns: Turns of each system.
        steps: Steps in a turn, at most.
    """

    model: str
    hosts: int
    rate_mbit: float | None
    systems: tuple
    batch: int
    options: dict = dataclasses.field(default_factory=dict)
    workers: int = 1
    turns: int = 5
    steps: int = 10

    @property
    def key(self):
        """What tells the rows of this case from those of others."""
        return (self.hosts, self.workers, self.rate_mbit, self.batch)


def main(description, name, cases, check, plot=None):
    """Runs a benchmark from its command line.

    Args:
        description: Its docstring.
        name: Its name.
        cases: `quick -> cases`.
        check: Called with the report, to check its rows.
        plot: Called with rows and the path of a picture.
    """
    parser = report.arguments(description, plots=True)
    parser.add_argument(
        "--hosts", type=int, nargs="*", help="measure only cases of so many hosts"
    )
    parser.add_argument(
        "--rates", type=float, nargs="*", help="only cases with these links (Mbit/s)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep other cases' rows of the JSON file"
    )
    args = parser.parse_args()
    results = report.Report(name)
    chosen = [
        case
        for case in cases(args.quick)
        if (args.hosts is None or case.hosts in args.hosts)
        and (args.rates is None or case.rate_mbit in args.rates)
    ]
    rows = kept_rows(args.json, chosen) if args.keep else []
    for case in chosen:
        found = measure(case)
        print(report.format_table(found), flush=True)
        rows += found
    for row in sorted(rows, key=lambda row: [row[key] or 0 for key in CASE_KEYS]):
        results.add_row(**row)
    check(results)
    results.finish(args.json)
    if args.plot and plot:
        plot(results.rows, args.plot)


def kept_rows(path, cases):
    """Rows of an earlier report, but for those of the cases."""
    if path is None or not path.exists():
        return []
    rows = json.loads(path.read_text("utf-8"))["rows"]
    again = {case.key for case in cases}
    return [row for row in rows if tuple(row[key] for key in CASE_KEYS) not in again]


def measure(case):
    """Measures a case; returns a row for each system."""
    found = {}
    for names in jobs_of(case.systems):
        # TensorFlow's servers are processes like workers here; others are children.
        processes = case.workers + (systems.TENSORFLOW in names)
        with EmulatedCluster(case.hosts, processes, case.rate_mbit) as cluster:
            found |= _run(cluster, case, names)
    return rows_of(case, found, cluster.emulated)


def jobs_of(names):
    """Systems that can be measured by the same processes."""
    apart = [name for name in names if systems.needs_servers(name)]
    foreign = [name for name in names if name in _FOREIGN]
    together = [name for name in names if name not in (*apart, *foreign)]
    return [names for names in (together, apart) if names] + [[x] for x in foreign]


def _run(cluster, case, names):
    """Runs a job; returns what was found of each system, hosts together."""
    job = system_steps.Job(
        case.model, case.options, tuple(names), case.batch, case.turns, case.steps
    )
    module = _FOREIGN.get(names[0], system_steps)
    command = [sys.executable, "-m", module.__name__]
    command.append(json.dumps(dataclasses.asdict(job)))
    with tempfile.TemporaryDirectory() as cache:
        environ = environment(cache)
        environ[mirrored.HOSTS_VARIABLE] = ",".join(cluster.hosts)
        done = cluster.run(command, environ, timeout_seconds=_TIMEOUT_S)
    workers = [worker.result for worker in done.workers if worker.result is not None]
    for name in names:
        print(f"{name}: {json.dumps(workers[0][name])}", file=sys.stderr, flush=True)
    return {name: _together([worker[name] for worker in workers]) for name in names}


def environment(cache):
    """What processes on emulated hosts need to know.

    Args:
        cache: A new folder.
    """
    return {
        # Emulated hosts have the same addresses whatever their links can do.
        "KERAS_PARALLAX_NETWORK": "measure",
        "KERAS_PARALLAX_CACHE": str(cache),
        # By slow links a table takes longer than Gloo's half a minute to get around.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
    }


def _together(workers):
    """One system, as all workers have seen it."""
    turns = list(zip(*(worker["turns"] for worker in workers), strict=True))
    crossed = [
        [turn["host_bytes"] for turn in turn_of_all if turn["host_bytes"] is not None]
        for turn_of_all in turns
    ]
    return {
        "ms": [1e3 * turn_of_all[0]["seconds"] for turn_of_all in turns],
        "mb": [statistics.mean(hosts) / _MEGA for hosts in crossed if hosts],
        "least_bytes": workers[0]["least_bytes"],
        "plan": workers[0]["plan"],
    }


def rows_of(case, found, emulated=True):
    """Rows of a case.

    Args:
        case: The case.
        found: What was found of each system.
        emulated: Whether there were hosts and links.
    """
    paired = report.Paired({name: one["ms"] for name, one in found.items()})
    rows = []
    for name, one in found.items():
        step_ms = paired.medians[name]
        row = dict(zip(CASE_KEYS, case.key, strict=True))
        row |= {
            "system": name,
            "step_ms": step_ms,
            "examples_per_s": 1e3 * case.batch * case.hosts * case.workers / step_ms,
        }
        for column, base in (("of computing", systems.ALONE), ("of ours", "ours")):
            row[column] = paired.ratio(name, base) if base in found else None
        crossed = statistics.median(one["mb"]) if one["mb"] and emulated else None
        least = one["least_bytes"] and one["least_bytes"] / _MEGA
        row |= {
            "mb_per_host": crossed,
            "least_mb": least,
            "bytes / least": crossed / least if crossed and least else None,
            "roads": in_words(one["plan"]),
        }
        rows.append(row)
    return rows


def in_words(plan):
    """Roads of the tables of a plan, in few words."""
    return ", ".join(
        f"{path.split('/')[0]} {entry['road']}"
        for path, entry in plan.items()
        if entry["alpha"] is not None
    )


def cases_of_rows(rows):
    """Rows by case: dict of a case's key to dict of system to row."""
    found = {}
    for row in rows:
        key = tuple(row[key] for key in CASE_KEYS)
        found.setdefault(key, {})[row["system"]] = row
    return found


def where(key):
    """A case in words."""
    hosts, workers, rate, batch = key
    of_workers = f" x {workers} workers" if workers > 1 else ""
    link = f", {rate:g} Mbit/s" if rate else ""
    return f"{hosts} hosts{of_workers}{link}, batch {batch}"


def check_everywhere(results):
    """What has to hold in each case: no other is faster, no byte is wasted."""
    for key, rows in cases_of_rows(results.rows).items():
        if key[0] == 1 or "ours" not in rows:
            continue
        others = {
            name: row["of ours"]
            for name, row in rows.items()
            if name not in OURS and name != systems.ALONE
        }
        if others:
            best = min(others, key=others.get)
            name = f"{where(key)}: ours / best other ({best})"
            results.add_check(name, 1 / others[best], "<=", MOST_SLOWER)
        ratio = rows["ours"]["bytes / least"]
        if ratio is not None:
            name = f"{where(key)}: ours, bytes / least"
            results.add_check(name, ratio, "<=", MOST_BYTES)


def check_speedup(results, key, system, target, name=None):
    """Checks how many times faster than a system `ours` is."""
    row = cases_of_rows(results.rows).get(key, {}).get(system)
    if row is not None:
        name = name or f"{where(key)}: {system} / ours"
        results.add_check(name, row["of ours"], ">=", target)


def closest_to_paper(rows, multiple=18.0):
    """The case of most hosts in which Horovod's step is closest to `multiple` times
    the computing; None without such a one."""
    found = {
        key: systems_["horovod"]["of computing"]
        for key, systems_ in cases_of_rows(rows).items()
        if systems_.get("horovod", {}).get("of computing")
    }
    most = max((key[0] for key in found), default=None)
    return min(
        (key for key in found if key[0] == most),
        key=lambda key: abs(found[key] - multiple),
        default=None,
    )


_IN_WORDS = {
    "of ours": "step time / ours",
    "step_ms": "step time (ms)",
    "examples_per_s": "examples per second",
}


def plot(rows, path, axis="hosts", value="examples_per_s", stands_for=None):
    """Draws a column over another, a line for each system, both on logarithmic scales.

    Args:
        rows: Rows of a report.
        path: Picture to write.
        axis: Column along which cases differ.
        value: Column to draw.
        stands_for: The key of a case that the axis says in other words.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    others = [key for key in CASE_KEYS if key not in (axis, stands_for)]
    groups = {}
    for row in rows:
        if row.get(value) is not None and row[axis] is not None:
            group = tuple(row[key] for key in others)
            groups.setdefault(group, {}).setdefault(row["system"], []).append(row)
    # A picture of a single point says nothing.
    groups = {g: s for g, s in groups.items() if any(len(x) > 1 for x in s.values())}
    if not groups:
        return
    figure, axes = plt.subplots(
        1, len(groups), figsize=(4.6 * len(groups), 3.6), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for place, (group, by_system) in zip(axes[0], groups.items(), strict=True):
        for name, mine in by_system.items():
            mine = sorted(mine, key=lambda row: row[axis])
            place.plot(
                [row[axis] for row in mine], [row[value] for row in mine],
                color=f"C{systems.NAMES.index(name)}", marker="o", markersize=3,
                label=name,
                linewidth=2.5 if name == "ours" else 1.2,
            )  # fmt: skip
        title = ", ".join(f"{k} {v}" for k, v in zip(others, group, strict=True))
        place.set_title(title.replace("_mbit", " (Mbit/s)"), fontsize=9)
        place.set(xscale="log", yscale="log", xlabel=axis.replace("_mbit", " (Mbit/s)"))
        ticks = sorted({row[axis] for mine in by_system.values() for row in mine})
        place.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        place.set_xticks([], minor=True)
        place.grid(alpha=0.3)
    axes[0, 0].set_ylabel(_IN_WORDS.get(value, value))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
