"""Initial rows as a function of the row, so that no table is ever whole.

The value of an element depends on the seed, its row and its column alone: not on
how many partitions, servers or workers there are, nor on the order in which
rows are made. Elements are drawn by hashing their number with the output
function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
Generators, OOPSLA 2014), which is cheap wherever the rows live.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.cluster.job import Job
from keras_parallax.servers.mapped_files import release_pages

# The largest initial value that is made whole, when its initializer is one that
# we cannot make row by row.
WHOLE_LIMIT_BYTES = 256 << 20

# Keras draws from a normal truncated at two standard deviations and divides the
# wanted deviation by what is left of it.
_TRUNCATED_DEVIATION = 0.87962566103423978

# A multiple of the elements that any processor computes at once.
_VECTOR = 64

RowFunction = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class InitialValue:
    """How a table begins; exactly one of the fields is set.

    Attributes:
        constant: Every element has this value.
        rows: `(row ids) -> rows`, in the graph.
        array: Returns the whole value, to be sent in pieces: a view of what the
            user gave, such as a mapped file, of any type.
    """

    constant: float | None = None
    rows: RowFunction | None = None
    array: Callable[[], np.ndarray] | None = None


def initial_value(
    value: Any, shape: Sequence[int], dtype: tf.DType, job: Job, path: str
) -> InitialValue:
    """Reads what Keras hands to `tf.Variable` as initial value.

    Args:
        value: A tensor or array, or the callable in which Keras wraps an
            initializer.
        shape: Shape of the whole table.
        dtype: Type of its elements.
        job: This worker's place in the job.
        path: Path of the variable, for messages.

    Raises:
        TableError: The initializer cannot be made row by row, and the table is
            too large to be made whole; or an array does not fit the table, or is
            another on each worker.
    """
    initializer = _initializer_inside(value)
    array = _array_of(initializer)
    if array is not None:
        given = _broadcast(array, shape, path)
        return InitialValue(array=lambda: _same_on_all_workers(given, dtype, job, path))
    constant = _constant_of(initializer)
    if constant is not None:
        return InitialValue(constant=constant)
    draw = _distribution_of(initializer, shape)
    if draw is not None:
        seed = job.share(_seed_of(initializer))
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
    return InitialValue(array=lambda: job.share(np.asarray(value())))


def _initializer_inside(value: Any) -> Any:
    """The Keras initializer that the callable closes over, else the value."""
    for found in _closed_over(value).values():
        if isinstance(found, keras.initializers.Initializer) or _wraps_array(found):
            return found
    return value


def _closed_over(function: Any) -> dict[str, Any]:
    """What a function has taken from around it, by name."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def _wraps_array(initializer: Any) -> bool:
    """Whether it is what `keras.initializers.get` makes of an array."""
    made_by = getattr(initializer, "__module__", None)
    return (
        made_by == keras.initializers.get.__module__
        and "identifier" in _closed_over(initializer)
    )


def _array_of(initializer: Any) -> np.ndarray | None:
    """The array that an initial value is or stands for, not copied.

    Keras's own way, calling the initializer, would make a tensor of it: the whole
    file, where it is a mapped one.
    """
    if _wraps_array(initializer):
        return np.asarray(_closed_over(initializer)["identifier"])
    if _is(initializer, keras.initializers.Constant):
        array = np.asarray(initializer.value)
        return array if array.ndim else None
    return None if callable(initializer) else np.asarray(initializer)


def _broadcast(array: np.ndarray, shape: Sequence[int], path: str) -> np.ndarray:
    try:
        return np.broadcast_to(array, tuple(shape))
    except ValueError:
        raise errors.TableError(
            f"The initial value of {path} has the shape {array.shape}; expected "
            f"{tuple(shape)}, that of the table, or one that broadcasts to it.",
            table=path,
        ) from None


def _same_on_all_workers(
    array: np.ndarray, dtype: tf.DType, job: Job, path: str
) -> np.ndarray:
    """The array itself where all workers have the same; else worker 0's."""
    marks = job.gather(_fingerprint(array))
    others = [rank for rank, mark in enumerate(marks) if mark != marks[0]]
    if not others:
        return array
    size = array.size * dtype.size
    if size <= WHOLE_LIMIT_BYTES:
        return job.broadcast(np.asarray(array, dtype.as_numpy_dtype), root=0)
    raise errors.TableError(
        f"The initial value of {path} ({size >> 20} MiB) is not the same on all "
        f"workers: those of ranks {others} differ from rank 0's. Expected the same "
        "file, or the same seed where it is drawn, on every worker; at most "
        f"{WHOLE_LIMIT_BYTES >> 20} MiB are sent from rank 0 to the others instead.",
        table=path,
    )


def _fingerprint(array: np.ndarray) -> tuple:
    """Tells arrays apart by type, shape and a hundred of their rows."""
    checksum = 0
    rows = np.atleast_1d(array)
    for row in range(0, len(rows), max(1, len(rows) // 100)):
        checksum = zlib.crc32(rows[row].tobytes(), checksum)
        # Reading a row of a mapped file may have mapped megabytes around it.
        release_pages(array)
    return array.dtype.str, array.shape, checksum


def _is(initializer: Any, kind: type) -> bool:
    """Whether `initializer` draws as `kind` does: a subclass may draw otherwise."""
    return isinstance(initializer, kind) and type(initializer).__call__ is kind.__call__


def _constant_of(initializer: Any) -> float | None:
    kinds = keras.initializers
    if _is(initializer, kinds.Zeros):
        return 0.0
    if _is(initializer, kinds.Ones):
        return 1.0
    if _is(initializer, kinds.Constant):
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
        numbers = tf.reshape(numbers, (-1,))
        count = tf.size(numbers)
        # A vector unit and what computes the few elements left over do not round
        # alike; so none are left over, wherever the rows are cut.
        numbers = tf.pad(numbers, [[0, tf.math.floormod(-count, _VECTOR)]])
        elements = draw(_uniform(numbers, key))[:count]
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
