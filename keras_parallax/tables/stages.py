"""Which rows a step needs at once, and which only after it has computed for a while.

The first layer of a language model needs the rows of its words; the softmax needs rows
when the layers between the two have computed. What is needed later is pulled while
they compute; and its gradients, which are there sooner, are pushed while they compute
backwards. (In Kim et al., EuroSys 2019, TensorFlow's executor overlaps the two by
itself, since every lookup is a message of its own; here what is needed together
travels together.)
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

# What computing counts for: a product of matrices, or a filter, is one; a loop and a
# recurrent layer are many. All else is done while a message is under way.
_PRODUCTS = ("MatMul", "Einsum", "Conv")
_MANY_PRODUCTS = ("While", "CudnnRNN")
_PRODUCTS_IN_MANY = 8
# A message more costs a few milliseconds, or less: so much computing is worth it.
_LEAST_PRODUCTS = 4


def stages(rows: Sequence[tf.Tensor]) -> list[list[int]]:
    """Sorts what a step looks up by when it needs it.

    Args:
        rows: Tensors in the graph of the step, one for each lookup; what is made of
            them has been traced.

    Returns:
        Positions in `rows`, by stage: those that are needed first come first.
    """
    before = _products_before(rows[0].graph)
    live = _live(before)
    needed = [_needed_after(row.op, before, live) for row in rows]
    found: list[list[int]] = []
    first = 0
    for position in sorted(range(len(rows)), key=needed.__getitem__):
        if not found or needed[position] >= first + _LEAST_PRODUCTS:
            first = needed[position]
            found.append([])
        found[-1].append(position)
    return [sorted(stage) for stage in found]


def _needed_after(
    rows: tf.Operation, before: dict[tf.Operation, int], live: set[tf.Operation]
) -> int:
    """Products that are computed before the first that takes `rows`."""
    base = before.get(rows, 0)
    uses = []
    seen = {rows}
    waiting = [rows]
    while waiting:
        for output in waiting.pop().outputs:
            for user in output.consumers():
                if user in seen or user not in live:
                    continue
                seen.add(user)
                others = _most(user, before)
                if others > base or _products(user):
                    uses.append(others)
                else:
                    waiting.append(user)
    return min(uses, default=base)


def _products_before(graph: tf.Graph) -> dict[tf.Operation, int]:
    """Products on the longest way to each operation, its own included."""
    before: dict[tf.Operation, int] = {}
    for operation in graph.get_operations():  # In the order of being made.
        before[operation] = _most(operation, before) + _products(operation)
    return before


def _live(before: dict[tf.Operation, int]) -> set[tf.Operation]:
    """What the operations after most products are made of: the loss, in short.

    Keras computes the first step of a recurrent layer to see its shape, and makes no
    use of it.
    """
    most = max(before.values())
    waiting = [operation for operation, count in before.items() if count == most]
    live = set(waiting)
    while waiting:
        new = {tensor.op for tensor in waiting.pop().inputs} - live
        live |= new
        waiting += new
    return live


def _most(operation: tf.Operation, before: dict[tf.Operation, int]) -> int:
    return max((before.get(tensor.op, 0) for tensor in operation.inputs), default=0)


def _products(operation: tf.Operation) -> int:
    kind = operation.type
    if any(name in kind for name in _MANY_PRODUCTS):
        return _PRODUCTS_IN_MANY
    return int(any(name in kind for name in _PRODUCTS))
