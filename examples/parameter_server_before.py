"""Before: the stars of films, with ParameterServerStrategy and Keras 2 (tf-keras).

Run it once for each task of TF_CONFIG: a chief, some workers, some servers.
"""

import tensorflow as tf
import tf_keras as keras
from data import movielens
from tf_keras import layers

BATCH_SIZE, EPOCHS = 500, 3

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, "grpc"
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(
    resolver,
    variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=16 << 10, max_shards=2
    ),
)
train, test = movielens.random_split(movielens.read_ratings())


def dataset_fn(context):
    slices = ((train.users, train.items), train.stars)
    dataset = tf.data.Dataset.from_tensor_slices(slices)
    dataset = dataset.shuffle(100_000, seed=context.input_pipeline_id).repeat()
    return dataset.batch(BATCH_SIZE)


with strategy.scope():
    users = keras.Input((), dtype="int32")
    items = keras.Input((), dtype="int32")
    user = layers.Embedding(movielens.USERS, 16)(users)
    item = layers.Embedding(movielens.ITEMS, 16)(items)
    x = layers.Concatenate()([user, item])
    x = layers.Dense(32, activation="relu")(x)
    stars = layers.Dense(1, bias_initializer="ones")(x)[:, 0]
    model = keras.Model([users, items], stars)
    model.compile(keras.optimizers.legacy.Adam(0.002), "mse")

model.fit(
    keras.utils.experimental.DatasetCreator(dataset_fn),
    epochs=EPOCHS,
    steps_per_epoch=len(train.stars) // BATCH_SIZE,
)

error = model([test.users, test.items]).numpy() - test.stars
print("test error:", float((error**2).mean() ** 0.5))
