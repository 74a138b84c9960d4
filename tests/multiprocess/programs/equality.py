"""Trains the small model with every optimizer and partition count; saves all."""

import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import models
import numpy as np

import keras_parallax as kp

folder, kind, partitions, optimizers = sys.argv[1:5]
counts = [int(count) for count in partitions.split(",")]
given = {"architecture": "ps"} if kind == "ps" else {"servers": kind}


def train(strategy, build, name):
    with strategy.scope():
        model = build()
        optimizer = models.OPTIMIZERS[name]()
        model.compile(optimizer, "mse", jit_compile=False)
        model.set_weights(models.start_weights(model))
    return models.train(model, optimizer)


def save(key, states):
    if strategy.is_chief:
        np.savez(f"{folder}/{key}.npz", *states)


plans = {}
for name, count in itertools.product(optimizers.split(","), counts):
    strategy = kp.ParallaxStrategy(partitions=count, routes=models.ROUTES, **given)
    save(f"{name}-{count}", train(strategy, models.build, name))
    plans[f"{name}-{count}"] = strategy.plan.to_dict()
    strategy.close()
save("dense-1", train(strategy, models.build_without_tables, "momentum"))
harness.write_result(folder, strategy.worker_index, plans)
