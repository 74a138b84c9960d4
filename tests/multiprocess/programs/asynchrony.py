"""Asynchronous training in which one worker is late."""

import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import numpy as np

import keras_parallax as kp

folder, arguments = sys.argv[1], json.loads(sys.argv[2])
STEPS, ROWS, BATCH, LATE = 40, 11, 6, 5
bound = arguments.get("max_staleness")
strategy_is_synchronous = bound == 0


class Sum(keras.layers.Layer):
    """A table and a dense weight whose gradients do not depend on their values."""

    def build(self, input_shape):
        self.table = self.add_weight((ROWS, 2), name="embeddings", initializer="zeros")
        self.scale = self.add_weight((3,), name="scale", initializer="zeros")

    def call(self, ids):
        rows = keras.ops.sum(keras.ops.take(self.table, ids, axis=0), axis=(1, 2))
        return rows + keras.ops.sum(self.scale)


class Late(keras.callbacks.Callback):
    """Worker 1 waits, before its sixth step, until worker 0 is as far ahead as it may
    be. (With no bound, or none at all, it waits until worker 0 has taken that step.)"""

    ahead = pathlib.Path(folder) / "ahead"

    def on_train_batch_begin(self, batch, logs=None):
        deadline = time.monotonic() + 60
        if strategy.worker_index == 1 and batch == LATE and not strategy_is_synchronous:
            while not self.ahead.exists() and time.monotonic() < deadline:
                time.sleep(0.01)

    def on_train_batch_end(self, batch, logs=None):
        if strategy.worker_index == 0 and batch == LATE + (bound or 1) - 1:
            self.ahead.touch()


strategy = kp.ParallaxStrategy(**arguments)
with strategy.scope():
    words = keras.Input((4,), dtype="int32")
    model = keras.Model(words, Sum()(words))
    model.compile(keras.optimizers.SGD(1.0), loss=lambda y, found: found)
ids = np.random.default_rng(0).integers(0, ROWS, (STEPS * BATCH, 4)).astype("int32")
history = model.fit(
    ids, ids[:, 0], batch_size=BATCH, shuffle=False, verbose=0, callbacks=[Late()]
)
# The loss is the mean over a batch: each occurrence of a row moves it by 1/BATCH.
occurrences = np.bincount(ids.ravel(), minlength=ROWS)
table, scale = model.get_weights()
harness.write_result(
    folder,
    strategy.worker_index,
    {
        "home": type(strategy._home.first).__name__,
        "max_lead_steps": strategy.max_lead_steps,
        "table_error": float(np.abs(table[:, 0] + occurrences / BATCH).max()),
        "scale_error": float(np.abs(scale + STEPS).max()),
        "loss": history.history["loss"],
    },
)
