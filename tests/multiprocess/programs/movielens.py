"""Trains on MovieLens 100k with small batches, then with large ones."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples"))

import harness
import keras
import numpy as np
from data import movielens
from keras import layers

import keras_parallax as kp

(folder,) = sys.argv[1:]
WIDTH = 32
# After this many steps the plan has been looked at as often as it takes to change it.
PHASES = ((64, 30), (1024, 92))

strategy = kp.ParallaxStrategy()
ratings = movielens.read_ratings()
order = np.random.default_rng(0).permutation(len(ratings.users))
ratings = ratings.where(order)
with strategy.scope():
    user, item = (keras.Input((), dtype="int32", name=n) for n in ("user", "item"))
    vectors = [
        layers.Embedding(movielens.USERS, WIDTH, name="users")(user),
        layers.Embedding(movielens.ITEMS, WIDTH, name="items")(item),
    ]
    stars = layers.Dense(1)(layers.Multiply()(vectors))
    model = keras.Model([user, item], stars)
    model.compile(keras.optimizers.Adagrad(0.1), "mse", jit_compile=False)


def shares(column, batch, steps):
    """Distinct values of each step, of each worker and of both: `(steps, 3)`."""
    counted = []
    for step in range(steps):
        mine = column[step * batch : (step + 1) * batch]
        halves = np.split(mine, 2)
        counted.append([len(np.unique(part)) for part in (*halves, mine)])
    return counted


found = []
for batch, steps in PHASES:
    x = [column[: batch * steps] for column in (ratings.users, ratings.items)]
    model.fit(
        x, ratings.stars[: batch * steps], batch_size=batch, shuffle=False, verbose=0
    )
    sparsity = {s.variable: s.to_dict() for s in strategy.sparsity()}
    plan = {e.variable: e.road for e in strategy.plan if e.gradient == "sparse"}
    counted = {
        "users/embeddings": shares(ratings.users, batch, steps),
        "items/embeddings": shares(ratings.items, batch, steps),
    }
    found.append({"sparsity": sparsity, "plan": plan, "counted": counted})
harness.write_result(
    folder, strategy.worker_index, {"found": found, "changes": strategy.plan.changes}
)
