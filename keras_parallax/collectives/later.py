"""Sums over the workers that can wait until something else is sent.

A moving statistic is known in the forward pass, and its mean over the workers is not
wanted before the next step. Summed where it is met, each would cost a message around
all workers, while the forward pass waits behind it. Here each gets a placeholder at
once; the sums are asked for together, and the placeholders are fed from the answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps import op_is_stateful

_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})


class LaterSums:
    """Collects what the step that is being traced wants to have summed some time.

    Args:
        all_reduce: Sums tensors of one type over the workers.
    """

    def __init__(self, all_reduce: Callable[[list[tf.Tensor]], list[tf.Tensor]]):
        self._all_reduce = all_reduce
        self._graph: tf.Graph | None = None
        self._first_operation = 0
        self._placeholders: list[tf.Tensor] = []

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Within the block, sums are collected; at its end, all have been made."""
        before = self._graph, self._first_operation, self._placeholders
        self._graph, self._placeholders = None, []
        if not tf.executing_eagerly():
            self._graph = tf.compat.v1.get_default_graph()
            self._first_operation = len(self._graph.get_operations())
        try:
            yield
            self.finish()
        finally:
            self._graph, self._first_operation, self._placeholders = before

    def add(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum of `tensor` over the workers; perhaps it comes later."""
        if not self._collects():
            return self._all_reduce([tensor])[0]
        placeholder = tf.identity(tensor, name="sum_to_come")
        self._placeholders.append(placeholder)
        return placeholder

    def take(self, beside: Sequence[tf.Tensor]) -> Along:
        """What may be summed along with other tensors.

        Args:
            beside: Those others. Where one of them follows from a sum that is still
                to come, the sums are made at once.
        """
        if not self._collects() or not self._placeholders:
            return Along([])
        following = self._following(self._placeholders)
        free = all(
            p.op.inputs[0].op not in following for p in self._placeholders
        ) and all(tensor.op not in following for tensor in beside)
        if not free:
            self.finish()
            return Along([])
        taken, self._placeholders = self._placeholders, []
        return Along(taken)

    def finish(self) -> None:
        """Makes the sums that are still to come."""
        while self._placeholders:
            following = self._following(self._placeholders)
            ready = [
                p for p in self._placeholders if p.op.inputs[0].op not in following
            ]
            dtype = ready[0].dtype
            ready = [placeholder for placeholder in ready if placeholder.dtype == dtype]
            self._placeholders = [
                p for p in self._placeholders if all(p is not r for r in ready)
            ]
            along = Along(ready)
            along.feed(self._all_reduce(along.tensors))

    def _collects(self) -> bool:
        # What a loop or a branch assigns belongs to a graph of its own.
        return (
            self._graph is not None
            and not tf.executing_eagerly()
            and tf.compat.v1.get_default_graph() is self._graph
        )

    def _following(self, placeholders: Sequence[tf.Tensor]) -> set[tf.Operation]:
        """Operations that cannot run before the placeholders are fed.

        TensorFlow makes what uses a variable wait for what wrote to it before, and
        operations with other effects for each other, though the graph shows so only
        once the function has been traced.
        """
        if self._graph is None:
            return set()
        following = {placeholder.op for placeholder in placeholders}
        operations = self._graph.get_operations()[self._first_operation :]
        count = 0
        # A lookup's placeholder was fed by an operation that was made after it.
        while count < len(following):
            count = len(following)
            _spread(operations, following)
        return following


class Along:
    """Sums that are made along with others.

    Attributes:
        tensors: What to sum.
    """

    def __init__(self, placeholders: list[tf.Tensor]):
        self._placeholders = placeholders
        self.tensors = [placeholder.op.inputs[0] for placeholder in placeholders]

    def feed(self, sums: Sequence[tf.Tensor]) -> None:
        """Takes the sums of `tensors`."""
        for placeholder, total in zip(self._placeholders, sums, strict=True):
            placeholder.op._update_input(0, total)


def _spread(operations: Sequence[tf.Operation], following: set[tf.Operation]) -> None:
    """Adds to `following` what is to run after any of it."""
    written: set[int] = set()
    read: set[int] = set()
    acted = False
    for operation in operations:
        handles = [id(x) for x in operation.inputs if x.dtype == tf.resource]
        reads = operation.type in _READS
        acts = not handles and op_is_stateful(operation)
        if (
            operation in following
            or any(x.op in following for x in operation.inputs)
            or any(x in following for x in operation.control_inputs)
            or any(x in written for x in handles)
            or (not reads and any(x in read for x in handles))
            or (acts and acted)
        ):
            following.add(operation)
            (read if reads else written).update(handles)
            acted = acted or acts
