"""Which row of a table lives in which partition, and in which place there.

Row `r` of a table in `P` partitions lives in partition `r mod P`, at place
`r div P`. Vocabularies are usually sorted by frequency, so the rows that every
batch touches are neighbours; taking them modulo `P` spreads them evenly.
"""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Partitioning:
    """Arithmetic of one table's partitions.

    Attributes:
        num_rows: Rows of the table.
        num_partitions: Partitions, at least 1 and at most `num_rows`.
    """

    num_rows: int
    num_partitions: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_partitions <= max(1, self.num_rows):
            raise ValueError(
                "A table has at least one partition and at most one for each "
                f"row. Received: num_partitions={self.num_partitions}, "
                f"num_rows={self.num_rows}."
            )

    def size(self, partition: int) -> int:
        """Number of rows in `partition`."""
        return len(range(partition, self.num_rows, self.num_partitions))

    def rows(self, partition: int, start: int, stop: int) -> range:
        """Rows of the table at places `start` to `stop` of `partition`."""
        every = range(partition, self.num_rows, self.num_partitions)
        return every[start:stop]

    def places(self, partition: int, start: int, stop: int) -> range:
        """Places in `partition` of those rows that lie in `[start, stop)`."""
        count = self.num_partitions
        first = start + (partition - start) % count
        return range(first // count, (stop - partition - 1) // count + 1)

    def split(self, ids: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sorts row ids by partition, in the graph.

        Args:
            ids: Row ids, `(n,)`, each in `[0, num_rows)`.

        Returns:
            `(places, positions)`, a list for each, one tensor a partition:
            where the ids that belong to it live there, and where they stood in
            `ids`.
        """
        count = self.num_partitions
        everywhere = tf.range(tf.size(ids))
        if count == 1:
            return [ids], [everywhere]
        divisor = tf.constant(count, ids.dtype)
        owner = tf.cast(tf.math.floormod(ids, divisor), tf.int32)
        positions = tf.dynamic_partition(everywhere, owner, count)
        place = tf.math.floordiv(ids, divisor)
        return [tf.gather(place, found) for found in positions], positions

    def merge(self, parts: list[tf.Tensor], positions: list[tf.Tensor]) -> tf.Tensor:
        """Puts what the partitions answered back into the order of the ids."""
        if self.num_partitions == 1:
            return parts[0]
        return tf.dynamic_stitch(positions, parts)
