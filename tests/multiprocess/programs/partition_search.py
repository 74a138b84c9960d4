"""Trains without a search, with one, and once more: the answer is known then."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models
import numpy as np

import keras_parallax as kp

(folder,) = sys.argv[1:]
MOST_STEPS = 40

strategy = kp.ParallaxStrategy(servers="dedicated", routes=models.ROUTES)
with strategy.scope():
    model = models.build()
    optimizer = keras.optimizers.Adagrad(0.1)
    model.compile(optimizer, "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
    optimizer.build(model.trainable_variables)
states = [*model.variables, *optimizer.variables]
begin = [np.asarray(state) for state in states]
x, y = models.data()
runs = []
for searches in (False, True, True):
    for state, value in zip(states, begin, strict=True):
        state.assign(value)
    losses = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs, losses=losses: losses.append(
            float(logs["loss"])
        )
    )
    search = kp.callbacks.PartitionSearch(
        steps=2, warm_up_steps=1, most_steps=MOST_STEPS, most_partitions=8
    )
    model.fit(
        x,
        y,
        batch_size=models.BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[note, search] if searches else [note],
    )
    tables = {e.variable: e for e in strategy.plan if e.road == "servers"}
    runs.append(
        {
            "losses": losses,
            "steps_taken": search.steps_taken,
            "tried": {path: sorted(s.samples) for path, s in search.searches.items()},
            "chosen": {path: s.chosen for path, s in search.searches.items()},
            "partitions": {path: entry.partitions for path, entry in tables.items()},
        }
    )
    strategy.repartition(dict.fromkeys(tables, 2))
    model.make_train_function(force=True)
harness.write_result(folder, strategy.worker_index, runs)
