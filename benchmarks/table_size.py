"""Step time and memory over the size of a table, from 10^4 to 10^8 rows.

Two workers on this machine train a table of rows of 4 floats and its slot of Adagrad,
as large; each step looks up 4,096 rows, evenly drawn. Neither the time of a step nor,
with dedicated servers, the memory of a worker may grow with the table; among peers a
worker has its half of it. Keras by itself, one process, touches every row in each step;
it is measured up to 10^7 rows. Steps with each table take turns with those with the
smallest, in the same processes: `over smallest` is the median of the ratios.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import psutil

from benchmarks import report

SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
QUICK_SIZES = (10_000, 10_000_000)
STOCK_AT_MOST = 10_000_000
WIDTH, BATCH, LENGTH = 4, 512, 8
WORKERS = {"stock": 1, "peers": 2, "dedicated": 2}
TURNS, STEPS = 7, 12
# What the processes need beside the tables.
BASE_BYTES = 4 << 30
MOST_SLOWER, MOST_MORE_GIB = 1.2, 0.1
TIMEOUT_SECONDS = 300


def main():
    parser = report.arguments(__doc__, plots=True)
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        home, rows, folder = args.job
        train(home, int(rows), pathlib.Path(folder))
        return
    results = report.Report("table_size")
    for rows in QUICK_SIZES if args.quick else SIZES:
        for home in WORKERS:
            if home == "stock" and rows > STOCK_AT_MOST:
                continue
            need, free = BASE_BYTES + 2 * table_bytes(rows), free_bytes()
            if free < need:
                print(f"{rows:,}: left out; needs {gib(need)} GiB, {gib(free)} free")
                continue
            results.add_row(**measure(home, rows))
            print(report.format_table(results.rows[-1:]), flush=True)
    check(results)
    results.finish(args.json)
    if args.plot:
        plot(results.rows, args.plot)


def check(results):
    """What a large table may cost more than a small one."""
    for home in WORKERS:
        mine = {row["rows"]: row for row in results.rows if row["system"] == home}
        if home == "stock" or len(mine) < 2:
            continue
        small, large = mine[min(mine)], mine[max(mine)]
        sizes = f"{large['rows']:,} rows over {small['rows']:,}"
        results.add_check(
            f"{home}: step time of {sizes}",
            large["over smallest"], "<=", MOST_SLOWER,
        )  # fmt: skip
        share = gib(2 * table_bytes(large["rows"]) / 2) if home == "peers" else 0.0
        results.add_check(
            f"{home}: GiB of a worker with {sizes}, beyond its share of the table",
            large["worker_gib"] - small["worker_gib"] - share, "<=", MOST_MORE_GIB,
        )  # fmt: skip


def measure(home, rows):
    """Runs a job; returns what it took."""
    command = [sys.executable, "-m", "benchmarks.table_size", "--job", home, str(rows)]
    servers = ["--servers", "2"] if home == "dedicated" else []
    if home != "stock":
        launch = [sys.executable, "-m", "keras_parallax.cli.main", "run"]
        command = [*launch, "-np", str(WORKERS[home]), *servers, "--", *command]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*command, folder],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            check=True,
            timeout=TIMEOUT_SECONDS,
        )
        found = [json.loads(p.read_text()) for p in pathlib.Path(folder).iterdir()]
    return {
        "system": home,
        "rows": rows,
        "table_and_slot_gib": gib(2 * table_bytes(rows)),
        "step_ms": max(result["step_ms"] for result in found),
        "over smallest": max(result["over_smallest"] for result in found),
        "worker_gib": max(gib(result["resident_bytes"]) for result in found),
        "worker_peak_gib": max(gib(result["peak_bytes"]) for result in found),
    }


def train(home, rows, folder):
    """A worker: trains, and writes what it took."""
    import contextlib

    import keras
    import numpy as np

    rank, scope = 0, contextlib.nullcontext()
    if home != "stock":
        import keras_parallax as kp

        routes = {"*/embeddings": "servers"}
        strategy = kp.ParallaxStrategy(servers=home, routes=routes)
        rank, scope = strategy.worker_index, strategy.scope()
    with scope:
        sizes = (SIZES[0], rows)
        models = {}
        for index, size in enumerate(sizes):
            models[index] = keras.Sequential(
                [
                    keras.Input((LENGTH,), dtype="int32"),
                    keras.layers.Embedding(size, WIDTH),
                    keras.layers.GlobalAveragePooling1D(),
                    keras.layers.Dense(1),
                ]
            )
            models[index].compile(keras.optimizers.Adagrad(0.1), "mse")
    random = np.random.default_rng(0)
    y = random.normal(size=(BATCH * STEPS, 1)).astype("float32")

    def step_ms(index):
        x = random.integers(0, sizes[index], (len(y), LENGTH)).astype("int32")
        ends = []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
        )
        models[index].fit(
            x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[note]
        )
        return 1e3 * float(np.median(np.diff(ends)))

    for index in models:  # Traced, and pages touched.
        step_ms(index)
    paired = report.compare({i: lambda i=i: step_ms(i) for i in models}, TURNS)
    result = {
        "step_ms": paired.medians[1],
        "over_smallest": paired.ratio(1, 0),
        "resident_bytes": psutil.Process().memory_info().rss,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))


def plot(rows, path):
    """Draws step time and memory over the number of rows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    named = {"step_ms": "step (ms)", "worker_gib": "memory of a worker (GiB)"}
    for axis, (column, name) in zip(axes, named.items(), strict=True):
        for home in WORKERS:
            mine = [row for row in rows if row["system"] == home]
            axis.plot(
                [row["rows"] for row in mine], [row[column] for row in mine],
                marker="o", label=home,
            )  # fmt: skip
        axis.set(xscale="log", xlabel="rows", ylabel=name)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def table_bytes(rows):
    """Bytes of the table, without its slot."""
    return rows * WIDTH * 4


def free_bytes():
    """Memory that processes can still have."""
    return psutil.virtual_memory().available


def gib(size_bytes):
    """Bytes in GiB, to two places."""
    return round(size_bytes / (1 << 30), 2)


if __name__ == "__main__":
    main()
