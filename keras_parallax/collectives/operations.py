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
import contextlib
import itertools
import weakref
from collections.abc import Iterator

import tensorflow as tf

_in_graph: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_eager: collections.Counter = collections.Counter()
_zeros: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def operation_name(what: str) -> str:
    """A name for the next operation of kind `what` in the current graph."""
    if tf.executing_eagerly():
        counter, where = _eager, "eager"
    else:
        graph = tf.compat.v1.get_default_graph()
        counter, where = _in_graph.setdefault(graph, collections.Counter()), "graph"
    counter[what] += 1
    return f"keras_parallax_{where}_{what}_{counter[what]}"


@contextlib.contextmanager
def in_no_order() -> Iterator[None]:
    """Operations that are made within wait for their inputs, and for nothing else.

    TensorFlow has operations with effects but no resource (`Timestamp`, `PyFunc`,
    `Assert`, `VarHandleOp`) wait for each other in the order in which they are made.
    Some of ours are made after others that need what they give: they would wait for
    each other for ever. And a push would begin when the all-reduce beside it has ended.
    """
    graph = tf.compat.v1.get_default_graph()
    order = getattr(graph, "experimental_acd_manager", None)
    if order is None:
        yield
        return
    before = len(graph.get_operations())
    yield
    for operation in graph.get_operations()[before:]:
        resources = any(tensor.dtype == tf.resource for tensor in operation.inputs)
        if operation._is_stateful and not resources:
            order.run_independently(operation)


def unfolded(tensor: tf.Tensor) -> tf.Tensor:
    """`tensor`, the value of which TensorFlow cannot know before the step is run.

    What follows from constants it evaluates while it prepares the step, through a
    `PlaceholderWithDefault`, too; what follows from a variable it leaves alone. Here
    a variable, which is 0, says where the tensor begins; nothing is copied.
    """
    if tf.executing_eagerly():
        return tensor
    handle = _nothing(tf.compat.v1.get_default_graph())
    nothing = tf.ensure_shape(
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64), ()
    )
    if not tensor.shape.rank:
        # A scalar, or what may be one, has no beginning.
        return tensor + tf.cast(nothing, tensor.dtype)
    return tf.ensure_shape(tensor[nothing:], tensor.shape)


def _nothing(graph: tf.Graph) -> tf.Tensor:
    """The handle of a variable that is 0; it lives as long as the graph."""
    if graph not in _zeros:
        # Not a `tf.Variable`: in a strategy's scope that is the strategy's business.
        with tf.init_scope():
            _zeros[graph] = tf.raw_ops.VarHandleOp(
                dtype=tf.int64,
                shape=(),
                shared_name=f"keras_parallax/nothing/{next(_numbers)}",
            )
            tf.raw_ops.AssignVariableOp(
                resource=_zeros[graph], value=tf.constant(0, tf.int64)
            )
    return _zeros[graph]


def as_bits(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in a type that Horovod knows; it does not know bfloat16, and to it
    bits are bits."""
    return tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor


def from_bits(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What `as_bits` was given, in its type."""
    return bits if bits.dtype == dtype else tf.bitcast(bits, dtype)
