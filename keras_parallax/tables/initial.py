"""Initial rows as a function of the row, so that no table is ever whole.

The value of an element depends on the seed, its row and its column alone: not on
how many partitions, servers or workers there are, nor on the order in which
rows are made. Elements are drawn by hashing their number with the output
function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
Generators, OOPSLA 2014), which is cheap wherever the rows live.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_parallax import errors

# The largest initial value that is made whole, when its initializer is one that
# we cannot make row by row.
WHOLE_LIMIT_BYTES = 256 << 20

# Keras draws from a normal truncated at two standard deviations and divides the
# wanted deviation by what is left of it.
_TRUNCATED_DEVIATION = 0.87962566103423978

RowFunction = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class InitialValue:
    """How a table begins; exactly one of the fields is set.

    Attributes:
        constant: Every element has this value.
        rows: `(row ids) -> rows`, in the graph.
        array: Makes the whole value, to be sent in pieces.
    """

    constant: float | None = None
    rows: RowFunction | None = None
    array: Callable[[], np.ndarray] | None = None


def initial_value(
    value: Any, shape: Sequence[int], dtype: tf.DType, share: Callable, path: str
) -> InitialValue:
    """Reads what Keras hands to `tf.Variable` as initial value.

    Args:
        value: A tensor or array, or the callable in which Keras wraps an
            initializer.
        shape: Shape of the whole table.
        dtype: Type of its elements.
        share: Returns worker 0's value of its argument on every worker.
        path: Path of the variable, for messages.

    Raises:
        TableError: The initializer cannot be made row by row, and the table is
            too large to be made whole.
    """
    if not callable(value):
        return InitialValue(array=lambda: np.asarray(value))
    initializer = _initializer_inside(value)
    constant = _constant_of(initializer)
    if constant is not None:
        return InitialValue(constant=constant)
    draw = _distribution_of(initializer, shape)
    if draw is not None:
        seed = share(_seed_of(initializer))
        return InitialValue(rows=_row_function(draw, seed, shape, dtype))
    size = math.prod(shape) * dtype.size
    if size > WHOLE_LIMIT_BYTES:
        raise errors.TableError(
            f"The table {path} of shape {tuple(shape)} ({size >> 20} MiB) has the "
            f"initializer {initializer!r}, which can only be made whole; expected "
            "one of Zeros, Ones, Constant, RandomUniform, RandomNormal, "
            "TruncatedNormal, VarianceScaling (GlorotUniform, HeNormal, …), or a "
            f"table of at most {WHOLE_LIMIT_BYTES >> 20} MiB.",
            table=path,
        )
    return InitialValue(array=lambda: share(np.asarray(value())))


def _initializer_inside(value: Callable) -> Any:
    """The Keras initializer that the callable closes over, else the callable."""
    for cell in getattr(value, "__closure__", None) or ():
        if isinstance(cell.cell_contents, keras.initializers.Initializer):
            return cell.cell_contents
    return value


def _is(initializer: Any, kind: type) -> bool:
    """Whether `initializer` draws as `kind` does: a subclass may draw otherwise."""
    return isinstance(initializer, kind) and type(initializer).__call__ is kind.__call__


def _constant_of(initializer: Any) -> float | None:
    kinds = keras.initializers
    if _is(initializer, kinds.Zeros):
        return 0.0
    if _is(initializer, kinds.Ones):
        return 1.0
    if _is(initializer, kinds.Constant) and np.ndim(initializer.value) == 0:
        return float(initializer.value)
    return None


def _seed_of(initializer: Any) -> int:
    seed = initializer.seed
    return seed if isinstance(seed, int) else int(np.asarray(seed.next())[0])


def _distribution_of(initializer: Any, shape: Sequence[int]) -> Callable | None:
    """`(uniform in (0, 1)) -> element`, or None where we know none."""
    kinds = keras.initializers
    if _is(initializer, kinds.RandomUniform):
        low, high = initializer.minval, initializer.maxval
        return lambda u: low + (high - low) * u
    if _is(initializer, kinds.RandomNormal):
        mean, stddev = initializer.mean, initializer.stddev
        return lambda u: mean + stddev * tf.math.ndtri(u)
    if _is(initializer, kinds.TruncatedNormal):
        mean, stddev = initializer.mean, initializer.stddev
        return lambda u: mean + stddev * _truncated(u)
    if _is(initializer, kinds.VarianceScaling):
        return _variance_scaling(initializer, shape)
    return None


def _variance_scaling(initializer: Any, shape: Sequence[int]) -> Callable:
    """The distribution that `VarianceScaling` has for the *whole* table."""
    fan_in, fan_out = shape[-2:] if len(shape) > 1 else (shape[0], shape[0])
    receptive = math.prod(shape[:-2])
    fans = {
        "fan_in": fan_in * receptive,
        "fan_out": fan_out * receptive,
        "fan_avg": (fan_in + fan_out) * receptive / 2,
    }
    variance = initializer.scale / max(1.0, fans[initializer.mode])
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return lambda u: limit * (2.0 * u - 1.0)
    if initializer.distribution == "untruncated_normal":
        stddev = math.sqrt(variance)
        return lambda u: stddev * tf.math.ndtri(u)
    stddev = math.sqrt(variance) / _TRUNCATED_DEVIATION
    return lambda u: stddev * _truncated(u)


def _truncated(uniform: tf.Tensor) -> tf.Tensor:
    """Standard normal truncated at two deviations, by inverting its integral."""
    below = 0.5 * math.erfc(math.sqrt(2.0))
    return tf.math.ndtri(below + (1.0 - 2.0 * below) * uniform)


def _row_function(
    draw: Callable, seed: int, shape: Sequence[int], dtype: tf.DType
) -> RowFunction:
    width = math.prod(shape[1:])
    key = int(np.random.SeedSequence(abs(seed)).generate_state(1, np.uint64)[0])

    def rows(ids: tf.Tensor) -> tf.Tensor:
        columns = tf.range(width, dtype=tf.int64)
        numbers = tf.cast(ids, tf.int64)[:, None] * width + columns
        elements = draw(_uniform(numbers, key))
        return tf.cast(tf.reshape(elements, (-1, *shape[1:])), dtype)

    return rows


def _uniform(numbers: tf.Tensor, key: int) -> tf.Tensor:
    """Element numbers to float32 in (0, 1), by SplitMix64."""
    mixed = tf.cast(numbers, tf.uint64) * _u64(0x9E3779B97F4A7C15) + _u64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = tf.bitwise.bitwise_xor(mixed, _right_shift(mixed, shift))
        mixed *= _u64(factor)
    mixed = tf.bitwise.bitwise_xor(mixed, _right_shift(mixed, 31))
    # 23 bits, so that half a step can be added and neither 0 nor 1 comes out.
    top = tf.cast(tf.cast(_right_shift(mixed, 41), tf.int32), tf.float32)
    return (top + 0.5) * (0.5**23)


def _u64(number: int) -> tf.Tensor:
    return tf.constant(number % 2**64, tf.uint64)


def _right_shift(values: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(values, _u64(bits))
