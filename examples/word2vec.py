"""Word vectors (skip-gram with negative sampling) and the test of analogies.

    python examples/word2vec.py
    keras-parallax run -np 2 -- python examples/word2vec.py

Vectors learned from 2.8 million words, of Wikipedia and of three Bibles, answer "Athens
is to Greece as Baghdad to ...?". After Mikolov et al., "Distributed Representations of
Words and Phrases and their Compositionality", 2013.
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from data import bible, wikipedia
from data.words import UNKNOWN, build_vocabulary, encode
from keras import layers, ops

import keras_parallax as kp

OFFSETS = np.array([-4, -3, -2, -1, 1, 2, 3, 4])
NEGATIVES = 8


# 1. The model: a vector for each word as a center, another as one of a context. Their
# product says whether the two stand near each other. Both are tables, of which a step
# touches the rows of its words.
def build_model(vocabulary_size, dim):
    centers = keras.Input((), dtype="int32", name="centers")
    others = keras.Input((len(OFFSETS) + NEGATIVES,), dtype="int32", name="others")
    uniform = keras.initializers.RandomUniform(-0.5 / dim, 0.5 / dim)
    center = layers.Embedding(vocabulary_size, dim, uniform, name="words")(centers)
    other = layers.Embedding(vocabulary_size, dim, "zeros", name="contexts")(others)
    logits = ops.sum(center[:, None] * other, axis=-1)
    return keras.Model({"centers": centers, "others": others}, logits)


# 2. The data: each word with those around it, which are to be told from drawn ones.
def skip_grams(ids, counts, batch_size):
    random = np.random.default_rng(0)
    # Very frequent words say little of their neighbours: most of them are left out.
    share = counts / counts.sum()
    kept = np.minimum(1, np.sqrt(1e-3 / share) + 1e-3 / share)
    ids = ids[random.random(len(ids)) < kept[ids]]
    centers = random.permutation(np.arange(4, len(ids) - 4))
    centers = centers[: len(centers) // batch_size * batch_size]
    centers = centers.reshape(-1, batch_size)
    # The more frequent a word, the more often it is drawn: each fills a part of an urn.
    parts = np.ceil(1e6 * counts**0.75 / np.sum(counts**0.75)).astype(int)
    urn = tf.constant(np.repeat(np.arange(len(counts), dtype="int32"), parts))
    ids = tf.constant(ids)
    labels = np.repeat([[1.0, 0.0]], (len(OFFSETS), NEGATIVES), axis=1)
    labels = tf.constant(np.repeat(labels, batch_size, axis=0), tf.float32)

    def batch(step, centers):
        contexts = tf.gather(ids, centers[:, None] + OFFSETS)
        shape = (batch_size, NEGATIVES)
        drawn = tf.random.stateless_uniform(
            shape, (0, step), 0, len(urn), dtype=tf.int32
        )
        others = tf.concat([contexts, tf.gather(urn, drawn)], axis=1)
        return {"centers": tf.gather(ids, centers), "others": others}, labels

    dataset = tf.data.Dataset.from_tensor_slices(centers).enumerate()
    return dataset.map(batch, tf.data.AUTOTUNE).prefetch(8)


# 3. The test. a is to b as c to d: d's vector should be the nearest to b - a + c.
def analogy_accuracy(vectors, questions, use_a_and_b=True, block=512):
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    right = 0
    for start in range(0, len(questions), block):
        a, b, c, d = questions[start : start + block].T
        goal = vectors[c] + (vectors[b] - vectors[a] if use_a_and_b else 0)
        likeness = goal @ vectors.T
        for asked in (a, b, c):  # None of which is an answer.
            likeness[np.arange(len(asked)), asked] = -np.inf
        right += np.sum(likeness.argmax(1) == d)
    return right / len(questions)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--quick", action="store_true", help="200 steps")
    args = parser.parse_args()

    # 4. The strategy, before all else of TensorFlow.
    strategy = kp.ParallaxStrategy()
    keras.utils.set_random_seed(1)
    versions = (bible.KING_JAMES, bible.AMERICAN_STANDARD, bible.BASIC_ENGLISH)
    words = wikipedia.read_words()
    for version in versions:
        words += bible.read_words(version)
    vocabulary = build_vocabulary(words, least_count=5)
    ids = encode(words, vocabulary)
    ids = ids[ids != vocabulary[UNKNOWN]]
    counts = np.bincount(ids, minlength=len(vocabulary))
    dataset = skip_grams(ids, counts, args.batch_size)
    if args.quick:
        dataset = dataset.take(200)

    # 5. Training. Each word has a tiny share of the loss, and of its gradient: Adagrad,
    # which divides by the gradients so far, must not start from more than those.
    with strategy.scope():
        model = build_model(len(vocabulary), args.dim)
        model.compile(
            keras.optimizers.Adagrad(args.rate, initial_accumulator_value=1e-9),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
    epochs = 1 if args.quick else args.epochs
    history = model.fit(dataset, epochs=epochs, shuffle=False)

    # 6. The result. `get_weights` gathers whole tables, so every worker calls it.
    vectors = model.get_layer("words").get_weights()[0]
    if strategy.is_chief:
        questions = wikipedia.read_analogies(vocabulary)
        result = {
            "workers": strategy.num_workers,
            "servers": strategy.num_servers,
            "loss": history.history["loss"][-1],
            "questions": len(questions),
            "accuracy": analogy_accuracy(vectors, questions),
            "chance": 1 / len(vocabulary),
            "nearest_to_c_accuracy": analogy_accuracy(vectors, questions, False),
        }
        print("result:", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
