"""With everything on servers, a variable becomes what its gradient asks for."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models
import numpy as np
import tensorflow as tf

import keras_parallax as kp
from keras_parallax.tables import factory

folder, cases = sys.argv[1], json.loads(sys.argv[2])
factory.LOOK_BYTES = 0  # Rows so few are worth nothing but a test.
ROWS, WIDTH, LENGTH, BATCH = 40, 3, 5, 8
OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}


class Rows(keras.layers.Layer):
    """Looks rows up in a weight of its own, or multiplies it with one-hot vectors."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how = how

    def build(self, shape):
        self.rows = self.add_weight(shape=(ROWS, WIDTH), name="rows")

    def call(self, ids):
        if self.how == "gathered":
            rows = keras.ops.take(self.rows, ids, axis=0)
        else:
            hot = keras.ops.one_hot(ids, ROWS, dtype="float32")
            rows = keras.ops.matmul(hot, self.rows)
        return keras.ops.mean(rows, axis=1)

    def compute_output_shape(self, shape):
        return (shape[0], WIDTH)


def prepared(how, optimizer):
    words = keras.Input((LENGTH,), dtype="int32")
    model = keras.Model(words, keras.layers.Dense(1)(Rows(how, name="layer")(words)))
    model.compile(OPTIMIZERS[optimizer](0.05), "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
    return model


def fit_by_hand(model, x, y, strategy):
    """A custom loop, with the loss scaled as `tf.distribute` has it."""

    def step(x, y):
        with tf.GradientTape() as tape:
            errors = (model(x, training=True) - y) ** 2
            loss = tf.reduce_sum(errors) / BATCH
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)

    run = tf.function(lambda x, y: strategy.run(step, args=(x, y)))
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat(2)
    for batch in strategy.experimental_distribute_dataset(batches):
        run(*batch)


def trained(model, strategy=None):
    """What a model does, evaluated before it is trained, too.

    Args:
        model: The model.
        strategy: Where it is trained by hand.
    """
    random = np.random.default_rng(0)
    x = random.integers(0, ROWS, (64, LENGTH)).astype("int32")
    y = random.normal(size=(len(x), 1)).astype("float32")
    before = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    if strategy is None:
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, epochs=2)
    else:
        fit_by_hand(model, x, y, strategy)
    after = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    states = [*model.weights, *model.optimizer.variables[2:]]
    flat = np.concatenate([np.asarray(state).ravel() for state in states])
    return [before, after, *flat.tolist()]


# A server is connected to once: the strategies share it.
result = []
for how, optimizer, given, by_hand in cases:
    strategy = kp.ParallaxStrategy(**given)
    with strategy.scope():
        model = prepared(how, optimizer)
    found = trained(model, strategy if by_hand else None)
    entry = strategy.plan["layer/rows"]
    wanted = trained(prepared("dense", optimizer))
    result.append(
        {
            "error": float(np.abs(np.subtract(found, wanted)).max()),
            "held": type(model.get_layer("layer").rows._value).__name__,
            "slots": [
                type(slot._value).__name__
                for slot in model.optimizer.variables[2:]
                if tuple(slot.shape) == (ROWS, WIDTH)
            ],
            "where": entry.where,
            "reason": entry.reason,
            "gradient": entry.gradient,
            "changes": strategy.plan.changes,
        }
    )
    strategy.close()
harness.write_result(folder, strategy.worker_index, result)
