"""Makes mistakes that the package must answer for, the last of them fatal."""

import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import harness
import keras
import models

import keras_parallax as kp

folder, mistake = sys.argv[1:3]
x, y = models.data()


class Lookup(keras.layers.Layer):
    """Looks up ids of whatever type it is given."""

    def build(self, input_shape):
        self.table = self.add_weight(shape=(models.ROWS, 2), name="table")

    def call(self, ids):
        return keras.ops.mean(keras.ops.take(self.table, ids, axis=0), axis=(1, 2))


def build(ids="int32"):
    words = keras.Input((models.LENGTH,), dtype=ids)
    found = keras.layers.Embedding(models.ROWS, 2, name="words")(words)
    found = keras.layers.Flatten()(found)
    return keras.Model(words, keras.layers.Dense(1)(found))


def build_with_float_ids():
    ids = keras.Input((models.LENGTH,), dtype="float32")
    return keras.Model(ids, Lookup(name="lookup")(ids))


def fit(model, x=x):
    model.fit(x, y, batch_size=models.BATCH, verbose=0, shuffle=False)


def text_of(call):
    """The error that `call` raises, as text."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def in_scope():
    found = {}
    strategy = kp.ParallaxStrategy(
        routes={"*lookup/table": "servers", "*typo*": "servers"}
    )
    for optimizer in ("sgd", "adagrad"):
        outside = build()
        with strategy.scope():
            outside.compile(optimizer, "mse")
        found[f"built outside, {optimizer}"] = text_of(lambda m=outside: fit(m))
        with strategy.scope():
            inside = build()
        inside.compile(optimizer, "mse")
        found[f"compiled outside, {optimizer}"] = text_of(lambda m=inside: fit(m))
    with strategy.scope():
        found["float ids"] = text_of(build_with_float_ids)
    harness.write_result(folder, strategy.worker_index, found)
    with strategy.scope():
        model = build()
        model.compile("sgd", "mse")
    # The second worker's share of the third batch.
    x[2 * models.BATCH + models.BATCH // 2 + 1, 3] = models.ROWS + 7
    fit(model)


def out_of_scope():
    kp.ParallaxStrategy()
    model = build()
    model.compile("sgd", "mse")
    fit(model)


def too_late():
    keras.ops.zeros(3)
    kp.ParallaxStrategy()


def without_horovod():
    sys.modules["horovod"] = None  # As if it were not installed.
    kp.ParallaxStrategy()


warnings.simplefilter("ignore")
globals()[mistake]()
