"""Fits, evaluates and predicts, with seeds that differ and a last batch of one."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models
import numpy as np

import keras_parallax as kp

folder, steps_per_execution = sys.argv[1], int(sys.argv[2])
strategy = kp.ParallaxStrategy(partitions=3, routes=models.ROUTES)
keras.utils.set_random_seed(strategy.worker_index)
x, y = models.data()
x, y = x[:121], y[:121]
with strategy.scope():
    model = models.build()
    model.compile(
        keras.optimizers.Adagrad(0.1),
        "mse",
        metrics=["mae"],
        jit_compile=False,
        steps_per_execution=steps_per_execution,
    )
start = [weight.tolist() for weight in model.get_weights()]
model.set_weights(models.start_weights(model))
fitted = model.fit(
    x, y, batch_size=10, epochs=2, shuffle=False, verbose=0, validation_data=(x, y)
)
weights = [weight.tolist() for weight in model.get_weights()]
# Shuffled batches must be the same on every worker, whatever its seed.
shuffled = model.fit(x, y, batch_size=10, verbose=0)

# Moving statistics are kept alike, though each worker normalizes its own share.
with strategy.scope():
    numbers = keras.Input((models.LENGTH,))
    normal = keras.Model(numbers, keras.layers.BatchNormalization()(numbers))
    normal.compile("sgd", "mse")
normal.fit(x.astype("float32"), x.astype("float32"), batch_size=10, verbose=0)

harness.write_result(
    folder,
    strategy.worker_index,
    {
        "start": start,
        "history": fitted.history,
        "weights": weights,
        "shuffled": shuffled.history,
        "evaluated": model.evaluate(x, y, batch_size=10, verbose=0),
        "predicted": model.predict(x, batch_size=10, verbose=0).tolist(),
        "statistics": [np.asarray(w).tolist() for w in normal.non_trainable_weights],
    },
)
