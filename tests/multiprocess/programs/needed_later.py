"""Trains with a table that a step needs late, on a slow network and on a fast one."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models

import keras_parallax as kp
from keras_parallax.plan.network import Network
from keras_parallax.tables import surroundings

folder = sys.argv[1]
SPEEDS = {"slow": 1e5, "fast": 1e12}
x, y = models.data()
outcome = {}
for speed, bytes_per_s in SPEEDS.items():
    surroundings.network_of = lambda *_, b=bytes_per_s: Network(
        b, 1e-6, b, 1e-6, call_s=1e-4
    )
    strategy = kp.ParallaxStrategy(routes=models.ROUTES)
    home, sizes = strategy._home, []
    pull = home.pull
    home.pull = lambda requests, p=pull, s=sizes: s.append(len(requests)) or p(requests)
    with strategy.scope():
        model = models.build_deep()
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        model.set_weights(models.start_weights(model))
    history = model.fit(x, y, batch_size=models.BATCH, shuffle=False, verbose=0)
    outcome[speed] = {
        "loss": history.history["loss"],
        "changes": strategy.plan.changes,
        "pulls": sizes,
    }
    strategy.close()
harness.write_result(folder, strategy.worker_index, outcome)
