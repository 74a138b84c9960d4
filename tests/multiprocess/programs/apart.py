"""Asynchronous workers of which one does what the others do not."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models
import tensorflow as tf

import keras_parallax as kp

folder, what = sys.argv[1:3]
bound = 2 if what == "fewer_steps" else None
strategy = kp.ParallaxStrategy(synchronous=False, max_staleness=bound)
with strategy.scope():
    model = models.build()
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
x, y = models.data()
chief = strategy.is_chief


class Asks(keras.callbacks.Callback):
    """Asks for what all workers have to be asked for."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            strategy.sparsity()


def fit(**given):
    return model.fit(x, y, batch_size=models.BATCH, verbose=0, shuffle=False, **given)


def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    variables = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, variables), variables)
    return loss


def by_hand(steps):
    """A custom loop, whose steps wait for nobody, either."""
    run = tf.function(lambda x, y: strategy.run(step, args=(x, y)))
    return [float(run(x[:8], y[:8])) for _ in range(steps)]


def total(value):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)


@tf.function(autograph=False)
def total_in_graph():
    return total(tf.constant(1.0))


result = {}
if what == "asks":
    fit(callbacks=[Asks()] if chief else [])
elif what == "fewer_steps":
    fit(steps_per_epoch=20 if chief else 5)
elif what == "predicts":
    if chief:
        model.predict(x, batch_size=models.BATCH, verbose=0)
else:
    callbacks = [
        kp.callbacks.ParallaxTensorBoard(f"{folder}/logs"),
        summary := kp.callbacks.FitSummary(),
    ]
    fit(callbacks=callbacks if chief else [], steps_per_epoch=20 if chief else 5)
    result["summary"] = summary.text
    result["predicted"] = len(model.predict(x, batch_size=models.BATCH, verbose=0))
    losses = by_hand(12 if chief else 3)
    result["falls"] = losses[-1] < losses[0]
    try:
        total_in_graph()
    except kp.errors.ConfigError as error:
        result["refused"] = str(error)
    # Outside of a graph it is one of the things that all do together.
    result["total"] = float(total(tf.constant(1.0)))
harness.write_result(folder, strategy.worker_index, result)
