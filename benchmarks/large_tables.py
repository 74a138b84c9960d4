"""Tables larger than a worker: how soon they are there, and what they cost whom.

Two tables, each with Adagrad's slot of the same size, on 4 dedicated servers of this
machine: 8 GiB of rows of 64 floats, and 200 million rows of one float. A worker may
not grow with them. `servers_gib` adds up what is resident in the servers, with
TensorFlow's own pages, which they share, counted in each. Needs 19 GiB of free memory
(4 GiB with `--quick`).
"""

import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

import psutil

from benchmarks import report

SERVERS = 4
BATCH, LENGTH, STEPS = 512, 8, 10
# Rows and their width.
TABLES = {"rows of 64 floats": (1 << 25, 64), "rows of 1 float": (200_000_000, 1)}
QUICK_DIVISOR = 16
# What the processes need beside the tables.
BASE_BYTES = 3 << 30
START_SECONDS, WORKER_GIB = 180, 1.5
TIMEOUT_SECONDS = 540


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="workers (2)")
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        rows, width, folder = args.job
        train(int(rows), int(width), pathlib.Path(folder))
        return
    results = report.Report("large_tables")
    for name, (rows, width) in TABLES.items():
        rows //= QUICK_DIVISOR if args.quick else 1
        need = 2 * rows * width * 4 + BASE_BYTES
        free = psutil.virtual_memory().available
        if free < need:
            print(f"{name}: left out; needs {gib(need)} GiB, {gib(free)} are free.")
            continue
        row = measure(rows, width, args.workers)
        results.add_row(table=name, rows=rows, **row)
        results.add_check(
            f"{name}: seconds to the first step's end",
            row["start_seconds"],
            "<=",
            START_SECONDS,
        )
        results.add_check(
            f"{name}: GiB of the largest worker", row["worker_gib"], "<=", WORKER_GIB
        )
    results.finish(args.json)


def measure(rows, width, workers):
    """Runs a job; returns what it took, from the command on."""
    command = [sys.executable, "-m", "keras_parallax.cli.main", "run"]
    command += ["-np", str(workers), "--servers", str(SERVERS), "--"]
    command += [sys.executable, "-m", "benchmarks.large_tables", "--job"]
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        subprocess.run(
            [*command, str(rows), str(width), folder],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            check=True,
            timeout=TIMEOUT_SECONDS,
        )
        found = [json.loads(p.read_text()) for p in pathlib.Path(folder).iterdir()]
    first = next(result for result in found if result["rank"] == 0)
    return {
        "workers": workers,
        "servers": SERVERS,
        "table_and_slot_gib": gib(2 * rows * width * 4),
        "start_seconds": max(result["first_step_at"] for result in found) - began,
        "table_seconds": first["table_seconds"],
        "slot_seconds": first["slot_seconds"],
        "step_ms": first["step_ms"],
        "worker_gib": max(gib(result["peak_bytes"]) for result in found),
        "servers_gib": gib(sum(first["server_peak_bytes"])),
    }


def train(rows, width, folder):
    """A worker: makes the table and its slot, trains, and writes what it took."""
    import keras
    import numpy as np

    import keras_parallax as kp

    strategy = kp.ParallaxStrategy(
        servers="dedicated", routes={"*/embeddings": "servers"}
    )
    with strategy.scope():
        began = time.time()
        model = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                keras.layers.Embedding(rows, width),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        table_made = time.time()
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
        model.optimizer.build(model.trainable_variables)
        slot_made = time.time()
    random = np.random.default_rng(0)
    x = random.integers(0, rows, (BATCH * STEPS, LENGTH)).astype("int32")
    y = random.normal(size=(len(x), 1)).astype("float32")
    ends = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.time())
    )
    history = model.fit(
        x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[note]
    )
    if not np.isfinite(history.history["loss"]).all():
        raise RuntimeError(f"The loss is not finite: {history.history['loss']}")
    result = {
        "rank": strategy.worker_index,
        "table_seconds": table_made - began,
        "slot_seconds": slot_made - table_made,
        "first_step_at": ends[0],
        "step_ms": 1000 * float(np.median(np.diff(ends))),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        "server_peak_bytes": server_peaks(),
    }
    path = folder / f"{strategy.worker_index}.json"
    path.write_text(json.dumps(result))


def server_peaks():
    """Largest resident sizes of the servers, which the launcher has started."""
    family = psutil.Process().parent().children()
    servers = [p for p in family if "keras_parallax.servers.serve" in p.cmdline()]
    status = [pathlib.Path(f"/proc/{p.pid}/status").read_text() for p in servers]
    return [int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) << 10 for text in status]


def gib(size_bytes):
    """Bytes in GiB, to two places."""
    return round(size_bytes / (1 << 30), 2)


if __name__ == "__main__":
    main()
