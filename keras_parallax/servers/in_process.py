"""Partitions in this process: the home of a single worker."""

from collections.abc import Callable

import tensorflow as tf

from keras_parallax.servers.home import (
    Home,
    Update,
    fill_partitions,
    partitioning_of,
)
from keras_parallax.servers.storage import Storage, TableSpec


class InProcessHome(Home):
    """Keeps every partition in this process; for one worker.

    Args:
        device: Device of this process that holds the rows.
    """

    name = "in_process"

    def __init__(self, device: str):
        self.devices = (device,)

    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """See `Home.allocate`."""
        storage = self.open(spec)
        everything = list(range(spec.num_partitions))
        fill_partitions(storage, everything, constant, initial_rows)
        return storage

    def push(
        self,
        storage: Storage,
        unique_ids: tf.Tensor,
        summed_gradients: tf.Tensor,
        update: Update,
    ) -> tf.Operation:
        """See `Home.push`; there is nobody to wait for."""
        places, positions = partitioning_of(storage.spec).split(unique_ids)
        single = storage.spec.num_partitions == 1
        return tf.group(
            *(
                update(
                    p,
                    places[p],
                    summed_gradients
                    if single
                    else tf.gather(summed_gradients, positions[p]),
                )
                for p in range(storage.spec.num_partitions)
            )
        )
