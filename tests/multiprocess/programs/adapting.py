"""Trains with small batches, then with large ones: the plan follows."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models
import numpy as np

import keras_parallax as kp

folder, may_adapt = sys.argv[1:3]
ROWS, WIDTH, LENGTH = 5_000, 64, 8


class Gathered(keras.layers.Layer):
    """Looks rows up in a weight of its own, as no layer of Keras does."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(ROWS, WIDTH), name="rows")

    def call(self, ids):
        return keras.ops.mean(keras.ops.take(self.rows, ids, axis=0), axis=1)

    def compute_output_shape(self, shape):
        return (shape[0], WIDTH)


routes = None if may_adapt == "yes" else {"*": "allreduce"}
strategy = kp.ParallaxStrategy(routes=routes)
with strategy.scope():
    words = keras.Input((LENGTH,), dtype="int32")
    model = keras.Model(words, keras.layers.Dense(1)(Gathered(name="gathered")(words)))
    optimizer = keras.optimizers.Adagrad(0.1)
    model.compile(optimizer, "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
random = np.random.default_rng(0)
places, sparsity = [], []
for batch, steps in ((6, 40), (6144, 90), (6144, 10)):
    x = random.integers(0, ROWS, (batch * steps, LENGTH)).astype("int32")
    y = random.normal(size=(len(x), 1)).astype("float32")
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    places.append(strategy.plan["gathered/rows"].where)
    for found in strategy.sparsity():
        touched = [
            [
                len(np.unique(x[step * batch : (step + 1) * batch][share]))
                for share in np.array_split(np.arange(batch), strategy.num_workers)
            ]
            for step in range(steps)
        ]
        expected = np.mean(touched, axis=0) / ROWS
        sparsity.append({"found": found.to_dict(), "expected": expected.tolist()})
states = [np.asarray(s) for s in [*model.weights, *optimizer.variables[2:]]]
if strategy.is_chief:
    np.savez(f"{folder}/{may_adapt}.npz", *states)
harness.write_result(
    folder,
    strategy.worker_index,
    {
        "places": places,
        "changes": strategy.plan.changes,
        "sparsity": sparsity,
        "plan": strategy.plan.to_dict(),
    },
)
