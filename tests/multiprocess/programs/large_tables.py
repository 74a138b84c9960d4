"""Begins a table with a file; tells how much memory that took, and some of its rows."""

import pathlib
import resource
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import numpy as np

import keras_parallax as kp

folder, file = sys.argv[1:3]


def peak_bytes():
    """Largest resident size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


strategy = kp.ParallaxStrategy(routes={"*/embeddings": "servers"})
with strategy.scope():
    # Everything that is loaded once is, before it is measured.
    keras.layers.Embedding(
        1000, 64, embeddings_initializer=np.zeros((1000, 64), "float32")
    ).build()
    before = peak_bytes()
    rows = np.load(file, mmap_mode="r")
    began = time.monotonic()
    layer = keras.layers.Embedding(
        *rows.shape, embeddings_initializer=keras.initializers.Constant(rows)
    )
    layer.build()
    seconds = time.monotonic() - began
    peak = peak_bytes()

ids = np.array([0, 1, 7, len(rows) // 2, len(rows) - 1])
harness.write_result(
    folder,
    strategy.worker_index,
    {
        "added_bytes": peak - before,
        "seconds": seconds,
        "ids": ids.tolist(),
        "rows": layer(ids).numpy().tolist(),
    },
)
