"""Trains with ParallaxTensorBoard and FitSummary, on every worker or on one."""

import dataclasses
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models

import keras_parallax as kp

folder, whose = sys.argv[1:3]
strategy = kp.ParallaxStrategy(partitions=3, routes=models.ROUTES)
x, y = models.data()
with strategy.scope():
    model = models.build()
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
callbacks = []
if whose == "all" or strategy.is_chief:
    summary = kp.callbacks.FitSummary()
    board = kp.callbacks.ParallaxTensorBoard(f"{folder}/logs", update_freq=20)
    callbacks = [board, summary]
model.fit(x, y, batch_size=models.BATCH, verbose=0, callbacks=callbacks)
harness.write_result(
    folder,
    strategy.worker_index,
    {
        "traffic": strategy.traffic.to_dict(),
        "reading": dataclasses.asdict(strategy.spans.read()),
        "rate": summary.window.all_examples_per_second,
    },
)
