"""What a variable about to be created tells of itself.

`keras.Variable` asks TensorFlow for its variable with a callable that closes over
the Keras variable and its initializer. Both are read here, so that a table never
has to be made whole to learn its shape.
"""

import dataclasses
from typing import Any

import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Creation:
    """A variable that is about to be created.

    Attributes:
        path: Path in the model, such as `"lm/embedding/embeddings"`; the plain
            name where no Keras variable stands behind it.
        name: Name given to the variable.
        shape: Its shape; None when only computing the value would tell.
        dtype: Its type, None likewise.
        initial_value: Tensor, array or callable.
        trainable: Whether it is trainable.
    """

    path: str
    name: str
    shape: tuple[int, ...] | None
    dtype: tf.DType | None
    initial_value: Any
    trainable: bool

    @classmethod
    def of(cls, kwargs: dict) -> "Creation":
        """Reads the arguments that a variable creator receives."""
        value = kwargs.get("initial_value")
        name = kwargs.get("name") or "variable"
        dtype = kwargs.get("dtype")
        path, shape = name, None
        for cell in getattr(value, "__closure__", None) or ():
            found = cell.cell_contents
            if isinstance(found, keras.Variable):
                path, shape = found.path, tuple(found.shape)
        if shape is None and hasattr(value, "shape"):
            shape = tuple(value.shape)
            dtype = dtype or value.dtype
        return cls(
            path=path,
            name=name,
            shape=shape,
            dtype=tf.as_dtype(dtype) if dtype is not None else None,
            initial_value=value,
            trainable=bool(kwargs.get("trainable", True)),
        )
