"""The workers of one machine act as one towards other machines.

Each row has one worker on every machine that is in charge of it. The workers of a
machine tell the one in charge which rows they want; it pulls each of them once, and
hands them out. Gradients go the same way back: they are summed on the machine
before they leave it. So a machine's boundary is crossed by what the union of its
workers needs, once. (Kim et al., EuroSys 2019, section 4.3, has one server a machine
do so; here the work is spread over the machine's workers.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_parallax.collectives.exchange import Group
from keras_parallax.servers.home import Home, Pull, Push
from keras_parallax.servers.storage import Storage, TableSpec
from keras_parallax.servers.sums import Sums
from keras_parallax.servers.waves import Owners, Waves


class LocalAggregation(Home):
    """Puts the exchange within a machine before a home.

    Args:
        home: The home behind it.
        group: The workers of this machine.
        in_charge: Index on its machine of the worker in charge of a row. It has to
            be the same on every machine.
    """

    def __init__(self, home: Home, group: Group, in_charge: Owners):
        self.name = home.name
        self.devices = home.devices
        self.reads_alone = home.reads_alone
        self.speaks_with = home.speaks_with
        self._home = home
        self._waves = Waves(group, in_charge)
        # Rows pushed for the machine, by table.
        self._pushed: dict[Storage, tf.Variable] = {}

    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """See `Home.allocate`."""
        storage = self._home.allocate(spec, constant, initial_rows)
        self._pushed[storage] = tf.Variable(0, dtype=tf.int64, trainable=False)
        return storage

    def pull(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        """See `Home.pull`."""
        wave = self._waves.send(requests)
        unions = wave.unions
        rows = iter(self._home.pull([Pull(storage, ids) for storage, ids, _ in unions]))
        answers: list[tf.Tensor] = [tf.constant(0)] * len(requests)
        wanted = iter(unions)
        for batch in wave.batches:
            mine = [tf.gather(next(rows), next(wanted)[2]) for _ in batch.storages]
            for index, found in zip(batch.indices, batch.reply(mine), strict=True):
                answers[index] = found
        return answers

    def sum(self, contributions: Sequence[Push]) -> Sums:
        """See `Home.sum`."""
        summed = self._waves.of(contributions).sum(contributions)
        for push in summed:
            self._pushed[push.storage].assign_add(tf.size(push.ids, tf.int64))
        return self._home.sum(summed)

    def read_rows(self, storage: Storage, start: int, stop: int) -> np.ndarray:
        """See `Home.read_rows`."""
        return self._home.read_rows(storage, start, stop)

    def assign_rows(self, storage: Storage, start: int, rows: np.ndarray) -> None:
        """See `Home.assign_rows`."""
        self._home.assign_rows(storage, start, rows)

    def writes(self, partition: int) -> bool:
        """See `Home.writes`."""
        return self._home.writes(partition)

    def touched(self, storage: Storage) -> int | None:
        """See `Home.touched`."""
        return self._home.touched(storage)

    def pushed_for_machine(self, storage: Storage) -> int | None:
        """See `Home.pushed_for_machine`."""
        return int(self._pushed[storage])

    def destroy(self, storage: Storage) -> None:
        """See `Home.destroy`."""
        del self._pushed[storage]
        self._home.destroy(storage)

    def close(self) -> None:
        """See `Home.close`."""
        self._home.close()
