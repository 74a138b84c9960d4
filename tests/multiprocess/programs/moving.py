"""Trains while tables move from road to road, and between numbers of partitions."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import models
import numpy as np

import keras_parallax as kp

folder, kind, name, moves = sys.argv[1:5]
moves = json.loads(moves)
strategy = kp.ParallaxStrategy(servers=kind, partitions=3, routes=models.ROUTES)
with strategy.scope():
    model = models.build()
    optimizer = models.OPTIMIZERS[name]()
    model.compile(optimizer, "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
x, y = models.data()
tables = [entry.variable for entry in strategy.plan if entry.road == "servers"]
steps = models.STEPS // (len(moves) + 1)
places = []
for part in range(len(moves) + 1):
    stop = models.STEPS if part == len(moves) else (part + 1) * steps
    batch = slice(part * steps * models.BATCH, stop * models.BATCH)
    model.fit(x[batch], y[batch], batch_size=models.BATCH, shuffle=False, verbose=0)
    places.append([strategy.plan[table].where for table in tables])
    if part < len(moves):
        where = moves[part]
        if isinstance(where, int):
            strategy.repartition(dict.fromkeys(tables, where))
        else:
            strategy.reroute(dict.fromkeys(tables, where))
        model.make_train_function(force=True)
states = [np.asarray(s) for s in [*model.weights, *optimizer.variables[2:]]]
if strategy.is_chief:
    np.savez(f"{folder}/states.npz", *states)
harness.write_result(
    folder, strategy.worker_index, {"places": places, "changes": strategy.plan.changes}
)
