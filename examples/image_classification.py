"""A small convolutional network on handwritten digits: dense variables only.

    python examples/image_classification.py
    keras-parallax run -np 2 -- python examples/image_classification.py

Nothing in it is looked up by id, so nothing becomes a table: every gradient is summed
by all-reduce. A model without embeddings loses nothing under the strategy.
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from data import digits
from keras import layers

import keras_parallax as kp


# 1. The model, as anywhere.
def build_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2"),
            layers.Flatten(),
            layers.Dense(64, activation="relu", name="hidden"),
            layers.Dense(10, activation="softmax", name="digit"),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="a quarter of the epochs")
    args = parser.parse_args()

    # 2. The strategy, before all else of TensorFlow. The seed is the same on all
    # workers, and so is the order of the data.
    strategy = kp.ParallaxStrategy()
    keras.utils.set_random_seed(1)

    # 3. The data. A batch is that of all workers together; each gets its share.
    train, test = digits.load_digits()
    dataset = tf.data.Dataset.from_tensor_slices(tuple(train))
    dataset = dataset.shuffle(len(train.labels), seed=0).batch(args.batch_size)

    # 4. Training and testing.
    with strategy.scope():
        model = build_model()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    epochs = args.epochs // 4 if args.quick else args.epochs
    model.fit(dataset, epochs=epochs, shuffle=False)
    _, accuracy = model.evaluate(*test, verbose=0)

    # 5. The result, beside that of always answering the most frequent digit.
    if strategy.is_chief:
        result = {
            "workers": strategy.num_workers,
            "servers": strategy.num_servers,
            "test_accuracy": accuracy,
            "most_frequent_accuracy": np.bincount(test.labels).max() / len(test.labels),
            "roads": sorted({entry.road for entry in strategy.plan}),
        }
        print("result:", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
