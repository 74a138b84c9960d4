"""Slices of all workers, gathered on each: many tensors in few exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_parallax.collectives.operations import operation_name, unfolded


def all_gather_together(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Joins the workers' tensors along the first axis, each in order of rank.

    Those of one type travel together.

    Args:
        tensors: `(n, ...)` each, with an `n` of each worker's own.
    """
    # Horovod does not know bfloat16; to it, bits are bits.
    bits = [
        tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor
        for tensor in tensors
    ]
    found: dict[int, tf.Tensor] = {}
    for kind in dict.fromkeys(tensor.dtype for tensor in bits):
        alike = [index for index, tensor in enumerate(bits) if tensor.dtype == kind]
        found.update(zip(alike, _gather([bits[i] for i in alike]), strict=True))
    return [
        tf.ensure_shape(
            tf.bitcast(found[index], tensor.dtype)
            if found[index].dtype != tensor.dtype
            else found[index],
            (None, *tensor.shape[1:]),
        )
        for index, tensor in enumerate(tensors)
    ]


def _gather(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    import horovod.tensorflow as hvd

    return hvd.grouped_allgather(
        [unfolded(tensor) for tensor in tensors],
        name=operation_name("slices"),
        ignore_name_scope=True,
    )
