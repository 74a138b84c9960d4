"""Trains the small model with optimizers and partition counts; saves all."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import models
import numpy as np

import keras_parallax as kp

folder, kind, cases = sys.argv[1:4]
given = {"architecture": "ps"} if kind == "ps" else {"servers": kind}


def train(strategy, build, name):
    # As if they were large.
    strategy.extended._traffic.travels_apart = lambda tables: True
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
for case in cases.split(","):
    name, _, count = case.partition("-")
    strategy = kp.ParallaxStrategy(partitions=int(count), routes=models.ROUTES, **given)
    save(case, train(strategy, models.build_deep, name))
    plans[case] = strategy.plan.to_dict()
    strategy.close()
save("dense-1", train(strategy, models.build_without_tables, "momentum"))
harness.write_result(folder, strategy.worker_index, plans)
