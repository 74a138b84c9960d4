"""Each worker speaks with the server beside it, and for the other workers, too.

Where there are as many servers as workers, each on the machine of one, ids travel to
the worker beside the server that has the rows, by all-to-all, and rows and gradients
by the same way. That worker asks its server for what all of them want and gives it
the sum of their gradients. The same bytes cross the network as if every worker spoke
with every server; but of TensorFlow's messages, of which each costs as much time as
hundreds of rows, there are as many as workers, not as many as pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.exchange import Group
from keras_parallax.collectives.meter import Meter
from keras_parallax.collectives.reduce import reduced
from keras_parallax.collectives.wire import Wire
from keras_parallax.servers.home import Pull, Push
from keras_parallax.servers.storage import TableSpec
from keras_parallax.servers.waves import Waves

Ask = Callable[[Sequence[Pull]], list[tf.Tensor]]


class Relay:
    """The exchange among workers in front of the servers beside them.

    Args:
        group: All workers.
        beside: Rank of the worker beside each server.
        wire: The form in which rows and gradients travel.
    """

    def __init__(self, group: Group, beside: Sequence[int], wire: Wire):
        self.servers = [s for s, rank in enumerate(beside) if rank == group.index]
        self._group = group
        self._beside = list(beside)
        self._wire = wire
        self._waves = Waves(group, self._owners)
        self._last_told = tf.Variable(0, dtype=tf.int64, trainable=False)

    @classmethod
    def between(
        cls, job: Job, on_machine: Sequence[bool], wire: Wire, meter: Meter
    ) -> Relay | None:
        """The relay of a job; None where not each worker has a server beside it.

        Every worker calls it.

        Args:
            job: This worker's place in the job.
            on_machine: Whether each server is on this worker's machine.
            wire: The form in which rows and gradients travel.
            meter: Counts what goes to other workers and comes from them.
        """
        if job.size == 1 or job.size != len(on_machine):
            return None
        reached = job.gather(list(on_machine))
        beside: list[int] = []
        for server in range(job.size):
            free = [r for r in range(job.size) if reached[r][server]]
            free = [r for r in free if r not in beside]
            if not free:
                return None
            beside.append(free[0])
        machines = [row.index(True) for row in reached]
        here = tuple(machine == machines[job.rank] for machine in machines)
        group = Group("relay", job.size, job.rank, here, meter)
        return cls(group, beside, wire)

    def pull(self, requests: Sequence[Pull], ask: Ask) -> list[tf.Tensor]:
        """Rows for this worker.

        Args:
            requests: What it wants.
            ask: Asks the servers beside it for what all workers want of them.
        """
        wave = self._waves.send(requests)
        rows = iter(ask([Pull(storage, ids) for storage, ids, _ in wave.unions]))
        wanted = iter(wave.unions)
        answers: list[tf.Tensor] = [tf.constant(0)] * len(requests)
        for batch in wave.batches:
            mine = [
                tf.gather(self._wire.encode(next(rows)), next(wanted)[2])
                for _ in batch.storages
            ]
            for index, found in zip(batch.indices, batch.reply(mine), strict=True):
                dtype = requests[index].storage.spec.dtype
                answers[index] = self._wire.decode(found, dtype)
        return answers

    def sum(self, contributions: Sequence[Push]) -> list[Push]:
        """What all workers contribute to the rows on the servers beside this one.

        Args:
            contributions: This worker's.
        """
        return self._waves.of(contributions).sum(contributions, self._wire)

    def when_everyone_is_done(self, told: Sequence[tf.Tensor]) -> tf.Tensor:
        """What is there when the rows on all servers are updated.

        Args:
            told: A number that each server beside this worker tells when its rows are.
        """
        # What is reduced has to come from the servers: TensorFlow's optimizer takes a
        # constant that only waits for something, and no longer waits.
        done = tf.add_n([tf.constant(0, tf.int64), *told])
        everyone = reduced(done[None], "relay_end", largest=True)
        # Kept, so that TensorFlow does not drop it where nothing comes after.
        return self._last_told.assign(everyone[0])

    def _owners(self, ids: tf.Tensor, spec: TableSpec) -> tf.Tensor:
        partition = tf.cast(tf.math.floormod(ids, spec.num_partitions), tf.int32)
        server = tf.math.floormod(partition + spec.first_home, self._group.size)
        return tf.gather(tf.constant(self._beside), server)
