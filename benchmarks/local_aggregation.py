"""Bytes that leave a machine with and without local aggregation, in both homes.

Two emulated hosts of two workers each, and for `dedicated` one server each. With
local aggregation a machine's boundary is crossed by what the union of its workers'
ids needs, once; without it, by what each worker needs:

    2 · d · (4 + 2 · row bytes), summed over machines or over workers,

where `d` is the number of distinct rows that the machine, or the worker, wants of
the other host. A worker draws its ids by Zipf's law, so that the workers of a machine
have many in common, or uniformly from a small table, so that they have a known share.
"""

import statistics

import numpy as np

from benchmarks import report, roads, sparse_steps
from benchmarks.cluster import EmulatedCluster

HOSTS = 2
WORKERS_PER_HOST = 2
WIDTH = 64
RATE_MBIT = 200
# Rows of the table, and what the workers look up in it.
TABLES = (
    (400_000, ("zipf", True, 20_000)),
    (400_000, ("uniform", False, 8000)),
    (20_000, ("uniform", False, 8000)),
)
# How many partitions a home makes, and so which machine has which row.
PARTITIONS = {"peers": HOSTS * WORKERS_PER_HOST, "dedicated": HOSTS}
_MEGA = 1e6


def main():
    args = report.arguments(__doc__).parse_args()
    results = report.Report("local_aggregation")
    tables = TABLES[:1] if args.quick else TABLES
    with EmulatedCluster(HOSTS, WORKERS_PER_HOST, RATE_MBIT) as cluster:
        if not cluster.emulated:
            raise SystemExit(f"Nothing can be counted here: {cluster.label}.")
        for home in PARTITIONS:
            for rows, case in tables:
                measure(results, cluster, home, rows, case, 5 if args.quick else 15)
    results.finish(args.json)


def measure(results, cluster, home, rows, case, steps):
    """Adds the rows and checks of one home and one draw."""
    where = f"{home}, {rows:,} rows, {case[0]}"
    crossed = {}
    for together in (False, True):
        plan = sparse_steps.Plan((home,), rows, WIDTH, (case,), steps, together)
        (found,) = roads.run(cluster, plan)
        # The workers of a host see the same interface: one of them tells.
        tell = found[::WORKERS_PER_HOST]
        total = sum(f["sent_bytes"] + f["received_bytes"] for f in tell)
        least = least_bytes(plan, case, PARTITIONS[home], together)
        crossed[together] = total
        results.add_row(
            home=home,
            rows=rows,
            distribution=case[0],
            ids=case[2],
            local_aggregation=str(together),
            step_ms=1e3 * max(f["step_seconds"] for f in found),
            mb_per_host=total / HOSTS / _MEGA,
            least_mb=least / HOSTS / _MEGA,
            **{"bytes / least": total / least},
        )
        means = "union" if together else "each worker"
        name = f"{where}: bytes / least for {means}"
        results.add_check(name, total / least, "<=", 1.10)
    saved = crossed[True] / crossed[False]
    results.add_check(f"{where}: bytes with / without", saved, "<=", 1.02)


def least_bytes(plan, case, partitions, together):
    """The least that crosses both hosts' boundaries in a step.

    Args:
        plan: What is measured.
        case: Its case.
        partitions: Partitions of the table, spread over the hosts in order.
        together: Whether the workers of a host act as one.
    """
    workers = range(HOSTS * WORKERS_PER_HOST)
    sums = []
    for step in sparse_steps.measured_steps(plan, case):
        wanted = [sparse_steps.draw(plan, case, rank, step) for rank in workers]
        machines = [rank // WORKERS_PER_HOST for rank in workers]
        if together:
            starts = workers[::WORKERS_PER_HOST]
            wanted = [
                np.concatenate(wanted[first : first + WORKERS_PER_HOST])
                for first in starts
            ]
            machines = range(HOSTS)
        sums.append(
            sparse_steps.least_bytes(
                plan,
                wanted,
                lambda ids: ids % partitions // (partitions // HOSTS),
                machines,
            )
        )
    return statistics.mean(sums)


if __name__ == "__main__":
    main()
