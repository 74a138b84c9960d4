"""Values to the workers that they belong to, and the answers back.

One all-to-all carries the keys; whatever is said about the keys afterwards, rows
back or gradients forth, travels by the same routes, of which both ends know how many
go by each.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from keras_parallax.collectives.meter import Meter
from keras_parallax.collectives.operations import (
    as_bits,
    from_bits,
    operation_name,
    unfolded,
)
from keras_parallax.collectives.steady import padded
from keras_parallax.versions import takes_expected_splits


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Workers that exchange among themselves.

    Attributes:
        name: Sets the group's operations apart from those of other groups.
        size: Number of workers.
        index: This worker's index among them.
        on_machine: Whether each of them is on this worker's machine.
        meter: Counts what this worker sends to the others.
        process_set: Horovod's process set of them, None for all workers.
    """

    name: str
    size: int
    index: int
    on_machine: tuple[bool, ...]
    meter: Meter
    process_set: object | None = None

    def all_to_all(
        self, values: tf.Tensor, counts: tf.Tensor, expected: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends pieces of `values` to the workers, in order.

        Args:
            values: `(n, ...)`.
            counts: How many of them each worker gets, `(size,)`, int32.
            expected: How many each worker sends here, `(size,)`, int32, where all
                workers know that: it spares them telling each other.

        Returns:
            What the workers have sent here, in order of sender, and how many
            each has sent.
        """
        import horovod.tensorflow as hvd

        known = expected is not None and takes_expected_splits()
        splits = tf.concat([counts, expected], 0) if known else counts
        received, told = hvd.alltoall(
            padded(unfolded(as_bits(values))),
            splits=unfolded(splits),
            name=operation_name(f"exchange_{self.name}"),
            ignore_name_scope=True,
            process_set=self.process_set or hvd.global_process_set,
        )
        received_counts = told if expected is None else expected
        received = from_bits(received, values.dtype)
        received = tf.ensure_shape(received, (None, *values.shape[1:]))
        # TensorFlow drops an exchange of whose result this worker makes no use, and
        # the others would wait for it: the count is a use.
        self.meter.count(
            *(
                self._bytes(values_, counts_, mask)
                for mask in (self._others, self._strangers)
                for values_, counts_ in ((values, counts), (received, received_counts))
            )
        )
        return received, received_counts

    @property
    def _others(self) -> list[bool]:
        return [index != self.index for index in range(self.size)]

    @property
    def _strangers(self) -> list[bool]:
        return [not here for here in self.on_machine]

    @staticmethod
    def _bytes(values: tf.Tensor, counts: tf.Tensor, mask: list[bool]) -> tf.Tensor:
        """Bytes of the pieces of `values` that belong to the workers of `mask`."""
        width = tf.size(values, tf.int64) // tf.maximum(
            tf.shape(values, tf.int64)[0], 1
        )
        rows = tf.reduce_sum(tf.boolean_mask(counts, mask))
        return tf.cast(rows, tf.int64) * width * values.dtype.size


@dataclasses.dataclass(frozen=True, eq=False)
class Route:
    """How the keys of this worker were sent, and those of others received.

    Attributes:
        group: Who exchanges.
        order: Positions of this worker's keys in the order of being sent, `(n,)`.
        counts: Keys sent to each worker, `(size,)`.
        received_counts: Keys received from each worker, `(size,)`.
    """

    group: Group
    order: tf.Tensor
    counts: tf.Tensor
    received_counts: tf.Tensor

    @classmethod
    def of(
        cls, group: Group, keys: tf.Tensor, owners: tf.Tensor
    ) -> tuple[Route, tf.Tensor]:
        """Sends each key to its owner.

        Args:
            group: Who exchanges.
            keys: `(n,)`.
            owners: Index in the group of each key's owner, `(n,)`, int32.

        Returns:
            The route, and the keys received, in order of sender.
        """
        parts = tf.dynamic_partition(tf.range(tf.size(keys)), owners, group.size)
        order = tf.concat(parts, 0)
        counts = tf.stack([tf.size(part) for part in parts])
        received, received_counts = group.all_to_all(tf.gather(keys, order), counts)
        return cls(group, order, counts, received_counts), received

    def deliver(self, values: tf.Tensor) -> tf.Tensor:
        """Sends a value for each key to the key's owner.

        Args:
            values: In the order of this worker's keys, `(n, ...)`.

        Returns:
            In the order of the keys received, `(m, ...)`.
        """
        received, _ = self.group.all_to_all(
            tf.gather(values, self.order), self.counts, self.received_counts
        )
        return received

    def reply(self, values: tf.Tensor) -> tf.Tensor:
        """Sends a value for each key received back to who asked.

        Args:
            values: In the order of the keys received, `(m, ...)`.

        Returns:
            In the order of this worker's keys, `(n, ...)`.
        """
        answers, _ = self.group.all_to_all(values, self.received_counts, self.counts)
        return tf.gather(answers, tf.math.invert_permutation(self.order))

    def only(self, sent: tuple[tf.Tensor, tf.Tensor], received: tf.Tensor) -> Route:
        """The route of some keys only.

        Args:
            sent: First and last-but-one position of the keys, among this worker's.
            received: Whether each key received is one of them, `(m,)`, bool.
        """
        start, stop = sent
        chosen = (self.order >= start) & (self.order < stop)
        return Route(
            self.group,
            tf.boolean_mask(self.order, chosen) - start,
            _count_by(self.counts, chosen),
            _count_by(self.received_counts, received),
        )


def _count_by(counts: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """How many are chosen of each worker's `counts` consecutive ones."""
    worker = tf.repeat(tf.range(tf.size(counts)), counts)
    return tf.math.unsorted_segment_sum(
        tf.cast(chosen, tf.int32), worker, tf.size(counts)
    )
