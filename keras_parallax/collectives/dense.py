"""The dense road: what all workers hold alike is reduced by Horovod."""

from collections.abc import Sequence

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.operations import operation_name, unfolded

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

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], what: str = "reduce"
    ) -> list[tf.Tensor]:
        """Sums each tensor over the workers; all of them in one fused operation."""
        tensors = list(tensors)
        if self._size == 1 or not tensors:
            return tensors
        import horovod.tensorflow as hvd

        return hvd.grouped_allreduce(
            [unfolded(tensor) for tensor in tensors],
            op=hvd.Sum,
            name=operation_name(what), ignore_name_scope=True
        )

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Joins the workers' tensors along the first axis, in order of rank."""
        if self._size == 1:
            return tensor
        import horovod.tensorflow as hvd

        gathered = hvd.allgather(
            unfolded(tensor), name=operation_name("gather"), ignore_name_scope=True
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
            tensor, 0, name=operation_name("broadcast"), ignore_name_scope=True
        )
