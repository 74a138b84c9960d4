"""One tensor, reduced over all workers, in the graph."""

import tensorflow as tf

from keras_parallax.collectives.operations import operation_name, unfolded


def reduced(tensor: tf.Tensor, what: str, largest: bool = False) -> tf.Tensor:
    """The sum of the workers' tensors, or their largest elements.

    TensorFlow drops it where a worker makes no use of it, and the others would wait.

    Args:
        tensor: `(n, ...)`.
        what: Names the operation.
        largest: Take the largest instead of the sum.
    """
    import horovod.tensorflow as hvd

    return hvd.allreduce(
        unfolded(tensor),
        op=hvd.Max if largest else hvd.Sum,
        name=operation_name(what),
        ignore_name_scope=True,
    )
