"""Trains with local aggregation and without; tells what crossed between machines."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import models
import numpy as np

import keras_parallax as kp
from keras_parallax.servers.local_aggregation import LocalAggregation

folder, servers, steps = sys.argv[1:4]
x, y = (array[: int(steps) * models.BATCH] for array in models.data())
outcome = {}
for aggregates in (True, False):
    strategy = kp.ParallaxStrategy(
        servers=servers,
        partitions=3,
        routes=models.ROUTES,
        local_aggregation=aggregates,
    )
    # As if they were large.
    strategy.extended._traffic.travels_apart = lambda tables: True
    with strategy.scope():
        model = models.build_deep()
        optimizer = models.OPTIMIZERS["global_clipnorm"]()
        model.compile(optimizer, "mse", jit_compile=False)
        model.set_weights(models.start_weights(model))
    before = strategy.traffic
    model.fit(x, y, batch_size=models.BATCH, shuffle=False, verbose=0)
    after = strategy.traffic
    # Every worker reads the rows, one of them writes them down.
    states = [np.asarray(v) for v in (*model.weights, *optimizer.variables[2:])]
    if strategy.is_chief:
        np.savez(f"{folder}/{aggregates}.npz", *states)
    outcome[str(aggregates)] = {
        "home": strategy.plan["bias_of_word/table"].home,
        "aggregates": isinstance(strategy._home.first, LocalAggregation),
        "sent": after.sent_off_machine_bytes - before.sent_off_machine_bytes,
        "received": after.received_off_machine_bytes
        - before.received_off_machine_bytes,
    }
    strategy.close()
outcome["servers"] = strategy.num_servers
harness.write_result(folder, strategy.worker_index, outcome)
