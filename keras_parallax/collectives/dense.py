"""The dense road: what all workers hold alike is reduced by Horovod.

Horovod pairs an operation of one worker with those of the others by name. Names
are counted within each graph rather than taken from TensorFlow: a worker that
runs an update which others do not has other tensor names than they, and
operations whose names differ would wait for each other for ever.
"""

import collections
import weakref
from collections.abc import Sequence

import tensorflow as tf

from keras_parallax.cluster.job import Job

# What Horovod's broadcast takes; other types go as objects, outside the graph.
_BROADCAST = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


class DenseRoad:
    """All-reduce, all-gather and broadcast among the workers, in the graph.

    With one worker each is the identity, and Horovod is not needed.

    Args:
        job: This worker's place in the job.
    """

    def __init__(self, job: Job):
        self._job = job
        self._size = job.size
        self._in_graph: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._eager: collections.Counter = collections.Counter()

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], what: str = "reduce"
    ) -> list[tf.Tensor]:
        """Sums each tensor over the workers; all of them in one fused operation."""
        tensors = list(tensors)
        if self._size == 1 or not tensors:
            return tensors
        import horovod.tensorflow as hvd

        return hvd.grouped_allreduce(
            tensors, op=hvd.Sum, name=self._name(what), ignore_name_scope=True
        )

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Joins the workers' tensors along the first axis, in order of rank."""
        if self._size == 1:
            return tensor
        import horovod.tensorflow as hvd

        gathered = hvd.allgather(
            tensor, name=self._name("gather"), ignore_name_scope=True
        )
        return tf.ensure_shape(gathered, (None, *tensor.shape[1:]))

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Worker 0's tensor, on every worker."""
        if self._size == 1:
            return tensor
        if tensor.dtype not in _BROADCAST:
            return tf.constant(self._job.share(tensor.numpy()))
        import horovod.tensorflow as hvd

        return hvd.broadcast(
            tensor, 0, name=self._name("broadcast"), ignore_name_scope=True
        )

    def _name(self, what: str) -> str:
        if tf.executing_eagerly():
            counter = self._eager
        else:
            graph = tf.compat.v1.get_default_graph()
            counter = self._in_graph.setdefault(graph, collections.Counter())
        counter[what] += 1
        where = "eager" if tf.executing_eagerly() else "graph"
        return f"keras_parallax_{where}_{what}_{counter[what]}"
