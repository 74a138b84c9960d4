"""Partitions in this process: the home of a single worker."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_parallax.servers.home import (
    Home,
    Pull,
    Push,
    fill_partitions,
    partitioning_of,
)
from keras_parallax.servers.storage import Storage, TableSpec
from keras_parallax.servers.sums import Sums, SumsHere


class InProcessHome(Home):
    """Keeps every partition in this process; for one worker.

    Args:
        device: Device of this process that holds the rows.
    """

    name = "in_process"
    sends_messages = False

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

    def pull(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        """See `Home.pull`."""
        answers = []
        for request in requests:
            partitioning = partitioning_of(request.storage.spec)
            places, positions = partitioning.split(request.ids)
            parts = [
                partition.gather(found)
                for partition, found in zip(
                    request.storage.partitions, places, strict=True
                )
            ]
            answers.append(partitioning.merge(parts, positions))
        return answers

    def sum(self, contributions: Sequence[Push]) -> Sums:
        """See `Home.sum`; there is nobody to wait for."""
        return SumsHere(contributions, self._update)

    def _update(self, sums: Sequence[Push]) -> tf.Operation:
        updated = []
        for push in sums:
            places, positions = partitioning_of(push.storage.spec).split(push.ids)
            for p, found in enumerate(places):
                gradients = push.gradients
                if len(places) > 1:
                    gradients = tf.gather(gradients, positions[p])
                updated.append(push.update(p, found, gradients))
        return tf.group(*updated)
