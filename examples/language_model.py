"""A word-level LSTM language model, its tables on parameter servers.

    python examples/language_model.py
    keras-parallax run -np 2 --servers 1 -- python examples/language_model.py

It reads the King James text and learns to predict each word from those before it.
But for the strategy and its scope this is plain Keras, in one process or in many.
"""

import argparse
import json
import math

import data
import keras
import tensorflow as tf
from keras import ops

import keras_parallax as kp

WINDOW = 20


# 1. The output layer has a row of weights for each word, as the embedding has. A
# training step need not touch them all: sampled softmax tells the right word from
# a few hundred drawn ones (each worker draws its own), so its gradient is sparse.
class SampledSoftmax(keras.layers.Layer):
    """Loss of predicting the next word: sampled in training, else exact.

    Takes `(batch, length, dim)` hidden states and `(batch, length)` ids, gives the
    `(batch, length)` cross-entropies, and adds their mean to the model's losses.
    """

    def __init__(self, vocabulary_size, drawn=512, block_rows=4096, **kwargs):
        super().__init__(**kwargs)
        self.words = vocabulary_size
        self.drawn = drawn
        self.block_rows = block_rows

    def build(self, hidden_shape, targets_shape):
        shape = (self.words, hidden_shape[-1])
        self.kernel = self.add_weight(name="kernel", shape=shape)
        self.bias = self.add_weight(name="bias", shape=shape[:1], initializer=zipf)

    def compute_output_shape(self, hidden_shape, targets_shape):
        return targets_shape

    def call(self, hidden, targets, training=False):
        cross_entropy = self.sampled if training else self.exact
        hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))
        losses = cross_entropy(hidden, ops.reshape(targets, (-1,)))
        self.add_loss(ops.mean(losses))
        return ops.reshape(losses, ops.shape(targets))

    def sampled(self, hidden, targets):
        return tf.nn.sampled_softmax_loss(
            self.kernel, self.bias, targets[:, None], hidden, self.drawn, self.words
        )

    def exact(self, hidden, targets):
        # A product with the whole kernel would pull the whole table to every worker
        # and hold a logit for each pair of a target and a word of the vocabulary.
        # Looking up blocks of rows bounds both, however large the vocabulary.
        sums = []
        for start in range(0, self.words, self.block_rows):
            stop = min(start + self.block_rows, self.words)
            kernel, bias = self.look_up(ops.arange(start, stop))
            logits = ops.matmul(hidden, ops.transpose(kernel)) + bias
            sums.append(ops.logsumexp(logits, axis=-1))
        kernel, bias = self.look_up(targets)
        target_logits = ops.sum(hidden * kernel, axis=-1) + bias
        return ops.logsumexp(ops.stack(sums), axis=0) - target_logits

    def look_up(self, ids):
        return ops.take(self.kernel, ids, axis=0), ops.take(self.bias, ids, axis=0)


# A rare word is hardly ever drawn, so that nothing tells it to be less likely than the
# others: it begins as rare as its rank says. The most frequent word has rank 1.
def zipf(shape, dtype=None):
    rank = ops.arange(1, shape[0] + 1, dtype=dtype)
    return ops.log(ops.log1p(1 / rank) / math.log(shape[0] + 1))


# 2. The model. The targets are an input too, since the last layer makes the loss.
def build_model(vocabulary_size, embedding, units):
    words = keras.Input((WINDOW,), dtype="int32", name="words")
    targets = keras.Input((WINDOW,), dtype="int32", name="targets")
    x = keras.layers.Embedding(vocabulary_size, embedding, name="embedding")(words)
    x = keras.layers.LSTM(units, return_sequences=True, unroll=True, name="lstm")(x)
    x = keras.layers.Dense(embedding, activation="tanh", name="projection")(x)
    losses = SampledSoftmax(vocabulary_size, name="softmax")(x, targets)
    return keras.Model({"words": words, "targets": targets}, losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--embedding", type=int, default=128)
    parser.add_argument("--units", type=int, default=256)
    parser.add_argument("--steps", type=int, help="use so many batches of the text")
    parser.add_argument("--logdir", help="a folder for TensorBoard")
    args = parser.parse_args()

    # 3. The strategy, before all else of TensorFlow, which joining servers resets.
    # Which weights are looked up by row the strategy finds out by itself.
    strategy = kp.ParallaxStrategy()
    keras.utils.set_random_seed(1)
    # 4. The data. A batch is that of all workers together; each gets its share.
    corpus = data.load_corpus(WINDOW, args.batch_size, args.steps)
    train = tf.data.Dataset.from_tensor_slices(corpus.train)
    train = train.shuffle(len(corpus.train["words"]), seed=0).batch(args.batch_size)
    test = tf.data.Dataset.from_tensor_slices(corpus.test).batch(args.batch_size)

    # 5. Training. Adagrad starts low: a rare word's share of a gradient is small.
    with strategy.scope():
        model = build_model(corpus.vocabulary_size, args.embedding, args.units)
        model.compile(keras.optimizers.Adagrad(0.05, initial_accumulator_value=1e-5))
    # The same callbacks on every worker: what one prints, worker 0 prints.
    summary = kp.callbacks.FitSummary()
    callbacks = [summary]
    if args.logdir:
        callbacks.append(kp.callbacks.ParallaxTensorBoard(args.logdir, update_freq=20))
    model.fit(train, epochs=args.epochs, callbacks=callbacks, shuffle=False)
    test_loss = model.evaluate(test)

    # 6. The result, beside a model's that only knows how often each word occurs.
    if strategy.is_chief:
        result = {
            "workers": strategy.num_workers,
            "servers": strategy.num_servers,
            "words_per_second": summary.window.all_tokens_per_second,
            "test_perplexity": math.exp(test_loss),
            "unigram_perplexity": data.unigram_perplexity(corpus),
            "plan": json.loads(strategy.plan.to_json()),
            "changes": strategy.plan.changes,
        }
        print("result:", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
