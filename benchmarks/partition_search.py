"""The partition search against a brute-force sweep over the numbers of partitions.

On four emulated hosts with a worker and a server each, a language model with two tables
is trained: as it is, and while `callbacks.PartitionSearch` looks for the number of
partitions; with the same losses, or a step was lost. Then 1, 2, 4, …, 64 partitions are
measured one after the other, in the same job (`searched_steps.py`).
"""

import dataclasses
import json
import statistics
import sys

import numpy as np

from benchmarks import report, searched_steps
from benchmarks.cluster import EmulatedCluster

HOSTS = 4
RATES_MBIT = (200, 1000)
ROWS = 200_000
BATCH = 256
MOST_STEPS = 100
COUNTS = (1, 2, 4, 8, 16, 32, 64)


def main():
    parser = report.arguments(__doc__, plots=True)
    parser.add_argument("--rates", nargs="*", type=int, default=RATES_MBIT)
    args = parser.parse_args()
    results = report.Report("partition_search")
    rounds, turns, steps = (1, 3, 4) if args.quick else (2, 5, 8)
    job = searched_steps.Job(ROWS, BATCH, MOST_STEPS, COUNTS, rounds, turns, steps)
    for rate in args.rates[:1] if args.quick else args.rates:
        with EmulatedCluster(HOSTS, 1, rate) as cluster:
            add(results, cluster, rate, measure(cluster, job))
            print(results.to_text(), flush=True)
    results.finish(args.json)
    if args.plot:
        plot(results.rows, args.plot)


def measure(cluster, job):
    """Runs a job; returns what worker 0 says of it."""
    command = [sys.executable, "-m", "benchmarks.searched_steps"]
    command.append(json.dumps(dataclasses.asdict(job)))
    return cluster.run(command, timeout_seconds=900).workers[0].result


def add(results, cluster, rate, found):
    """Adds what was found: a row for each number of partitions, and the checks."""
    where = f"{rate} Mbit/s" if cluster.emulated else "NOT SHAPED"
    fit = found["fit"]
    sampled = dict(map(tuple, fit["samples"]))
    for count, samples in found["sweep_ms"]:
        fitted = fit["constant_s"] + fit["shared_s"] / count + fit["each_s"] * count
        results.add_row(
            rate_mbit=rate if cluster.emulated else "none",
            partitions=count,
            swept_ms=statistics.median(samples),
            searched_ms=1e3 * sampled[count] if count in sampled else "",
            fitted_ms=1e3 * fitted,
            is_chosen=count == found["chosen"],
            is_fastest=count == found["fastest"],
        )
    ratio = 1.0
    if found["duel_ms"]:
        chosen, fastest = (samples for _, samples in found["duel_ms"])
        paired = report.Paired({"chosen": chosen, "fastest": fastest})
        ratio = paired.ratio("chosen", "fastest")
    results.add_check(f"{where}: chosen / fastest", ratio, "<=", 1.05)
    results.add_check(f"{where}: steps", found["search_steps"], "<=", MOST_STEPS)
    apart = np.abs(np.subtract(found["losses"], found["losses_of_search"]))
    apart = np.max(apart / np.abs(found["losses"]))
    results.add_check(f"{where}: losses, relative difference", apart, "<=", 1e-4)
    print(f"{where}: {found['fit']}, {found['duel_ms']}", flush=True)


def plot(rows, path):
    """Draws step time over the number of partitions: swept, searched, fitted."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rates = list(dict.fromkeys(row["rate_mbit"] for row in rows))
    figure, axes = plt.subplots(
        1, len(rates), figsize=(4.6 * len(rates), 3.6), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, rate in zip(axes[0], rates, strict=True):
        here = [row for row in rows if row["rate_mbit"] == rate]
        counts = [row["partitions"] for row in here]
        for key, style, label in (
            ("swept_ms", "o-", "brute-force sweep"),
            ("fitted_ms", "--", "t0 + t1/P + t2·P"),
        ):
            axis.plot(counts, [row[key] for row in here], style, label=label)
        sampled = [row for row in here if row["searched_ms"] != ""]
        axis.plot(
            [row["partitions"] for row in sampled],
            [row["searched_ms"] for row in sampled],
            "kx",
            label="samples of the search",
        )
        (chosen,) = [row["partitions"] for row in here if row["is_chosen"]]
        axis.axvline(chosen, color="tab:green", alpha=0.5, label=f"chosen: {chosen}")
        axis.set_xscale("log", base=2)
        axis.set(xticks=counts, xticklabels=counts, ylim=(0, None))
        axis.set(title=f"{rate} Mbit/s", xlabel="partitions", ylabel="step (ms)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
