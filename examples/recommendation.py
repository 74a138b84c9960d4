"""Neural collaborative filtering on MovieLens 100k: which film does a user rate next?

    python examples/recommendation.py
    keras-parallax run -np 2 -- python examples/recommendation.py

Each user's last rating is held out. The model ranks that film among 99 that the user
has not rated; HR@10 is the share of users for whom it is among the first ten. After
He et al., "Neural Collaborative Filtering", WWW 2017.
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from data import movielens
from keras import layers, ops

import keras_parallax as kp

NEGATIVES = 4


# 1. The model: a score for each of some items. A product of factors says how well user
# and item match, a small network on other factors what a product cannot, and a bias
# how popular the item is. Users and items are tables; a step touches few of their rows.
def build_model(dim):
    users = keras.Input((), dtype="int32", name="users")
    items = keras.Input((None,), dtype="int32", name="items")
    user = layers.Embedding(movielens.USERS, 2 * dim, name="user")(users)[:, None]
    item = layers.Embedding(movielens.ITEMS, 2 * dim, name="item")(items)
    bias = layers.Embedding(movielens.ITEMS, 1, "zeros", name="bias")(items)
    match = ops.sum(user[..., :dim] * item[..., :dim], axis=-1)
    # The first layer on both side by side, of which the user's part is computed once.
    x = layers.Dense(dim, name="of_user")(user[..., dim:])
    x = layers.Dense(dim, name="of_item", use_bias=False)(item[..., dim:]) + x
    x = layers.Dense(1, name="score")(ops.relu(x))
    scores = match + (x + bias)[..., 0]
    return keras.Model({"users": users, "items": items}, scores)


# 2. The data: each rating with some items drawn at random. Numbers drawn are the
# same on all workers, since each worker keeps its share of one and the same batch.
def draw_negatives(step, batch):
    users, items = batch
    shape = (tf.shape(users)[0], NEGATIVES)
    drawn = tf.random.stateless_uniform(
        shape, (step, 0), 0, movielens.ITEMS, dtype=tf.int32
    )
    # The first one is the item rated: a classification, whose answer is always 0.
    items = tf.concat([items[:, None], drawn], axis=1)
    return {"users": users, "items": items}, tf.zeros_like(users)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--quick", action="store_true", help="a third of the epochs")
    args = parser.parse_args()

    # 3. The strategy, before all else of TensorFlow.
    strategy = kp.ParallaxStrategy()
    keras.utils.set_random_seed(1)
    ratings = movielens.read_ratings()
    train, test = movielens.leave_one_out(ratings)
    dataset = tf.data.Dataset.from_tensor_slices((train.users, train.items))
    dataset = dataset.shuffle(len(train.users), seed=0).batch(args.batch_size)
    dataset = dataset.enumerate().map(draw_negatives).prefetch(4)

    # 4. Training.
    with strategy.scope():
        model = build_model(args.dim)
        model.compile(
            keras.optimizers.Adam(args.rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    epochs = args.epochs // 3 if args.quick else args.epochs
    model.fit(dataset, epochs=epochs, shuffle=False)

    # 5. Testing. Every worker is given the scores of all users.
    items = movielens.candidates(ratings, test)
    scores = model.predict({"users": test.users, "items": items}, 128, verbose=0)

    # 6. The result, beside that of recommending what was rated most often.
    if strategy.is_chief:
        counts = np.bincount(train.items, minlength=movielens.ITEMS)
        result = {
            "workers": strategy.num_workers,
            "servers": strategy.num_servers,
            "hit_rate_at_10": movielens.hit_rate(scores, 10),
            "popularity_hit_rate_at_10": movielens.hit_rate(counts[items], 10),
        }
        print("result:", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
