"""Translation with attention: the King James Bible into Basic English.

    python examples/translation.py
    keras-parallax run -np 2 -- python examples/translation.py

Two English versions of the Bible are a parallel corpus, aligned by verse. An encoder
reads the one; a decoder writes the other word by word and looks, at each, at what was
read. After Luong, Pham and Manning, "Effective Approaches to Attention-based Neural
Machine Translation", 2015.
"""

import argparse
import json
import math

import keras
import numpy as np
import tensorflow as tf
from data import bible, parallel
from keras import layers, ops

import keras_parallax as kp

LENGTH = 24


# 1. The model. Both vocabularies are tables; the network between them is dense.
def build_model(source_size, target_size, units):
    def embed(ids, size, name):
        start = keras.initializers.RandomNormal(stddev=0.3)
        return layers.Embedding(size, units, start, name=name)(ids)

    def places(ids):
        return ops.cumsum(ops.ones_like(ids), axis=-1) - 1

    source = keras.Input((LENGTH,), dtype="int32", name="source")
    before = keras.Input((LENGTH + 1,), dtype="int32", name="before")
    # The encoder: each word, its place, and what is beside it.
    read = embed(source, source_size, "source_words")
    read = read + embed(places(source), LENGTH, "source_places")
    beside = layers.Conv1D(units, 3, padding="same", activation="tanh", name="beside")
    read = read + beside(read)
    # The decoder: what was written before asks for what to look at now.
    x = embed(before, target_size, "target_words")
    x = layers.LSTM(units, return_sequences=True, unroll=True, name="decoder")(x)
    place = embed(places(before), LENGTH + 1, "target_places")
    query = layers.Dense(units, name="query")(x + place)
    words = source != parallel.PAD
    found = layers.Attention(name="attention")([query, read], mask=[None, words])
    both = layers.Dense(units, activation="tanh", name="both")
    x = both(layers.Concatenate()([x, found]))
    x = x + layers.Dense(units, name="found")(found)
    logits = layers.Dense(target_size, name="word")(x)
    return keras.Model({"source": source, "before": before}, logits)


# 2. The loss of a verse: the sum over its words. (A mean over words would weigh verses
# by how many words others of the same worker have, and so by the number of workers.)
def verse_loss(words, logits):
    losses = ops.sparse_categorical_crossentropy(words, logits, from_logits=True)
    real = ops.cast(words != parallel.PAD, losses.dtype)
    return ops.sum(losses * real, axis=-1)


def inputs(verses, source=None):
    source = verses.source if source is None else source
    return {"source": source, "before": verses.target_in}


# 3. Writing: each word is the likeliest after those before it.
def translate(model, source):
    written = np.full((len(source), LENGTH + 1), parallel.PAD, "int32")
    written[:, 0] = parallel.BEGIN
    for place in range(LENGTH):
        logits = model.predict({"source": source, "before": written}, verbose=0)
        written[:, place + 1] = logits[:, place].argmax(-1)
    return written[:, 1:]


def to_text(ids, words):
    ended = np.isin(ids, (parallel.PAD, parallel.END))
    return " ".join(words[word] for word in ids[: np.append(ended, True).argmax()])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--units", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.004)
    parser.add_argument("--quick", action="store_true", help="two epochs")
    args = parser.parse_args()

    # 4. The strategy, before all else of TensorFlow.
    strategy = kp.ParallaxStrategy()
    keras.utils.set_random_seed(1)
    verses = parallel.load_parallel(bible.KING_JAMES, bible.BASIC_ENGLISH, LENGTH, 4)
    train, test = verses.train, verses.test
    dataset = tf.data.Dataset.from_tensor_slices((inputs(train), train.target_out))
    dataset = dataset.shuffle(len(train.source), seed=0).batch(args.batch_size)

    # 5. Training.
    with strategy.scope():
        sizes = len(verses.source_words), len(verses.target_words)
        model = build_model(*sizes, args.units)
        model.compile(keras.optimizers.Adam(args.rate), verse_loss)
    model.fit(dataset, epochs=2 if args.quick else args.epochs, shuffle=False)

    # 6. Testing: with each verse's source, then with the source of another verse. What
    # the attention found in the right one is the difference.
    def perplexity(source):
        loss = model.evaluate(inputs(test, source), test.target_out, verbose=0)
        words = np.sum(test.target_out != parallel.PAD)
        return math.exp(loss * len(test.source) / words)

    right, wrong = perplexity(test.source), perplexity(np.roll(test.source, 1, axis=0))
    shown = slice(3)
    written = translate(model, test.source[shown])
    if strategy.is_chief:
        for source, target in zip(test.source[shown], written, strict=True):
            print("  ", to_text(source, verses.source_words))
            print("->", to_text(target, verses.target_words))
        result = {
            "workers": strategy.num_workers,
            "servers": strategy.num_servers,
            "test_perplexity": right,
            "wrong_source_perplexity": wrong,
            "bigram_perplexity": parallel.bigram_perplexity(verses, damping=100),
        }
        print("result:", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
