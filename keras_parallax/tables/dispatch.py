"""Teaches TensorFlow's operations what to do with a table.

Stock layers hand their `keras.Variable` to `tf.gather`, `tf.nn.embedding_lookup`
or `tf.shape`. When the variable is a table, the conversion to a tensor raises, and
TensorFlow asks the registered dispatchers for an answer: operations that look rows
up get a lookup, operations that ask for the shape get it, and all others get the
whole value, which is the dense road's business (see `table.py`). Nothing is
patched: `GlobalOpDispatcher` is TensorFlow's own extension point.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf

from keras_parallax.tables.lookup import lookup
from keras_parallax.tables.table import Table


def table_of(value: Any) -> Table | None:
    """The table that `value` is or holds, unless it stands for a tensor now."""
    if isinstance(value, keras.Variable):
        value = value._value
    if isinstance(value, Table) and value.view is None and value.replica is None:
        return value
    return None


class TableDispatcher(tf.__internal__.dispatch.GlobalOpDispatcher):
    """Answers for operations that were handed a table."""

    def handle(self, op, args, kwargs):
        """Called by TensorFlow when an operation could not convert its inputs."""
        leaves = tf.nest.flatten((args, kwargs))
        if not any(table_of(leaf) for leaf in leaves):
            return self.NOT_SUPPORTED
        if op is tf.convert_to_tensor and isinstance(leaves[0], Table):
            # A Keras variable converting itself on behalf of another operation,
            # which is the one to be answered; it alone hands a name on. Its
            # arithmetic converts the value without one, and means the whole.
            if "name" in kwargs:
                return self.NOT_SUPPORTED
        answer = _ANSWERS.get(getattr(op, "__name__", ""))
        if answer is not None:
            found = answer(_bind(op, args, kwargs))
            if found is not NotImplemented:
                return found
        args, kwargs = tf.nest.map_structure(_whole, (args, kwargs))
        return op(*args, **kwargs)


def _bind(op, args, kwargs) -> dict[str, Any]:
    return dict(inspect.signature(op).bind(*args, **kwargs).arguments)


def _whole(leaf: Any) -> Any:
    table = table_of(leaf)
    return leaf if table is None else _autocast(leaf, table.read_value())


def _static(value: Any) -> Any:
    return value if value is None else tf.get_static_value(value)


def _autocast(params: Any, rows: tf.Tensor) -> tf.Tensor:
    """Rows in the type that Keras would hand the whole variable out in."""
    if isinstance(params, keras.Variable) and rows.dtype.name != params.dtype:
        return tf.cast(rows, params.dtype)
    return rows


def _gather(given: dict) -> Any:
    table = table_of(given["params"])
    axis, batch_dims = (_static(given.get(name)) for name in ("axis", "batch_dims"))
    if table is None or batch_dims or axis:
        return NotImplemented
    return _autocast(given["params"], lookup(table, given["indices"]))


def _embedding_lookup(given: dict) -> Any:
    params = given["params"]
    if isinstance(params, list | tuple):
        if len(params) != 1:
            return NotImplemented
        (params,) = params
    table = table_of(params)
    if table is None or given.get("max_norm") is not None:
        return NotImplemented
    return _autocast(params, lookup(table, given["ids"]))


def _shape(given: dict) -> Any:
    table = table_of(given["input"])
    kind = given.get("out_type") or tf.int32
    if table is None:
        return NotImplemented
    return tf.constant(table.shape.as_list(), kind)


def _rank(given: dict) -> Any:
    table = table_of(given["input"])
    return NotImplemented if table is None else tf.constant(table.shape.rank)


def _cast(given: dict) -> Any:
    table = table_of(given["x"])
    kind = tf.as_dtype(given["dtype"])
    # A Keras variable autocasts its value while it converts itself: what is looked
    # up in it is cast instead.
    autocasts = isinstance(given["x"], Table) and kind.is_floating
    same = table is not None and kind == table.dtype
    return given["x"] if same or autocasts else NotImplemented


_ANSWERS = {
    "gather": _gather,
    "gather_v2": _gather,
    "embedding_lookup": _embedding_lookup,
    "embedding_lookup_v2": _embedding_lookup,
    "shape": _shape,
    "shape_v2": _shape,
    "rank": _rank,
    "cast": _cast,
}

_registered = False


def register() -> None:
    """Registers the dispatcher, once a process."""
    global _registered
    if not _registered:
        TableDispatcher().register()
        _registered = True
