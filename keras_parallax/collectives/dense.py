"""The dense road: what all workers hold alike is reduced by Horovod."""

from collections.abc import Sequence
from functools import partial

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.buckets import PIECE_BYTES, in_buckets
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
        """Sums each tensor over the workers; those of one type in a fused operation."""
        tensors = list(tensors)
        if self._size == 1 or not tensors:
            return tensors
        return self._all_reduce(tensors, what)

    def _all_reduce(self, tensors: list[tf.Tensor], what: str) -> list[tf.Tensor]:
        import horovod.tensorflow as hvd

        self._meet("a sum over all workers, such as a metric at an epoch's end")
        sums: dict[int, tf.Tensor] = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            mine = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            reduced = hvd.grouped_allreduce(
                [unfolded(tensors[index]) for index in mine],
                op=hvd.Sum,
                name=operation_name(what),
                ignore_name_scope=True,
            )
            sums |= zip(mine, reduced, strict=True)
        return [sums[index] for index in range(len(tensors))]

    def reduce_gradients(
        self, tensors: Sequence[tf.Tensor], along: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        """As `all_reduce`, for gradients: timed, in the wire's form, and in buckets,
        each of which is sent as soon as its gradients are known.

        Args:
            tensors: Gradients, in the order of the variables.
            along: What is known before any of them, and to be summed as it is.

        Returns:
            The sums of the gradients, and then those of the others.
        """
        tensors, riders = list(tensors), list(along)
        if self._size == 1 or not tensors:
            return [*tensors, *self.all_reduce(riders, "along")]
        buckets = in_buckets(tensors, self._size, PIECE_BYTES)
        # What the workers tell each other of their last step rides along, too.
        note = self._spans.note(len(buckets))
        if note is not None:
            riders.append(note)
        sums: dict[int, tf.Tensor] = {}
        sums_along: list[tf.Tensor] = []
        for bucket in buckets:
            mine = [tensors[index] for index in bucket]
            reduced = self._spans.timed(
                ALLREDUCE, mine + riders, partial(self._reduce, mine, riders)
            )
            sums |= zip(bucket, reduced, strict=False)
            sums_along += reduced[len(bucket) :]
            riders = []
        if note is not None:
            self._spans.hear(sums_along.pop())
        return [*(sums[index] for index in range(len(tensors))), *sums_along]

    def _reduce(
        self, tensors: list[tf.Tensor], riders: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Sums the tensors of a bucket, and what rides along with it."""
        if self._wire.type_of(tensors[0].dtype) == tensors[0].dtype:
            return self._all_reduce([*tensors, *riders], "gradients")
        return [*self._halved(tensors), *self._all_reduce(riders, "along")]

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

        with tf.control_dependencies(self._meet("what all workers have")):
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

        self._meet("a variable that is made")
        return hvd.broadcast(
            tensor, 0, name=operation_name("broadcast"), ignore_name_scope=True
        )

    def _meet(self, what: str) -> list[tf.Operation]:
        """See `Job.meet`; in a graph, as an operation to come before the wait."""
        if tf.executing_eagerly():
            self._job.meet(what)
        elif self._job.call_roll is not None:
            return [tf.numpy_function(lambda: self._job.meet(what), [], [])]
        return []
