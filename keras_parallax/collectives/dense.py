"""The dense road: what all workers hold alike is reduced by Horovod."""

from collections.abc import Sequence

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.operations import operation_name, unfolded
from keras_parallax.collectives.spans import ALLREDUCE, Spans
from keras_parallax.collectives.wire import Wire

# What Horovod's broadcast takes; other types go as objects, outside the graph.
_BROADCAST = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


class DenseRoad:
    """All-reduce, all-gather and broadcast among the workers, in the graph.

    With one worker each is the identity, and Horovod is not needed.

    Args:
        job: This worker's place in the job.
        wire: The form in which gradients travel.
        spans: Times the all-reduce of gradients where that is asked for.
    """

    def __init__(self, job: Job, wire: Wire | None = None, spans: Spans | None = None):
        self._job = job
        self._wire = wire or Wire()
        self._spans = spans or Spans(job)
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
            name=operation_name(what),
            ignore_name_scope=True,
        )

    def reduce_gradients(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """As `all_reduce`, for gradients: timed, and in the wire's form."""
        tensors = list(tensors)
        if self._size == 1 or not tensors:
            return tensors
        return self._spans.timed(ALLREDUCE, tensors, lambda: self._reduce(tensors))

    def _reduce(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        # What the workers tell each other of their last step rides along.
        note = self._spans.note()
        notes = [] if note is None else [note]
        if any(self._wire.type_of(t.dtype) == t.dtype for t in tensors):
            reduced = self.all_reduce([*tensors, *notes])
            notes, reduced = reduced[len(tensors) :], reduced[: len(tensors)]
        else:
            notes, reduced = self.all_reduce(notes, "notes"), self._halved(tensors)
        for told in notes:
            self._spans.hear(told)
        return reduced

    def _halved(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sums by two exchanges: each worker gets one piece of the vector from all,
        adds it up in full precision, and gives the sum to all."""
        import horovod.tensorflow as hvd

        sizes = [tf.size(tensor) for tensor in tensors]
        vector = tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
        length = tf.size(vector)
        piece = -(-length // self._size)
        padded = tf.pad(vector, [[0, piece * self._size - length]])
        mine = hvd.alltoall(
            unfolded(self._wire.encode(padded)),
            name=operation_name("scatter"),
            ignore_name_scope=True,
        )
        pieces = tf.reshape(self._wire.decode(mine, vector.dtype), (self._size, -1))
        total = self.all_gather(self._wire.encode(tf.reduce_sum(pieces, 0)))
        whole = self._wire.decode(total, vector.dtype)[:length]
        return [
            tf.reshape(part, tf.shape(tensor))
            for part, tensor in zip(
                tf.split(whole, tf.stack(sizes), num=len(sizes)), tensors, strict=True
            )
        ]

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
