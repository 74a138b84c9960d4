"""Trains a model with batch statistics in several ways, with many small buckets."""

import math
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import messages
import numpy as np
import tensorflow as tf

import keras_parallax as kp
from keras_parallax.collectives import dense, operations
from keras_parallax.collectives.later import LaterSums

BATCH, WIDTH = 12, 40
folder = sys.argv[1]
strategy = kp.ParallaxStrategy()
rank = strategy.worker_index
generator = np.random.default_rng(0)
x = generator.normal(size=(3 * BATCH + 5, WIDTH)).astype("float32")
y = generator.normal(size=(len(x), 1)).astype("float32")
collects = LaterSums._collects
# Keras seeds what `random` itself draws.
delays = random.Random()


class Hesitant(keras.layers.Layer):
    """Gives its gradient sooner or later, and at each worker at another time."""

    def call(self, inputs):
        @tf.custom_gradient
        def hesitate(tensor):
            def late(gradient):
                wait = tf.numpy_function(_wait, [gradient], gradient.dtype)
                return tf.ensure_shape(wait, gradient.shape)

            return tf.identity(tensor), late

        return hesitate(inputs)


def _wait(gradient):
    time.sleep(delays.choice((0.0, 0.001, 0.004)))
    return gradient


def build(reads_again):
    inputs = keras.Input((WIDTH,))
    shared, other = (keras.layers.BatchNormalization() for _ in range(2))
    hidden = keras.layers.Dense(WIDTH, activation="tanh")(shared(inputs))
    hidden = Hesitant()(hidden)
    hidden = shared(hidden) if reads_again else hidden
    hidden = keras.layers.Dense(WIDTH, activation="tanh")(other(hidden))
    if reads_again:
        # Its statistics are read after they were assigned, in the same step.
        hidden = other(hidden, training=False)
    hidden = Hesitant()(hidden)
    hidden = keras.layers.Dense(WIDTH, activation="tanh")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def counted(earlier):
    """How many operations of each kind there are in the graph with most."""
    found = [
        dict(count)
        for graph, count in operations._in_graph.items()
        if graph not in earlier
    ]
    return max(found, key=lambda count: sum(count.values()), default={})


def train(how, at_once=False):
    """Trains; returns weights, slots and the kinds of operations."""
    LaterSums._collects = (lambda self: False) if at_once else collects
    dense.PIECE_BYTES = math.inf if at_once else 4 * WIDTH / strategy.num_workers
    keras.utils.set_random_seed(1)
    before = set(operations._in_graph)
    with strategy.scope():
        model = build(reads_again=how != "buckets")
        if how == "averages":
            optimizer = keras.optimizers.SGD(0.01, use_ema=True)
        else:
            optimizer = keras.optimizers.Adam(0.01)
        model.compile(
            optimizer,
            "mse",
            run_eagerly=how == "eager",
            jit_compile=False,
            steps_per_execution=3 if how == "steps" else 1,
        )
    if how == "loop":
        loop(model, optimizer)
    else:
        model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    variables = [*model.variables, *optimizer.variables]
    return {
        "values": [np.asarray(v).tolist() for v in variables],
        "operations": counted(before),
    }


def loop(model, optimizer):
    """A training loop of one's own."""
    whole = len(x) // BATCH * BATCH
    data = tf.data.Dataset.from_tensor_slices((x[:whole], y[:whole])).batch(BATCH)

    def step(features, labels):
        with tf.GradientTape() as tape:
            errors = keras.losses.mean_squared_error(
                labels, model(features, training=True)
            )
            loss = tf.reduce_sum(errors) / BATCH
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    @tf.function
    def run(features, labels):
        strategy.run(step, (features, labels))

    with strategy.scope():
        optimizer.build(model.trainable_variables)
        for _ in range(2):
            for features, labels in strategy.experimental_distribute_dataset(data):
                run(features, labels)


def statistics():
    """A moving mean, and what it is by the rule of the layer."""
    with strategy.scope():
        inputs = keras.Input((WIDTH,))
        layer = keras.layers.BatchNormalization()
        model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
        model.compile("sgd", "mse", jit_compile=False)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    wanted = np.zeros(WIDTH)
    for start in range(0, len(x), BATCH):
        of_batch = x[start : start + BATCH].mean(0)
        wanted += (1 - layer.momentum) * (of_batch - wanted)
    return {"found": np.asarray(layer.moving_mean).tolist(), "wanted": wanted.tolist()}


def timed():
    """What the spans tell of steps with many buckets."""
    strategy.spans.switch_on()
    train("buckets")
    return vars(strategy.spans.read())


result = {how: train(how) for how in ("fit", "steps", "eager", "loop", "buckets")}
result |= {"averages": train("averages")}
result |= {
    f"{how} at once": train(how, at_once=True) for how in ("fit", "loop", "buckets")
}
result |= {
    "statistics": statistics(),
    "timed": timed(),
    "messages": messages.check(strategy),
}
harness.write_result(folder, rank, result)
