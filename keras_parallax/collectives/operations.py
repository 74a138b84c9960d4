"""What Horovod's operations need when they stand in a graph.

Horovod pairs an operation of one worker with those of the others by name. Names
are counted within each graph rather than taken from TensorFlow: a worker that
runs an update which others do not has other tensor names than they, and
operations whose names differ would wait for each other for ever.

TensorFlow does not know that the operations talk to other processes: one whose
inputs are constants it runs while the graph is being built, to learn its shape or
to save running it later. There, nobody answers.
"""

import collections
import weakref

import tensorflow as tf

_in_graph: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_eager: collections.Counter = collections.Counter()


def operation_name(what: str) -> str:
    """A name for the next operation of kind `what` in the current graph."""
    if tf.executing_eagerly():
        counter, where = _eager, "eager"
    else:
        graph = tf.compat.v1.get_default_graph()
        counter, where = _in_graph.setdefault(graph, collections.Counter()), "graph"
    counter[what] += 1
    return f"keras_parallax_{where}_{what}_{counter[what]}"


def unfolded(tensor: tf.Tensor) -> tf.Tensor:
    """`tensor`, of which TensorFlow does not see that it is a constant."""
    if tf.executing_eagerly():
        return tensor
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=tensor.shape)
