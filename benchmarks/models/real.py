"""Two small models and real data, such that many workers can do what one process does.

Each builder returns a compiled model, `(x, y)` to train with, the same to test with,
and what its measure on the test data is: a function of what `evaluate` returns.

Any share of a batch has to give the same gradients as when it is part of the whole. So
the words of the sampled softmax are drawn by a number that comes with the data, the
same for all examples of a batch, and nothing depends on a share's statistics.
"""

import math
import pathlib
import sys

import keras
import numpy as np
from keras import layers, ops

from benchmarks.models.kinds import SampledSoftmax

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
WORDS, WIDTH, DRAWN = 10, 64, 512
_BLOCK_ROWS = 4096


class ComparableSoftmax(SampledSoftmax):
    """Samples in training, by seeds that are part of the data; exact in testing.

    Takes `(batch, length, dim)` hidden states, `(batch, length)` targets and
    `(batch, 1)` seeds; gives the `(batch, length)` cross-entropies.
    """

    def build(self, hidden_shape, targets_shape, seeds_shape):
        super().build(hidden_shape, targets_shape)

    def compute_output_shape(self, hidden_shape, targets_shape, seeds_shape):
        return targets_shape

    def call(self, hidden, targets, seeds, training=False):
        if training:
            self._of_batch = ops.cast(ops.max(seeds), "int64")
            return super().call(hidden, targets)
        flat = ops.reshape(hidden, (-1, hidden.shape[-1]))
        sums = []
        for start in range(0, self.vocabulary, _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, self.vocabulary)
            rows = ops.take(self.kernel, ops.arange(start, stop), axis=0)
            logits = ops.matmul(flat, ops.transpose(rows))
            sums.append(ops.logsumexp(logits, axis=-1))
        mine = ops.take(self.kernel, ops.reshape(targets, (-1,)), axis=0)
        losses = ops.logsumexp(ops.stack(sums), axis=0) - ops.sum(flat * mine, axis=-1)
        return ops.reshape(losses, (-1, hidden.shape[1]))

    def _seed(self, targets):
        return self._of_batch


def language_model(batch, test_batches=4):
    """Predicts the words of the King James text; its measure is the perplexity."""
    corpus = _examples_data().load_corpus(WORDS, batch)
    words = keras.Input((WORDS,), dtype="int32", name="words")
    targets = keras.Input((WORDS,), dtype="int32", name="targets")
    seeds = keras.Input((1,), dtype="int32", name="seeds")
    size = corpus.vocabulary_size
    x = layers.Embedding(size, WIDTH, name="embedding")(words)
    x = layers.LSTM(WIDTH, return_sequences=True, name="lstm")(x)
    losses = ComparableSoftmax(size, DRAWN, name="softmax")(x, targets, seeds)
    model = keras.Model([words, targets, seeds], losses)
    # Starts low: a rare word's share of a gradient is small.
    optimizer = keras.optimizers.Adagrad(0.05, initial_accumulator_value=1e-5)
    model.compile(optimizer, _mean_of_losses, jit_compile=False)

    def of(part, most=None):
        words, targets = (part[key][:most] for key in ("words", "targets"))
        seeds = (np.arange(len(words), dtype="int32") // batch)[:, None]
        return (words, targets, seeds), targets

    return model, of(corpus.train), of(corpus.test, test_batches * batch), math.exp


def digits(batch):
    """Tells handwritten digits apart; its measure is the accuracy."""
    train, test = _examples_data("digits").load_digits()
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], jit_compile=False
    )
    # Whole batches only, in training and in testing.
    tested = len(test.labels) // batch * batch
    return (
        model,
        (train.images, train.labels),
        (test.images[:tested], test.labels[:tested]),
        lambda found: found[1],
    )


def _examples_data(module=None):
    """The package of the examples' data, or a module of it."""
    import importlib

    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(f"data.{module}" if module else "data")
    finally:
        sys.path.remove(str(EXAMPLES))


def _mean_of_losses(targets, losses):
    return ops.mean(losses, axis=-1)
