"""What a variable about to be created tells of itself.

`keras.Variable` asks TensorFlow for its variable with a callable that closes over
the Keras variable and its initializer. Both are read here, so that a table never
has to be made whole to learn its shape.
"""

import dataclasses
import math
import weakref
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
        shape: Its shape.
        dtype: Its type.
        initial_value: Tensor, array or callable.
        trainable: Whether it is trainable.
        keras_variable: The Keras variable that it is made for, if there is one.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    initial_value: Any
    trainable: bool
    keras_variable: weakref.ref | None = None

    @classmethod
    def of(cls, kwargs: dict) -> "Creation | None":
        """Reads the arguments that a variable creator receives.

        Args:
            kwargs: The arguments.

        Returns:
            The variable, or None when only computing its value would tell its shape
            and type.
        """
        value = kwargs.get("initial_value")
        name = kwargs.get("name") or "variable"
        dtype = kwargs.get("dtype")
        path, shape, made_for = name, None, None
        for cell in getattr(value, "__closure__", None) or ():
            found = cell.cell_contents
            if isinstance(found, keras.Variable):
                path, shape = found.path, tuple(found.shape)
                made_for = weakref.ref(found)
        if shape is None and value is not None and hasattr(value, "shape"):
            shape = tuple(value.shape)
            dtype = dtype or value.dtype
        if shape is None or dtype is None:
            return None
        return cls(
            path=path,
            name=name,
            shape=shape,
            dtype=tf.as_dtype(dtype),
            initial_value=value,
            # TensorFlow's own variables are trainable unless something is said.
            trainable=kwargs.get("trainable") in (None, True),
            keras_variable=made_for,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of its value."""
        return math.prod(self.shape) * self.dtype.size

    @property
    def is_embedding(self) -> bool:
        """Whether it looks like the weight of a `keras.layers.Embedding`."""
        return self.name == "embeddings" and len(self.shape) == 2
