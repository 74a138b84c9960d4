"""A recommender with a table for each feature, against one table for all of them.

A model like DLRM (Naumov et al., 2019) on 26 and on 100 features: an MLP of 13
numbers, an embedding of each feature, the products of the two, and an MLP on top.
The features' rows are in as many tables, or one after the other in a single table:
the same rows with the same gradients move either way. Both models are trained by
`fit` in one job, in turns, so that a slow spell of the machine hits both.
"""

import dataclasses
import json
import sys
import time

from benchmarks import report
from benchmarks.cluster import EmulatedCluster, print_result

ROWS_PER_FEATURE = 20_000
WIDTH = 32
NUMBERS = 13
HOSTS = 2
RATE_MBIT = 1000
TARGETS = {26: 1.3, 100: 1.6}
_WARM_UP_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a worker measures.

    Attributes:
        servers: As `ParallaxStrategy` takes it.
        features: Number of features.
        batch: Global batch.
        turns: Turns of each model.
        steps: Steps in a turn.
    """

    servers: str
    features: int
    batch: int
    turns: int
    steps: int


def main():
    args = report.arguments(__doc__).parse_args()
    results = report.Report("many_tables")
    with EmulatedCluster(HOSTS, 1, RATE_MBIT) as cluster:
        for features, target in TARGETS.items():
            for servers in ("peers", "dedicated"):
                turns, steps = (2, 4) if args.quick else (7, 10)
                plan = Plan(servers, features, 2048, turns, steps)
                row = measure(cluster, plan)
                results.add_row(**row)
                name = f"{servers}: {features} tables / 1 table"
                results.add_check(name, row["ratio"], "<=", target)
    results.finish(args.json)


def measure(cluster, plan):
    """Runs a plan; returns the row of it."""
    text = json.dumps(dataclasses.asdict(plan))
    command = [sys.executable, "-m", "benchmarks.many_tables", "--worker", text]
    first = cluster.run(command, timeout_seconds=900).workers[0].result
    paired = report.Paired(first["step_ms"])
    return {
        "servers": plan.servers,
        "tables": plan.features,
        "batch": plan.batch,
        "cluster": cluster.label,
        "one_ms": paired.medians["one"],
        "many_ms": paired.medians["many"],
        "ratio": paired.ratio("many", "one"),
        "one_mb": first["sent_mb"]["one"],
        "many_mb": first["sent_mb"]["many"],
    }


def work(plan):
    """What a worker does: trains both models in turns."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_parallax as kp

    strategy = kp.ParallaxStrategy(
        servers=plan.servers, routes={"*/embeddings": "servers"}
    )
    random = np.random.default_rng(0)
    shape = (plan.batch, plan.features)
    batches = 4
    ids = random.integers(0, ROWS_PER_FEATURE, (batches, *shape)).astype("int32")
    numbers = random.normal(size=(batches, plan.batch, NUMBERS)).astype("float32")
    labels = random.integers(0, 2, (batches, plan.batch, 1)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(((ids, numbers), labels))
    dataset = dataset.cache().repeat()
    models = {}
    with strategy.scope():
        for name in ("one", "many"):
            models[name] = build(keras, plan.features, single=name == "one")
            models[name].compile("adagrad", "binary_crossentropy")
    sent = {}

    ends = []
    # Beginning and ending `fit` is no part of a step: models are traced and counters
    # read, and Python may look for garbage among all that was traced.
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )

    def train(name, steps=plan.steps):
        before = strategy.traffic.sent_bytes
        ends.clear()
        models[name].fit(dataset, steps_per_epoch=steps, callbacks=[clock], verbose=0)
        sent[name] = (strategy.traffic.sent_bytes - before) / steps / 1e6
        return 1e3 * (ends[-1] - ends[0]) / (len(ends) - 1)

    for name in models:
        train(name, _WARM_UP_STEPS)
    paired = report.compare(
        {name: lambda name=name: train(name) for name in models}, plan.turns
    )
    print_result({"step_ms": paired.samples, "sent_mb": sent})


def build(keras, features, single):
    """The model, with one table for all features or one for each."""
    ids = keras.Input((features,), dtype="int32")
    numbers = keras.Input((NUMBERS,))
    below = numbers
    for units in (128, WIDTH):
        below = keras.layers.Dense(units, "relu")(below)
    if single:
        first = [ROWS_PER_FEATURE * feature for feature in range(features)]
        table = keras.layers.Embedding(ROWS_PER_FEATURE * features, WIDTH)
        embedded = table(ids + keras.ops.array([first], "int32"))
    else:
        columns = keras.ops.unstack(ids, features, axis=1)
        embedded = keras.ops.stack(
            [keras.layers.Embedding(ROWS_PER_FEATURE, WIDTH)(c) for c in columns], 1
        )
    products = keras.layers.Dot(axes=(2, 1))([embedded, below])
    above = keras.layers.Concatenate()([products, below])
    above = keras.layers.Dense(128, "relu")(above)
    output = keras.layers.Dense(1, "sigmoid")(above)
    return keras.Model([ids, numbers], output)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Plan(**json.loads(sys.argv[2])))
    else:
        main()
