"""Five kinds of model, with made-up data: small to compute, so that exchanges decide.

Each builder returns a compiled model and the `(x, y)` of some steps. Words and
categories are drawn by Zipf's law, as they are in texts and logs.
"""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

WORDS = 10
#: Rows of the recommender's tables: how many different values each feature has.
FEATURES = (10, 10, 100, 100, 1_000, 1_000, 10_000, 10_000, 100_000, 1_000_000)
NUMBERS = 13


class SampledSoftmax(layers.Layer):
    """Cross-entropies of the next words among some that are drawn."""

    def __init__(self, vocabulary, drawn, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary, self.drawn = vocabulary, drawn

    def build(self, hidden_shape, targets_shape):
        shape = (self.vocabulary, hidden_shape[-1])
        self.kernel = self.add_weight(name="kernel", shape=shape)

    def compute_output_shape(self, hidden_shape, targets_shape):
        return targets_shape

    def call(self, hidden, targets):
        targets = ops.reshape(ops.cast(targets, "int64"), (-1, 1))
        losses = tf.nn.sampled_softmax_loss(
            self.kernel,
            tf.zeros([self.vocabulary]),
            targets,
            ops.reshape(hidden, (-1, hidden.shape[-1])),
            self.drawn,
            self.vocabulary,
            sampled_values=self._draw(targets),
        )
        return ops.reshape(losses, (-1, hidden.shape[1]))

    def _seed(self, targets):
        """What the draw depends on: the batch, so that a training can be repeated."""
        return tf.reduce_sum(targets)

    def _draw(self, targets):
        """Words by Zipf's law, and how often each is expected to be drawn."""
        size = math.log(self.vocabulary + 1)
        seed = tf.stack([self._seed(targets), 0])
        drawn = tf.exp(size * tf.random.stateless_uniform([self.drawn], seed)) - 1
        drawn = tf.minimum(tf.cast(drawn, tf.int64), self.vocabulary - 1)
        expected = [
            self.drawn / size * tf.math.log1p(1 / (tf.cast(words, tf.float32) + 1))
            for words in (targets, drawn)
        ]
        return drawn, *expected


class TiedSoftmax(layers.Layer):
    """Logits by the same weights that words were looked up in."""

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding

    def call(self, hidden):
        return ops.matmul(hidden, ops.transpose(self.embedding.embeddings))


def language_model(batch, steps, vocabulary=40_000, width=32, drawn=256):
    """An LSTM whose softmax is sampled; two tables."""
    words = keras.Input((WORDS,), dtype="int32", name="words")
    targets = keras.Input((WORDS,), dtype="int32", name="targets")
    x = layers.Embedding(vocabulary, width, name="embedding")(words)
    x = layers.LSTM(width, return_sequences=True, name="lstm")(x)
    losses = SampledSoftmax(vocabulary, drawn, name="softmax")(x, targets)
    model = _compiled([words, targets], losses, _mean_of_losses)
    text = zipf(vocabulary, (batch * steps, WORDS + 1))
    return model, ((text[:, :-1], text[:, 1:]), text[:, 1:])


def tied_language_model(batch, steps, vocabulary=4_000, width=32):
    """Its words are looked up and multiplied whole; pairs of words are a table."""
    pairs_kept = 50_000
    words = keras.Input((WORDS,), dtype="int32", name="words")
    pairs = keras.Input((WORDS,), dtype="int32", name="pairs")
    embedding = layers.Embedding(vocabulary, width, name="embedding")
    x = embedding(words) + layers.Embedding(pairs_kept, width, name="pairs_seen")(pairs)
    x = layers.Conv1D(width, 3, padding="causal", activation="tanh", name="mix")(x)
    model = _compiled([words, pairs], TiedSoftmax(embedding)(x), _cross_entropy)
    text = zipf(vocabulary, (batch * steps, WORDS + 1))
    before, word = text[:, :-1].astype("int64"), text[:, 1:].astype("int64")
    seen = ((before * 7919 + word) % pairs_kept).astype("int32")
    return model, ((text[:, :-1], seen), text[:, 1:])


def translator(batch, steps, source_words=20_000, target_words=4_000, width=32):
    """An encoder, a decoder with attention, a dense softmax; two tables."""
    source = keras.Input((WORDS,), dtype="int32", name="source")
    before = keras.Input((WORDS,), dtype="int32", name="before")
    read = layers.Embedding(source_words, width, name="source_words")(source)
    read = layers.Conv1D(width, 3, padding="same", activation="tanh")(read)
    x = layers.Embedding(target_words, width, name="target_words")(before)
    x = layers.LSTM(width, return_sequences=True, name="decoder")(x)
    x = layers.Concatenate()([x, layers.Attention()([x, read])])
    x = layers.Dense(width, "tanh")(x)
    logits = layers.Dense(target_words, name="word")(x)
    model = _compiled([source, before], logits, _cross_entropy)
    read = zipf(source_words, (batch * steps, WORDS))
    written = zipf(target_words, (batch * steps, WORDS + 1))
    return model, ((read, written[:, :-1]), written[:, 1:])


def recommender(batch, steps, width=4):
    """After Naumov et al., "DLRM", 2019: numbers, and a table for each feature."""
    ids = keras.Input((len(FEATURES),), dtype="int32", name="ids")
    numbers = keras.Input((NUMBERS,), name="numbers")
    below = layers.Dense(width, "relu")(layers.Dense(64, "relu")(numbers))
    columns = ops.unstack(ids, len(FEATURES), axis=1)
    embedded = [
        layers.Embedding(rows, width, name=f"feature_{index}")(column)
        for index, (rows, column) in enumerate(zip(FEATURES, columns, strict=True))
    ]
    products = layers.Dot(axes=(2, 1))([ops.stack(embedded, 1), below])
    above = layers.Dense(64, "relu")(layers.Concatenate()([products, below]))
    model = _compiled(
        [ids, numbers], layers.Dense(1, "sigmoid")(above), "binary_crossentropy"
    )
    count = batch * steps
    drawn = np.stack([zipf(n, count, seed) for seed, n in enumerate(FEATURES)], 1)
    random = np.random.default_rng(1)
    features = random.normal(size=(count, NUMBERS)).astype("float32")
    return model, ((drawn, features), random.integers(0, 2, (count, 1)))


def cnn(batch, steps, size=12):
    """Small pictures; no table."""
    pictures = keras.Input((size, size, 1))
    x = layers.Conv2D(16, 3, activation="relu")(pictures)
    x = layers.Conv2D(32, 3, activation="relu")(x)
    x = layers.Dense(128, "relu")(layers.Flatten()(x))
    model = _compiled(
        pictures, layers.Dense(10, "softmax")(x), "sparse_categorical_crossentropy"
    )
    random = np.random.default_rng(2)
    count = batch * steps
    drawn = random.normal(size=(count, size, size, 1)).astype("float32")
    return model, (drawn, random.integers(0, 10, count))


KINDS = {
    "language model": language_model,
    "tied language model": tied_language_model,
    "translator": translator,
    "recommender": recommender,
    "CNN": cnn,
}


def _compiled(inputs, outputs, loss):
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adagrad(0.05), loss)
    return model


def _mean_of_losses(targets, losses):
    return ops.mean(losses, axis=-1)


def _cross_entropy(words, logits):
    return ops.mean(
        ops.sparse_categorical_crossentropy(words, logits, from_logits=True), axis=-1
    )


def zipf(count, shape, seed=0):
    """Ids by Zipf's law: rank r with a probability proportional to 1/r."""
    total = np.cumsum(1 / np.arange(1, count + 1))
    random = np.random.default_rng([seed, count])
    ids = np.searchsorted(total, random.random(shape) * total[-1])
    return np.minimum(ids, count - 1).astype(np.int32)
