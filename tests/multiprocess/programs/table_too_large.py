"""Asks for a table of 2 TiB; tells what that raised."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras

import keras_parallax as kp

strategy = kp.ParallaxStrategy(servers=sys.argv[2])
caught = None
with strategy.scope():
    layer = keras.layers.Embedding(1 << 33, 64, name="words")
    try:
        layer.build()
    except kp.errors.TableError as error:
        caught = {"message": str(error), "table": error.table}
harness.write_result(sys.argv[1], strategy.worker_index, caught)
