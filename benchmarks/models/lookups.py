"""A table, of which each worker looks up a share of the rows that one can choose."""

import keras
import numpy as np
from keras import layers, ops


def lookups(batch, steps, rows=16_000, words=20, width=64):
    """Means of rows, and what is learned of them.

    A worker whose share of a batch is `b` examples looks up about `b * words` rows,
    hardly any of them twice, until these are all.

    Args:
        batch: Examples of a step.
        steps: Steps for which there are data.
        rows: Rows of the table.
        words: Rows that an example looks up.
        width: Elements of a row.
    """
    ids = keras.Input((words,), dtype="int32")
    x = layers.Embedding(rows, width, name="embedding")(ids)
    x = layers.Dense(width, "relu")(ops.mean(x, axis=1))
    model = keras.Model(ids, layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    random = np.random.default_rng(3)
    # Rows in a random order, one order after another: neighbours are distinct.
    orders = -(-batch * steps * words // rows)
    drawn = np.concatenate([random.permutation(rows) for _ in range(orders)])
    drawn = drawn[: batch * steps * words].astype("int32").reshape(-1, words)
    return model, (drawn, random.normal(size=(batch * steps, 1)).astype("float32"))
