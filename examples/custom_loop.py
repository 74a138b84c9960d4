"""A training loop of one's own: factors of films and users that explain the stars.

    python examples/custom_loop.py
    keras-parallax run -np 2 -- python examples/custom_loop.py

Matrix factorisation of MovieLens 100k, without `compile` and `fit`: a gradient tape, an
optimizer and `strategy.run`, as everywhere in `tf.distribute`. After Koren, Bell and
Volinsky, "Matrix Factorization Techniques for Recommender Systems", 2009.
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from data import movielens
from keras import layers, ops

import keras_parallax as kp


# 1. The model: stars = mean + bias of the user + bias of the film + their match.
def build_model(dim, mean):
    users = keras.Input((), dtype="int32", name="users")
    items = keras.Input((), dtype="int32", name="items")
    user = layers.Embedding(movielens.USERS, dim, name="user")(users)
    item = layers.Embedding(movielens.ITEMS, dim, name="item")(items)
    biases = [
        layers.Embedding(movielens.USERS, 1, "zeros", name="user_bias")(users),
        layers.Embedding(movielens.ITEMS, 1, "zeros", name="item_bias")(items),
    ]
    stars = mean + ops.sum(user * item, axis=-1) + sum(biases)[:, 0]
    # Large factors fit the examples and nothing else: the loss pulls them to zero.
    size = ops.sum(user**2 + item**2, axis=-1)
    return keras.Model([users, items], [stars, size])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.004)
    parser.add_argument("--decay", type=float, default=0.1, help="pull to zero")
    parser.add_argument("--quick", action="store_true", help="a third of the epochs")
    args = parser.parse_args()

    # 2. The strategy, before all else of TensorFlow; model and optimizer in its scope.
    strategy = kp.ParallaxStrategy()
    keras.utils.set_random_seed(1)
    train, test = movielens.random_split(movielens.read_ratings())
    with strategy.scope():
        model = build_model(args.dim, float(train.stars.mean()))
        optimizer = keras.optimizers.Adam(args.rate)
        optimizer.build(model.trainable_variables)

    # 3. The data: global batches, of which each worker is given its share.
    dataset = tf.data.Dataset.from_tensor_slices(
        (train.users, train.items, train.stars)
    )
    dataset = dataset.shuffle(len(train.users), seed=0).batch(args.batch_size)
    dataset = strategy.experimental_distribute_dataset(dataset)

    # 4. A step on this worker's share. `apply_gradients` sums the gradients over the
    # workers, so the loss is divided by the size of the *global* batch. In the last
    # batch of an epoch there may be fewer examples: they then count a little less.
    def step(users, items, stars):
        with tf.GradientTape() as tape:
            predicted, size = model([users, items], training=True)
            losses = (stars - predicted) ** 2 + args.decay * size
            loss = tf.reduce_sum(losses) / args.batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def train_step(users, items, stars):
        losses = strategy.run(step, (users, items, stars))
        return strategy.reduce("SUM", losses, axis=None)

    for epoch in range(args.epochs // 3 if args.quick else args.epochs):
        losses = [train_step(*batch) for batch in dataset]
        if strategy.is_chief:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")

    # 5. Testing, and the result beside that of biases alone.
    predicted, _ = strategy.run(model, ([test.users, test.items],))
    biases = movielens.predict_biases(train, test)
    if strategy.is_chief:
        result = {
            "workers": strategy.num_workers,
            "servers": strategy.num_servers,
            "test_error": rmse(predicted.numpy(), test.stars),
            "biases_test_error": rmse(biases, test.stars),
        }
        print("result:", json.dumps(result), flush=True)


def rmse(predicted, stars):
    return float(np.sqrt(np.mean((predicted - stars) ** 2)))


if __name__ == "__main__":
    main()
