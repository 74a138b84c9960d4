"""A small model with every kind of lookup, and its dense twin.

The twin multiplies one-hot vectors with the same weights, so that its gradients
are dense. It is the oracle: Keras's own sparse gradients are not summed by row.
"""

import keras
import numpy as np
import tensorflow as tf

ROWS = 53
WIDTH = 4
LENGTH = 6
BATCH = 10
STEPS = 50

# Small tables had better not be on servers; what is tested here is that they can be.
ROUTES = {"*embeddings": "servers", "*bias_of_word/table": "servers"}

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "clipvalue": lambda: keras.optimizers.Adagrad(0.1, clipvalue=0.001),
    "clipnorm": lambda: keras.optimizers.Adagrad(0.1, clipnorm=0.02),
    "global_clipnorm": lambda: keras.optimizers.Adagrad(0.1, global_clipnorm=0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
}


class DenseEmbedding(keras.layers.Layer):
    """The oracle's embedding: a product with one-hot vectors."""

    def build(self, input_shape):
        self.embeddings = self.add_weight(shape=(ROWS, WIDTH), name="whole")

    def call(self, ids):
        hot = keras.ops.one_hot(ids, ROWS, dtype="float32")
        return keras.ops.matmul(hot, self.embeddings)


class BiasOfWord(keras.layers.Layer):
    """Averages a scalar of each word; looked up, twice, or multiplied."""

    def __init__(self, dense=False, **kwargs):
        super().__init__(**kwargs)
        self.dense = dense

    def build(self, input_shape):
        self.table = self.add_weight(shape=(ROWS,), name="table")

    def call(self, ids):
        if self.dense:
            hot = keras.ops.one_hot(ids, ROWS, dtype="float32")
            found = keras.ops.matmul(hot, self.table[:, None])[..., 0]
            first = found[:, :1]
        else:
            found = keras.ops.take(self.table, ids, axis=0)
            first = keras.ops.take(self.table, ids[:, :1], axis=0)
        return keras.ops.mean(found, axis=1, keepdims=True) + first


class Checked(keras.layers.Layer):
    """What it is given, which it asserts something of, as users' layers do."""

    def call(self, x):
        small = tf.debugging.assert_less(tf.reduce_max(tf.abs(x)), 1e6)
        with tf.control_dependencies([small]):
            return tf.identity(x)


def _embedding(dense):
    return DenseEmbedding() if dense else keras.layers.Embedding(ROWS, WIDTH)


def build(dense=False):
    """The model, or its dense twin; their weights come in the same order."""
    words = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(_embedding(dense)(words))
    x = keras.layers.Dense(5, activation="tanh")(x)
    x = keras.layers.Dense(1)(x)
    bias = BiasOfWord(dense, name="bias_of_word")(words)
    return keras.Model(words, keras.layers.Add()([x, bias]))


def build_deep(dense=False):
    """A model that needs the rows of two tables only when it has computed a while."""
    words = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(Checked()(_embedding(dense)(words)))
    for _ in range(4):
        x = keras.layers.Dense(WIDTH, activation="tanh")(x)
    late = keras.layers.GlobalAveragePooling1D()(_embedding(dense)(words))
    x = keras.layers.Dense(1)(keras.layers.Multiply()([x, late]))
    bias = BiasOfWord(dense, name="bias_of_word")(words)
    return keras.Model(words, keras.layers.Add()([x, bias]))


def build_without_tables():
    """A model with dense layers only."""
    numbers = keras.Input((LENGTH,), dtype="float32")
    x = keras.layers.Rescaling(1 / ROWS)(numbers)
    x = keras.layers.Dense(5, activation="tanh")(x)
    return keras.Model(numbers, keras.layers.Dense(1)(x))


def data():
    """Ids by Zipf's law, so that rows repeat within and across workers."""
    random = np.random.default_rng(1)
    x = (random.zipf(1.3, (BATCH * STEPS, LENGTH)) % ROWS).astype("int32")
    return x, random.normal(size=(len(x), 1)).astype("float32")


def start_weights(model):
    """The weights that every run begins with."""
    random = np.random.default_rng(2)
    return [
        random.normal(scale=0.3, size=weight.shape).astype("float32")
        for weight in model.weights
    ]


def train(model, optimizer):
    """Trains for `STEPS` steps; returns weights and slots, in order."""
    x, y = data()
    model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=1, verbose=0)
    states = [*model.weights, *optimizer.variables[2:]]
    return [np.asarray(state) for state in states]
