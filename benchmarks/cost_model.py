"""What the cost model predicts for emulated hosts, beside what is measured there.

A table of 400,000 rows of 64 floats, of which each of four or eight workers touches
some in a step (`sparse_steps.py`), on servers, on peers and all-gathered. The network's
figures are those that the workers measure when a job starts (`calibration.py`), on a
cluster of the same kind; nothing is fitted. Bytes are those that crossed the hosts'
interfaces, seconds those of the step, in which nothing else is done.
"""

import sys

from benchmarks import report, roads
from benchmarks.cluster import EmulatedCluster, print_result
from keras_parallax.plan.cost import DEDICATED, PEERS, candidates
from keras_parallax.plan.network import NETWORK_VARIABLE, Cluster, Network
from keras_parallax.plan.use import Use
from keras_parallax.roads import ALLGATHER, SERVERS

WORKER = "--worker"
CHOICE = ("peers", "allgather")


def measure_network(hosts, rate_mbit):
    """What the workers of a cluster find."""
    with EmulatedCluster(hosts, 1, rate_mbit) as cluster:
        command = [sys.executable, "-m", "benchmarks.cost_model", WORKER]
        done = cluster.run(command, environ={NETWORK_VARIABLE: "measure"})
    return Network.of(done.workers[0].result)


def worker():
    """One of them."""
    from keras_parallax.cluster.session import Session
    from keras_parallax.cluster.topology import resolve
    from keras_parallax.plan.calibration import measure

    print_result(measure(Session.join(resolve(), wants_servers=False)).to_dict())


def predict(road, ids, hosts, network):
    """The cost of a road of `roads.measure`."""
    use = Use("table", roads.ROWS, 4 * roads.WIDTH, alpha=ids / roads.ROWS, slots=0)
    cluster = Cluster(hosts, hosts, network, servers=hosts)
    home = DEDICATED if road == "dedicated" else PEERS
    name = ALLGATHER if road == "allgather" else SERVERS
    return candidates(use, cluster, [home], [name])[0]


def main():
    args = report.arguments(__doc__).parse_args()
    results = report.Report("cost_model")
    counts = (2000, 8000) if args.quick else (200, 2000, 8000, 20_000)
    cases = [("uniform", False, count) for count in counts]
    factors, byte_factors, orders = [], [], []
    for hosts in (4,) if args.quick else (4, 8):
        network = measure_network(hosts, 200)
        measured = roads.measure(hosts, 200, cases, steps=3 if args.quick else 6)
        for row in measured:
            cost = predict(row["road"], row["ids"], hosts, network)
            predicted_ms = 1e3 * cost.seconds
            factor = predicted_ms / row["step_ms"]
            factors.append(max(factor, 1 / factor))
            shown = {
                "hosts": hosts,
                "ids": row["ids"],
                "road": row["road"],
                "step_ms": row["step_ms"],
                "predicted_ms": predicted_ms,
                "predicted / measured": factor,
            }
            if "mb_per_host" in row:
                megabytes = cost.machine_bytes / 1e6
                byte_factors.append(row["mb_per_host"] / megabytes)
                shown |= {"mb": row["mb_per_host"], "predicted_mb": megabytes}
            results.add_row(**shown)
        for count in counts:
            # A strategy has one home: its tables choose between that and copies.
            here = [r for r in measured if r["ids"] == count and r["road"] in CHOICE]
            best = min(row["step_ms"] for row in here)
            chosen = min(
                here, key=lambda r: predict(r["road"], r["ids"], hosts, network).seconds
            )
            orders.append(chosen["step_ms"] / best)
        results.add_row(hosts=hosts, rate_mbit=200, **network.to_dict())
    results.add_check(
        "step time: most that a prediction is off by", max(factors), "<=", 2
    )
    if byte_factors:
        results.add_check(
            "bytes: most above the prediction", max(byte_factors), "<=", 1.2
        )
    results.add_check(
        "time of the road chosen, peers or all-gather / of the better",
        max(orders),
        "<=",
        1.05,
    )
    results.finish(args.json)


if __name__ == "__main__":
    worker() if sys.argv[1:] == [WORKER] else main()
