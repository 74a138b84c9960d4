"""Trains the small model, and tells on which devices it and its table are."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models
import numpy as np
import tensorflow as tf

import keras_parallax as kp

folder, kind = sys.argv[1:3]
strategy = kp.ParallaxStrategy(partitions=3, routes=models.ROUTES, servers=kind)
with strategy.scope():
    model = models.build()
    optimizer = models.OPTIMIZERS["adagrad"]()
    model.compile(optimizer, "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
states = models.train(model, optimizer)
if strategy.is_chief:
    np.savez(f"{folder}/states.npz", *states)

(embedding,) = (x for x in model.layers if isinstance(x, keras.layers.Embedding))
dense = next(x for x in model.layers if isinstance(x, keras.layers.Dense))
table = embedding.embeddings.value
visible = tf.config.get_visible_devices("GPU")
try:
    outside = np.full((models.BATCH, models.LENGTH), models.ROWS, "int32")
    model.predict(outside, verbose=0)
    refused = ""
except tf.errors.InvalidArgumentError as error:
    refused = str(error)
harness.write_result(
    folder,
    strategy.worker_index,
    {
        "gpus": [gpu.name for gpu in visible],
        "growth": [tf.config.experimental.get_memory_growth(gpu) for gpu in visible],
        "rows_on": sorted({p.device for p in table.storage.partitions}),
        "kernel_on": dense.kernel.value.device,
        "refused": refused,
    },
)
