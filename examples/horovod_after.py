"""After: the same model with `fit`, its embeddings in tables.

horovodrun -np 2 python examples/horovod_after.py
keras-parallax run -np 2 -- python examples/horovod_after.py
"""

import keras
import tensorflow as tf
from data import movielens
from keras import layers

import keras_parallax as kp

BATCH_SIZE, EPOCHS = 1000, 3

strategy = kp.ParallaxStrategy()
keras.utils.set_random_seed(1)

train, test = movielens.random_split(movielens.read_ratings())
dataset = tf.data.Dataset.from_tensor_slices(((train.users, train.items), train.stars))
dataset = dataset.shuffle(100_000, seed=0).batch(BATCH_SIZE)

with strategy.scope():
    users = keras.Input((), dtype="int32")
    items = keras.Input((), dtype="int32")
    user = layers.Embedding(movielens.USERS, 16)(users)
    item = layers.Embedding(movielens.ITEMS, 16)(items)
    x = layers.Concatenate()([user, item])
    x = layers.Dense(32, activation="relu")(x)
    stars = layers.Dense(1, bias_initializer="ones")(x)[:, 0]
    model = keras.Model([users, items], stars)
    model.compile(keras.optimizers.Adam(0.004), "mse")

model.fit(dataset, epochs=EPOCHS, shuffle=False)

error = model.predict([test.users, test.items], verbose=0) - test.stars
if strategy.is_chief:
    print("test error:", float((error**2).mean() ** 0.5))
