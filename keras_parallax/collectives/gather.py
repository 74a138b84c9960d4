"""Slices of all workers, gathered on each: many tensors in few exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_parallax.collectives.operations import (
    as_bits,
    from_bits,
    operation_name,
    unfolded,
)


def all_gather_together(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Joins the workers' tensors along the first axis, each in order of rank.

    Those of one type travel together.

    Args:
        tensors: `(n, ...)` each, with an `n` of each worker's own.
    """
    bits = [as_bits(tensor) for tensor in tensors]
    found: dict[int, tf.Tensor] = {}
    for kind in dict.fromkeys(tensor.dtype for tensor in bits):
        alike = [index for index, tensor in enumerate(bits) if tensor.dtype == kind]
        found.update(zip(alike, _gather([bits[i] for i in alike]), strict=True))
    return [
        tf.ensure_shape(
            from_bits(found[index], tensor.dtype), (None, *tensor.shape[1:])
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
