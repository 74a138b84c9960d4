"""Global batches to the workers' shares of them.

As everywhere in `tf.distribute`, a dataset's batch is the global batch. Every worker
reads the same dataset and keeps its share of each batch: rows `n·r/N` to
`n·(r+1)/N` of a batch of `n` on worker `r` of `N`. So every example is used
once, whatever the batch size, the last batch of an epoch included.
"""

import tensorflow as tf

OFF = tf.data.experimental.AutoShardPolicy.OFF


def share_of(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    """A worker's share of each batch of `dataset`.

    A dataset whose options set `experimental_distribute.auto_shard_policy` to `OFF`
    is taken to be sharded by its user already, and is returned as it is.

    Args:
        dataset: Global batches, the same on every worker.
        rank: Rank of this worker.
        size: Number of workers.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if size == 1 or policy == OFF:
        return dataset
    is_tuple = isinstance(dataset.element_spec, tuple)

    def share(*batch):
        shared = _share(batch, rank, size)
        return shared if is_tuple else shared[0]

    return dataset.map(share).prefetch(tf.data.AUTOTUNE)


def _share(batch: tuple, rank: int, size: int) -> tuple:
    first = next(leaf for leaf in tf.nest.flatten(batch) if _rank_of(leaf) != 0)
    count = _length(first)
    start = count * rank // size
    stop = count * (rank + 1) // size
    fixed = first.shape[0]
    even = fixed is not None and fixed % size == 0

    def cut(leaf):
        if _rank_of(leaf) == 0:
            return leaf
        if isinstance(leaf, tf.SparseTensor):
            shape = tf.cast(leaf.dense_shape, tf.int64)
            begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(shape[1:])], 0)
            extent = tf.concat([[tf.cast(stop - start, tf.int64)], shape[1:]], 0)
            return tf.sparse.slice(leaf, begin, extent)
        piece = leaf[start:stop]
        if isinstance(piece, tf.Tensor) and not even:
            # A length that is fixed means, further on, that all workers have it.
            piece = tf.raw_ops.PlaceholderWithDefault(
                input=piece, shape=(None, *leaf.shape[1:])
            )
        return piece

    return tf.nest.map_structure(cut, batch)


def _rank_of(leaf) -> int | None:
    return leaf.shape.rank


def _length(leaf) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int64)
    return tf.shape(leaf, tf.int64)[0]
