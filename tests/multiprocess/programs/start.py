"""Trains twice, in two strategies of one process, however it was started."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models

import keras_parallax as kp

folder = sys.argv[1]
given = {"servers": sys.argv[2]} if len(sys.argv) > 2 else {}


def train():
    strategy = kp.ParallaxStrategy(routes=models.ROUTES, **given)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = models.build()
        model.compile("sgd", "mse")
    x, y = models.data()
    fits = [model.fit(x, y, batch_size=models.BATCH, verbose=2) for _ in range(2)]
    losses = [fit.history["loss"][0] for fit in fits]
    return strategy, losses


_, first = train()
strategy, second = train()
harness.write_result(
    folder,
    strategy.worker_index,
    {
        "losses": [first, second],
        "workers": strategy.num_workers,
        "servers": strategy.num_servers,
        "home": strategy.plan["embedding_1/embeddings"].home,
    },
)
if strategy.is_chief:
    print("result: {}", flush=True)
