"""The form in which numbers travel: as they are, or halved.

float16 keeps 11 bits of precision and overflows above 65504; bfloat16 keeps 8 bits
and the range of float32. Sums are always computed in the full type.
"""

from __future__ import annotations

import tensorflow as tf

from keras_parallax import errors

FORMATS = (None, "float16", "bfloat16")


class Wire:
    """Encodes what is sent and decodes what was received.

    Args:
        name: None, "float16" or "bfloat16".

    Raises:
        ConfigError: It is none of these.
    """

    def __init__(self, name: str | None = None):
        if name not in FORMATS:
            raise errors.ConfigError(
                f"A wire format is one of {FORMATS}. Received: {name!r}"
            )
        self.name = name

    def type_of(self, dtype: tf.DType) -> tf.DType:
        """Type in which values of `dtype` travel."""
        halved = self.name is not None and dtype.is_floating and dtype.size > 2
        # As bits: Horovod and TensorFlow's queues need not know the format.
        return tf.uint16 if halved else dtype

    def encode(self, values: tf.Tensor) -> tf.Tensor:
        """What to send for `values`; of the same shape."""
        if self.type_of(values.dtype) == values.dtype:
            return values
        return tf.bitcast(tf.cast(values, self.name), tf.uint16)

    def decode(self, received: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """The values, of type `dtype`, for what was received."""
        if received.dtype == dtype:
            return received
        return tf.cast(tf.bitcast(received, self.name), dtype)
