"""Several tensors in one message.

What a step sends to one server is put into one vector of places, one of sizes, and
one of values for each type, whatever the number of tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def pack_places(places: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Joins places into one vector, with their sizes (None for a single one)."""
    if len(places) == 1:
        return places[0], None
    wide = tf.int64 if any(p.dtype == tf.int64 for p in places) else tf.int32
    joined = tf.concat([tf.cast(p, wide) for p in places], 0)
    return joined, tf.stack([tf.size(p) for p in places])


def unpack_places(
    joined: tf.Tensor, sizes: tf.Tensor | None, dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """Takes apart what `pack_places` has joined."""
    if sizes is None:
        return [joined]
    parts = tf.split(joined, sizes, num=len(dtypes))
    return [tf.cast(part, dtype) for part, dtype in zip(parts, dtypes, strict=True)]


def pack_values(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Joins values into one vector for each type, in order of first appearance."""
    if len(values) == 1:
        return list(values)
    return [
        tf.concat([tf.reshape(v, [-1]) for v in values if v.dtype == dtype], 0)
        for dtype in _types(v.dtype for v in values)
    ]


def unpack_values(
    joined: Sequence[tf.Tensor],
    sizes: tf.Tensor | None,
    row_shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[tf.DType],
) -> list[tf.Tensor]:
    """Takes apart what `pack_values` has joined.

    Args:
        joined: One vector for each type.
        sizes: Number of rows of each value, as `pack_places` gave it.
        row_shapes: Shape of the rows of each value.
        dtypes: Type of each value.
    """
    if sizes is None:
        return [tf.reshape(joined[0], (-1, *row_shapes[0]))]
    values: list[tf.Tensor] = [tf.constant(0)] * len(dtypes)
    for vector, dtype in zip(joined, _types(dtypes), strict=True):
        mine = [i for i, kind in enumerate(dtypes) if kind == dtype]
        widths = tf.constant([_width(row_shapes[i]) for i in mine])
        parts = tf.split(vector, tf.gather(sizes, mine) * widths, num=len(mine))
        for i, part in zip(mine, parts, strict=True):
            values[i] = tf.reshape(part, (-1, *row_shapes[i]))
    return values


def _types(dtypes) -> list[tf.DType]:
    return list(dict.fromkeys(dtypes))


def _width(row_shape: tuple[int, ...]) -> int:
    width = 1
    for extent in row_shape:
        width *= extent
    return width
