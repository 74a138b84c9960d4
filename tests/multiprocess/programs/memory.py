"""Trains a table of so many rows for a few steps; tells the peaks of memory."""

import pathlib
import re
import resource
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import numpy as np
import psutil

import keras_parallax as kp

folder, rows = sys.argv[1], int(sys.argv[2])
WIDTH, BATCH, LENGTH, STEPS = 64, 64, 8, 5

strategy = kp.ParallaxStrategy(servers="dedicated", routes={"*/embeddings": "servers"})
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(rows, WIDTH, embeddings_initializer="uniform"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    # Without slots, so that the table's bytes are all that the servers hold.
    model.compile("sgd", "mse")

random = np.random.default_rng(0)
x = random.integers(0, rows, (BATCH * STEPS, LENGTH)).astype("int32")
y = random.normal(size=(len(x), 1)).astype("float32")
history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
ends = model.layers[0](np.array([0, rows - 1])).numpy()


def servers():
    """Processes of this job's servers, which the launcher has started."""
    siblings = psutil.Process().parent().children()
    return [p for p in siblings if "keras_parallax.servers.serve" in p.cmdline()]


def peak_bytes(pid):
    """Largest resident size so far."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10


result = {
    "worker_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    "server_peak_bytes": [peak_bytes(p.pid) for p in servers()],
    "loss": history.history["loss"],
    "deviation_of_rows": np.std(ends, axis=-1).tolist(),
}
harness.write_result(folder, strategy.worker_index, result)
