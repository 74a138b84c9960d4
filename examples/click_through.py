"""Deep learning recommendation model (DLRM) on ad impressions: who clicks?

    python examples/click_through.py
    keras-parallax run -np 2 -- python examples/click_through.py

Of 60,000 impressions 287 were clicked on, so that a test of a third of them has but
a hundred clicks. Each third is therefore left out in turn and predicted by a model that
was trained on the others; the result is the mean of the three areas under the curve.
After Naumov et al., "Deep Learning Recommendation Model for Personalization and
Recommendation Systems", 2019.
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from data import impressions
from keras import layers, ops

import keras_parallax as kp

FOLDS = 3


# 1. The model: a vector for each field of an impression, and one for what the user
# clicked on before, the sum over those items. The products of all pairs of vectors go
# on to a small network; a bias for each value says how often it is clicked on.
def build_model(rows, num_fields, dim, click_rate):
    fields = keras.Input((num_fields,), dtype="int32", name="fields")
    history = keras.Input((impressions.HISTORY,), dtype="int32", name="history")
    table = layers.Embedding(rows, dim, name="table")
    bias = layers.Embedding(rows, 1, "zeros", name="bias")
    clicked = ops.cast(history > 0, "float32")[..., None]
    before = ops.sum(table(history) * clicked, axis=1, keepdims=True)
    vectors = layers.Concatenate(axis=1)([table(fields), before])
    products = ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1)))
    first, second = np.triu_indices(num_fields + 1, k=1)
    pairs = ops.take(
        ops.reshape(products, (-1, (num_fields + 1) ** 2)),
        first * (num_fields + 1) + second,
        axis=1,
    )
    x = layers.Concatenate()([pairs, before[:, 0], clicked[:, 0]])
    x = layers.Dense(16, activation="relu", name="hidden")(x)
    # Clicks are rare: the model starts from how rare they are.
    start = keras.initializers.Constant(np.log(click_rate / (1 - click_rate)))
    x = layers.Dense(1, bias_initializer=start, name="logit")(x)
    logit = x + ops.sum(bias(fields), axis=1)
    return keras.Model({"fields": fields, "history": history}, logit)


# 2. One fold: a model, trained on some impressions, that scores others.
def train_and_score(strategy, train, test, rows, args):
    keras.utils.set_random_seed(1)
    inputs = {"fields": train.fields, "history": train.history}
    dataset = tf.data.Dataset.from_tensor_slices((inputs, train.clicks))
    dataset = dataset.shuffle(len(train.clicks), seed=0).batch(args.batch_size)
    with strategy.scope():
        model = build_model(rows, train.fields.shape[1], args.dim, train.clicks.mean())
        model.compile(
            keras.optimizers.Adam(args.rate),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
    model.fit(dataset, epochs=args.epochs, shuffle=False)
    inputs = {"fields": test.fields, "history": test.history}
    return model.predict(inputs, 4096, verbose=0)[:, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--quick", action="store_true", help="one fold")
    args = parser.parse_args()

    # 3. The strategy, before all else of TensorFlow.
    strategy = kp.ParallaxStrategy()
    ads, rows = impressions.load_impressions()
    areas, areas_of_rates = [], []
    for fold in range(1 if args.quick else FOLDS):
        held_out = np.arange(len(ads.clicks)) % FOLDS == fold
        train, test = ads.where(~held_out), ads.where(held_out)
        scores = train_and_score(strategy, train, test, rows, args)
        areas.append(impressions.area_under_curve(scores, test.clicks))
        rates = impressions.click_rates(train, test)
        areas_of_rates.append(impressions.area_under_curve(rates, test.clicks))

    # 4. The result, beside that of knowing how often each item is clicked on. Scores
    # without any meaning have an area of 0.5.
    if strategy.is_chief:
        result = {
            "workers": strategy.num_workers,
            "servers": strategy.num_servers,
            "area_under_curve": np.mean(areas),
            "click_rates_area_under_curve": np.mean(areas_of_rates),
        }
        print("result:", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
