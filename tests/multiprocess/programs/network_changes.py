"""Trains while the network, as it is measured, becomes slow.

With `told`, the user has said which road the table takes, and takes it back later. With
`tie`, the network does not change, and roads differ by a few per cent alone.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models
import numpy as np

import keras_parallax as kp
from keras_parallax.plan.network import Network
from keras_parallax.tables import surroundings

folder = sys.argv[1]
measured = []
tie = "tie" in sys.argv
ROWS = 40 if tie else 2_000


def network_of(session, given=None, servers=()):
    """What a measurement finds: a slow network, from the second time on."""
    measured.append(given)
    if tie:
        return Network(1e3, 1e-9, 1e3, 1e-9, call_s=1e-9, memory_bytes_per_s=1e15)
    speed = 1e9 if len(measured) == 1 else 1e5
    return Network(speed, 1e-4, speed, 1e-4, call_s=5e-3)


surroundings.network_of = network_of
surroundings.NETWORK_HOLDS_SECONDS = -1.0 if "at-once" in sys.argv else 3600.0
strategy = kp.ParallaxStrategy()
with strategy.scope():
    words = keras.Input((models.LENGTH,), dtype="int32")
    rows = keras.layers.Embedding(ROWS, 16, name="words")(words)
    mean = keras.layers.GlobalAveragePooling1D()(rows)
    model = keras.Model(words, keras.layers.Dense(1)(mean))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
TABLE = "words/embeddings"
told = "told" in sys.argv
if told:
    assert strategy.network.bandwidth_bytes_per_s == 1e9  # Measured for the first time.
    strategy.reroute({TABLE: "allreduce"})
random = np.random.default_rng(0)
x = random.integers(0, ROWS, (60 * 40, models.LENGTH)).astype("int32")
y = random.normal(size=(len(x), 1)).astype("float32")
history = model.fit(x, y, batch_size=60, shuffle=False, verbose=0).history
lines = [strategy.plan[TABLE].where, strategy.plan[TABLE].reason]
if told:
    strategy.reroute({TABLE: "auto"})
    lines.append(strategy.plan[TABLE].reason)
    model.fit(x, y, batch_size=60, shuffle=False, verbose=0, epochs=2)
harness.write_result(
    folder,
    strategy.worker_index,
    {
        "measured": len(measured),
        "lines": lines,
        "changes": strategy.plan.changes,
        "loss": history["loss"],
    },
)
