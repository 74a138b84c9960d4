"""The language model of the Parallax paper, for `keras-parallax plan`.

    keras-parallax plan --workers 48 --machines 8 --bandwidth 100Gbit \
        benchmarks/models/paper_lm.py

Vocabulary 793,470, embedding 512, an LSTM of 2,048 units projected to 512, softmax
sampled with 8,192 words, 128 windows of 20 words a worker, Adagrad (Kim et al.,
EuroSys 2019; the settings of its published code). The text is made up: words drawn
by Zipf's law with an exponent of 1, which is what large English corpora come close
to; the sampler of the softmax draws by nearly the same law.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from keras import ops


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the model is."""

    vocabulary: int = 793_470
    embedding: int = 512
    units: int = 2048
    drawn: int = 8192
    windows: int = 128
    words: int = 20


PAPER = Size()

_random = np.random.default_rng(0)


class ProjectedLSTMCell(keras.layers.Layer):
    """An LSTM cell whose output, and what it sees of its past, is projected."""

    def __init__(self, units, projection, **kwargs):
        super().__init__(**kwargs)
        self.units, self.projection = units, projection
        self.state_size = (projection, units)
        self.output_size = projection

    def build(self, input_shape):
        width = input_shape[-1] + self.projection
        self.kernel = self.add_weight(name="kernel", shape=(width, 4 * self.units))
        self.bias = self.add_weight(name="bias", shape=(4 * self.units,))
        shape = (self.units, self.projection)
        self.project = self.add_weight(name="projection", shape=shape)

    def call(self, inputs, states):
        before, cell = states
        gates = ops.matmul(ops.concatenate([inputs, before], -1), self.kernel)
        enter, forget, new, leave = ops.split(gates + self.bias, 4, axis=-1)
        cell = ops.sigmoid(forget) * cell + ops.sigmoid(enter) * ops.tanh(new)
        output = ops.matmul(ops.sigmoid(leave) * ops.tanh(cell), self.project)
        return output, (output, cell)


class SampledSoftmax(keras.layers.Layer):
    """Cross-entropies of the next words among some that are drawn."""

    def __init__(self, vocabulary, drawn, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary, self.drawn = vocabulary, drawn

    def build(self, hidden_shape, targets_shape):
        shape = (self.vocabulary, hidden_shape[-1])
        self.kernel = self.add_weight(name="kernel", shape=shape)
        self.bias = self.add_weight(name="bias", shape=shape[:1], initializer="zeros")

    def compute_output_shape(self, hidden_shape, targets_shape):
        return targets_shape

    def call(self, hidden, targets):
        losses = tf.nn.sampled_softmax_loss(
            self.kernel,
            self.bias,
            ops.reshape(targets, (-1, 1)),
            ops.reshape(hidden, (-1, hidden.shape[-1])),
            self.drawn,
            self.vocabulary,
        )
        self.add_loss(ops.mean(losses))
        return ops.reshape(losses, ops.shape(targets))


def build_model(size=PAPER):
    words = keras.Input((size.words,), dtype="int32", name="words")
    targets = keras.Input((size.words,), dtype="int32", name="targets")
    x = keras.layers.Embedding(size.vocabulary, size.embedding, name="embedding")(words)
    cell = ProjectedLSTMCell(size.units, size.embedding, name="cell")
    x = keras.layers.RNN(cell, return_sequences=True, name="lstm")(x)
    losses = SampledSoftmax(size.vocabulary, size.drawn, name="softmax")(x, targets)
    model = keras.Model({"words": words, "targets": targets}, losses)
    model.compile(keras.optimizers.Adagrad(0.2, initial_accumulator_value=1.0))
    return model


def sample_batch(size=PAPER):
    """One worker's words, and those that follow them."""
    text = draw(size, (size.windows, size.words + 1))
    return {"words": text[:, :-1], "targets": text[:, 1:]}


def draw(size, shape):
    """Ids by Zipf's law: rank r with a probability proportional to 1/r."""
    total = np.cumsum(1 / np.arange(1, size.vocabulary + 1))
    ids = np.searchsorted(total, _random.random(shape) * total[-1])
    return ids.astype(np.int32)
