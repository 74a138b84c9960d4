"""Where the rows that this worker pushes fall: how often in each partition.

Counted in the graph, in one small variable a table, for the steps that are traced
while it is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

#: A table's rows are counted in so many ranges of equal length.
RANGES = 32


@dataclasses.dataclass(frozen=True, eq=False)
class TableLoad:
    """Rows that this worker has pushed to one table.

    Attributes:
        variable: Path of the variable.
        counts: `(ranges of rows, partitions)`: how many rows of each range, from
            the table's first row to its last, went to each partition.
        servers: Index of the server that holds each partition.
    """

    variable: str
    counts: np.ndarray
    servers: tuple[int, ...]

    @property
    def by_partition(self) -> np.ndarray:
        """Rows pushed to each partition."""
        return self.counts.sum(0)

    @property
    def by_server(self) -> np.ndarray:
        """Rows pushed to each server that holds a partition, in order of index."""
        loads = np.bincount(self.servers, self.by_partition)
        return loads[sorted(set(self.servers))]


@dataclasses.dataclass(frozen=True, eq=False)
class _Counter:
    variable: str
    servers: tuple[int, ...]
    counts: tf.Variable


class Load:
    """Counts pushed rows by table, range of rows and partition.

    Args:
        device: Device of this worker that counts.
    """

    def __init__(self, device: str):
        self._device = device
        self._counters: dict[tuple, _Counter] = {}

    def count(
        self,
        variable: str,
        ids: tf.Tensor,
        num_rows: int,
        servers: Sequence[int],
    ) -> None:
        """Adds pushed rows, in the graph.

        Args:
            variable: Path of the table's variable.
            ids: Row ids, `(n,)`.
            num_rows: Rows of the table.
            servers: Index of the server that holds each partition.
        """
        partitions = len(servers)
        key = (variable, num_rows, tuple(servers))
        ranges = min(RANGES, num_rows)
        if key not in self._counters:
            with tf.init_scope(), tf.device(self._device):
                zeros = [0] * (ranges * partitions)
                # Not a `tf.Variable`: the strategy would have all workers make it.
                counts = ResourceVariable(zeros, dtype=tf.int64, trainable=False)
            self._counters[key] = _Counter(variable, tuple(servers), counts)
        with tf.device(self._device):
            ids = tf.cast(ids, tf.int64)
            cells = ids * ranges // num_rows * partitions + ids % partitions
            # `tf.math.bincount` looks for the largest cell first.
            found = tf.raw_ops.DenseBincount(
                input=cells,
                size=tf.constant(ranges * partitions, tf.int64),
                weights=tf.zeros([0], tf.int64),
            )
            self._counters[key].counts.assign_add(found)

    def read(self) -> list[TableLoad]:
        """What was counted so far; the last state of each table's partitions."""
        latest = {counter.variable: counter for counter in self._counters.values()}
        return [
            TableLoad(
                c.variable,
                c.counts.numpy().reshape(-1, len(c.servers)),
                c.servers,
            )
            for c in latest.values()
        ]


def imbalance(loads: np.ndarray) -> float:
    """The largest load as a multiple of the mean; 1 where all are equal."""
    mean = float(np.mean(loads)) if len(loads) else 0.0
    return float(np.max(loads)) / mean if mean else 1.0
