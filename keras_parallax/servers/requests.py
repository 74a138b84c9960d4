"""What a step asks of a home: rows, and what is to be done to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from keras_parallax.servers.storage import Storage

# Updates one partition: `(partition index, places, summed gradients) -> op`. Places
# are None where the gradients are those of all its rows.
Update = Callable[[int, tf.Tensor | None, tf.Tensor], tf.Operation]


@dataclasses.dataclass(frozen=True, eq=False)
class Pull:
    """Rows that a step wants.

    Attributes:
        storage: The table's rows.
        ids: Row ids, each once, `(n,)`.
    """

    storage: Storage
    ids: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Push:
    """What a step does to a table.

    Attributes:
        storage: The table's rows.
        ids: Row ids that this worker touched, each once, `(n,)`.
        gradients: Their gradients, summed by row, `(n, *row_shape)`.
        update: Runs once for each partition, where its rows live, with the sum
            of all workers' gradients.
    """

    storage: Storage
    ids: tf.Tensor
    gradients: tf.Tensor
    update: Update
