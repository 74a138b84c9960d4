"""Weights that make unequal shares of a batch add up to its mean.

Keras averages the loss over a worker's share and divides by the number of workers;
the sum of the workers' gradients is then the mean over the batch, if all shares
are of one size. The last batch of an epoch seldom divides evenly. There, worker `r`
with `n_r` of `n` examples weighs its gradients by `n_r·N/n`, and a worker
without examples, whose mean is 0/0, contributes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, values

from keras_parallax.collectives.dense import DenseRoad
from keras_parallax.collectives.later import LaterSums


class ShareWeights:
    """The weight of this worker's share in the step that is being traced.

    Args:
        dense: The dense road.
        size: Number of workers.
        together: Whether the workers take their steps together; else no step may
            wait for another worker's.
    """

    def __init__(self, dense: DenseRoad, size: int, together: bool = True):
        self._dense = dense
        self._size = size
        self._together = together
        self._later = LaterSums(lambda tensors: dense.all_reduce(tensors, "mean"))
        self._model: keras.Model | None = None
        self._weight: tf.Tensor | None = None
        self._empty: tf.Tensor | None = None

    @contextlib.contextmanager
    def of_step(self, model: keras.Model | None, args: tuple) -> Iterator[None]:
        """Finds this step's weight; without a Keras model there is none.

        A custom loop follows the contract of `tf.distribute`: it scales its loss
        by the global batch size itself.
        """
        before = self._model, self._weight, self._empty
        count = None
        weighs = self._together and self._size > 1
        if weighs and model is not None and averages(model):
            count = _unknown_length(args)
        self._model, self._weight, self._empty = model, None, None
        if count is not None:
            (total,) = self._dense.all_reduce([count], "examples")
            share = tf.cast(count * self._size, tf.float64) / tf.cast(total, tf.float64)
            self._weight = tf.cast(share, tf.float32)
            self._empty = count == 0
        try:
            with self._later.step():
                yield
        finally:
            self._model, self._weight, self._empty = before

    def apply(self, tensors: Sequence[tf.Tensor | tf.IndexedSlices]) -> list:
        """Weighs the gradients of the model; leaves other sums as they are."""
        if self._weight is None or not self.are_gradients(tensors):
            return list(tensors)
        return [self._weigh(tensor) for tensor in tensors]

    def reduce_gradients(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums the gradients over the workers, and means along with them."""
        along = self._later.take(tensors)
        sums = self._dense.reduce_gradients(tensors, along.tensors)
        along.feed(sums[len(tensors) :])
        return sums[: len(tensors)]

    def mean(self, value: tf.Tensor) -> tf.Tensor:
        """Mean of `value` over all examples, where each worker has its mean.

        Within a step, it is known when the gradients are reduced, or the step ends.
        """
        if not self._together:
            return value
        weighed = value if self._weight is None else self._weigh(value)
        total = self._later.add(weighed)
        return total / tf.cast(self._size, total.dtype)

    def keep_if_empty(self, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """`old` on a worker without examples, else `new`."""
        return new if self._empty is None else tf.where(self._empty, old, new)

    def _weigh(self, tensor):
        if isinstance(tensor, tf.IndexedSlices):
            return tf.IndexedSlices(
                self._weigh(tensor.values), tensor.indices, tensor.dense_shape
            )
        # Zero where the weight is, though the value be NaN: an empty share's is.
        return tf.math.multiply_no_nan(tensor, tf.cast(self._weight, tensor.dtype))

    def are_gradients(self, tensors: Sequence) -> bool:
        """Whether these are the gradients of the model's variables, in order.

        What layers sum for themselves, such as synchronized batch statistics, comes
        by the same call and must not be weighed.
        """
        if self._model is None:
            return False
        # Of a gradient TensorFlow may not know each dimension before the step is run.
        shapes = iter([v.shape for v in self._model.trainable_variables])
        return all(
            any(tensor.shape.is_compatible_with(shape) for shape in shapes)
            for tensor in tensors
        )


class MetricVariable(values.SyncOnReadVariable):
    """Counts this worker's share; read across replicas, it is the sum of all.

    Args:
        strategy: The strategy.
        variable: What holds this worker's count.
        aggregation: How the workers' counts become one.
        shares: Tells whether this worker has any examples in a step.
    """

    def __init__(self, strategy, variable, aggregation, shares: ShareWeights):
        super().__init__(strategy, [variable], aggregation)
        self._shares = shares

    def assign(self, value, use_locking=False, name=None, read_value=True):
        """Overwrites the count; a worker without examples keeps its own."""
        if not tf.distribute.in_cross_replica_context():
            value = self._shares.keep_if_empty(self._get_replica(0).value(), value)
        return super().assign(value, use_locking, name, read_value)


class MeanVariable(values.MirroredVariable):
    """A moving statistic: what the workers assign in a step is averaged.

    An optimizer's slots come as such variables, too. What it makes of them where it
    updates a variable is the same on all workers, whose gradients are summed before.

    Args:
        strategy: The strategy.
        variable: What holds the value, alike on every worker.
        shares: Knows how to average over examples.
    """

    def __init__(self, strategy, variable, shares: ShareWeights):
        super().__init__(strategy, [variable], tf.VariableAggregation.MEAN)
        self._shares = shares

    def assign(self, value, use_locking=False, name=None, read_value=True):
        """Overwrites the value with the mean of what the workers assign."""
        local = self._get_replica(0)
        return local.assign(self._mean(value), use_locking, name, read_value)

    def assign_add(self, value, use_locking=False, name=None, read_value=True):
        """Adds the mean of what the workers add."""
        local = self._get_replica(0)
        return local.assign_add(self._mean(value), use_locking, name, read_value)

    def assign_sub(self, value, use_locking=False, name=None, read_value=True):
        """Subtracts the mean of what the workers subtract."""
        local = self._get_replica(0)
        return local.assign_sub(self._mean(value), use_locking, name, read_value)

    def _mean(self, value):
        updates = distribute_lib.get_update_replica_id() is not None
        if updates or tf.distribute.in_cross_replica_context():
            return value
        return self._shares.mean(tf.convert_to_tensor(value, self.dtype))


def averages(model: keras.Model) -> bool:
    """Whether the loss of `model` is a mean over examples."""
    losses = tf.nest.flatten(getattr(model, "loss", None))
    return not any(getattr(loss, "reduction", None) == "sum" for loss in losses)


def _unknown_length(args: tuple) -> tf.Tensor | None:
    """Number of examples in a step's data, unless it is fixed."""
    for leaf in tf.nest.flatten(args):
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.int64)
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0:
            known = leaf.shape.rank is not None and leaf.shape[0] is not None
            # Without a graph, each worker knows its own, and may not fix it for all.
            fixed = known and not tf.executing_eagerly()
            return None if fixed else tf.shape(leaf, tf.int64)[0]
    return None
