"""Before: the stars of films, trained with Horovod.

horovodrun -np 2 python examples/horovod_before.py
"""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from data import movielens
from keras import layers

BATCH_SIZE, EPOCHS = 500, 3

hvd.init()
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus := tf.config.list_physical_devices("GPU"):
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
keras.utils.set_random_seed(1)

train, test = movielens.random_split(movielens.read_ratings())
dataset = tf.data.Dataset.from_tensor_slices((train.users, train.items, train.stars))
dataset = dataset.shard(hvd.size(), hvd.rank()).shuffle(100_000, seed=0)
dataset = dataset.batch(BATCH_SIZE, drop_remainder=True)

users = keras.Input((), dtype="int32")
items = keras.Input((), dtype="int32")
user = layers.Embedding(movielens.USERS, 16)(users)
item = layers.Embedding(movielens.ITEMS, 16)(items)
x = layers.Concatenate()([user, item])
x = layers.Dense(32, activation="relu")(x)
model = keras.Model([users, items], layers.Dense(1, bias_initializer="ones")(x)[:, 0])
optimizer = keras.optimizers.Adam(0.002 * hvd.size())
optimizer.build(model.trainable_variables)


@tf.function
def train_step(users, items, stars):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((stars - model([users, items])) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    variables = [variable.value for variable in model.trainable_variables]
    gradients = tape.gradient(loss, variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss


hvd.broadcast_variables(
    [v.value for v in model.variables + optimizer.variables], root_rank=0
)
# All ranks must take as many steps as the one that has the fewest.
steps = len(train.stars) // hvd.size() // BATCH_SIZE
for _ in range(EPOCHS):
    for batch in dataset.take(steps):
        loss = train_step(*batch)

if hvd.rank() == 0:
    error = model.predict([test.users, test.items], verbose=0) - test.stars
    print("test error:", float((error**2).mean() ** 0.5))
