"""Partitions on servers, each worker's push applied as it comes.

No worker waits for another's push; a lock on each server keeps two pushes from
reading the same rows before either has written them. With a bound on staleness a
worker that is too far ahead waits at the start of its step (stale synchronous
parallel: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
Parameter Server", NIPS 2013).
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.meter import Meter
from keras_parallax.collectives.wire import Wire
from keras_parallax.servers.dedicated import DedicatedHome, run_updates
from keras_parallax.servers.home import Push
from keras_parallax.servers.numbers import Numbers
from keras_parallax.servers.roll_call import RollCall
from keras_parallax.servers.sums import Sums, SumsHere


class AsynchronousHome(DedicatedHome):
    """Applies pushes one by one.

    Args:
        job: This worker's place in the job.
        devices: One device of each server.
        wire: The form in which rows and gradients travel.
        meter: Counts what goes to servers and comes from them.
        on_machine: Whether each server is on this worker's machine.
        max_staleness: How many steps a worker may be ahead of the slowest; None for
            any number.
    """

    is_synchronous = False

    def __init__(
        self,
        job: Job,
        devices: tuple[str, ...],
        wire: Wire,
        meter: Meter,
        on_machine: Sequence[bool],
        max_staleness: int | None,
    ):
        super().__init__(job, devices, wire, meter, on_machine)
        self._locks = [
            Permissions(device, f"keras_parallax/lock/{server}")
            for server, device in enumerate(devices)
        ]
        if job.rank == 0:
            for lock in self._locks:
                lock.give_at_first(1)
        job.barrier()
        self.clock = None
        if job.size > 1 and max_staleness is not None:
            self.clock = Clock(job, devices[0], max_staleness)
        self._roll_call = None
        if job.size > 1 and job.call_roll is None:
            is_held = self.clock.is_held if self.clock else lambda rank: False
            job.call_roll = self._roll_call = RollCall(job, devices[0], is_held)

    def sum(self, contributions: Sequence[Push]) -> Sums:
        """See `Home.sum`; with this worker's gradients alone."""
        return SumsHere(contributions, self._update)

    def _update(self, contributions: Sequence[Push]) -> tf.Operation:
        done = []
        for server, parcel in self._parcels(contributions):
            self._count_push(server, parcel)
            with tf.device(self.devices[server]):
                gradients = [
                    self._wire.decode(self._wire.encode(g), g.dtype)
                    for g in parcel.gradients
                ]
                # Held for no longer than it takes: what is sent has arrived.
                with tf.control_dependencies([*parcel.places, *gradients]):
                    held = self._locks[server].take()
                with tf.control_dependencies([held]):
                    places = [tf.identity(place) for place in parcel.places]
                updated = run_updates(
                    parcel.updates, zip(places, gradients, strict=True)
                )
            with tf.control_dependencies([updated]):
                done.append(self._locks[server].give())
        return tf.group(*done)

    def begin_step(self) -> tf.Operation | None:
        """See `Home.begin_step`."""
        return None if self.clock is None else self.clock.begin()

    def end_step(self, after: Sequence[tf.Operation]) -> None:
        """See `Home.end_step`."""
        if self.clock is not None:
            self.clock.end(after)

    def close(self) -> None:
        """See `Home.close`; nobody waits any more for this worker."""
        super().close()
        if self._roll_call is not None:
            self._roll_call.leave()
        if self.clock is not None:
            self.clock.leave()


class Clock:
    """Lets no worker run more than some steps ahead of the slowest.

    For each pair of workers there is a queue of permissions. A worker takes one
    from each other worker's queue when it begins a step, and puts one into its
    queues to each other worker when it ends one; at first each queue holds as many
    as a worker may be ahead.

    Args:
        job: This worker's place in the job.
        device: Device of the server that keeps the queues.
        max_staleness: How many steps a worker may be ahead of the slowest.
    """

    _made = 0

    def __init__(self, job: Job, device: str, max_staleness: int):
        Clock._made += 1
        name = f"keras_parallax/clock/{Clock._made}"
        self._device = device
        self._rank = job.rank
        self._max_staleness = max_staleness
        others = [r for r in range(job.size) if r != job.rank]
        self._from = {r: Permissions(device, f"{name}/{r}-{job.rank}") for r in others}
        self._to = [Permissions(device, f"{name}/{job.rank}-{r}") for r in others]
        # Of each worker: steps taken; whether it is about to begin one; to have left.
        self._steps, self._waiting, self._left = (
            Numbers(device, f"{name}/{what}", job)
            for what in ("steps", "waiting", "left")
        )
        for permissions in self._to:
            permissions.give_at_first(max_staleness)
        self._ended = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._max_lead = tf.Variable(0, dtype=tf.int64, trainable=False)
        job.barrier()

    @property
    def max_lead_steps(self) -> int:
        """The most that this worker was seen ahead of the slowest, at the beginning
        of a step."""
        return int(self._max_lead.numpy())

    def begin(self) -> tf.Operation:
        """Waits, in the graph, until this worker may begin its next step."""
        with tf.device(self._device):
            with tf.control_dependencies([self._waiting.set_mine(1)]):
                taken = {r: given.take() for r, given in self._from.items()}
            with tf.control_dependencies(list(taken.values())):
                left = self._left.read()
                # One who has left gives no more: its last permission is for ever.
                kept = [given.give(left[r]) for r, given in self._from.items()]
                allowed = [self._waiting.set_mine(0), *kept]
                steps = self._steps.read()
        slowest = tf.reduce_min(tf.where(left > 0, steps.dtype.max, steps))
        lead = steps[self._rank] - slowest
        noted = self._max_lead.assign(tf.maximum(self._max_lead, lead))
        with tf.control_dependencies([*allowed, noted]):
            return tf.no_op()

    def end(self, after: Sequence[tf.Operation]) -> None:
        """Lets the others go on, in the graph, when `after` have happened."""
        with tf.control_dependencies(after), tf.device(self._device):
            with tf.control_dependencies([self._steps.add_to_mine(1)]):
                given = [permissions.give() for permissions in self._to]
            with tf.control_dependencies(given):
                done = tf.ones([], tf.int64)
        # The step ends on this worker when this has come back from the server.
        self._ended.assign_add(done)

    def is_held(self, rank: int) -> bool:
        """Whether a worker waits, in its step, for this one to take another; asked
        outside the graph."""
        with tf.init_scope():
            # In this order: it may have begun a step between the two.
            steps = self._steps.read().numpy()
            waiting = self._waiting.read().numpy()
        ahead = steps[rank] - steps[self._rank]
        return bool(waiting[rank]) and ahead >= self._max_staleness

    def leave(self) -> None:
        """Lets the others go on without this worker, outside the graph."""
        with tf.init_scope():
            self._left.set_mine(1)
            self._left.read().numpy()
            for permissions in self._to:
                permissions.give_at_first(1)


class Permissions:
    """Permissions to go on, given and taken on a server, each once.

    A single one makes a lock. (TensorFlow's own mutex is held for as long as a tensor
    lives, which may be until the worker's next step.)

    Args:
        device: Device of the server.
        name: The same for every worker that gives or takes.
    """

    def __init__(self, device: str, name: str):
        self._device = device
        with tf.init_scope(), tf.device(device):
            self._queue = tf.raw_ops.FIFOQueueV2(
                component_types=[tf.int32], shapes=[[]], shared_name=name
            )

    def give_at_first(self, count: int) -> None:
        """Gives some, outside the graph."""
        with tf.init_scope(), tf.device(self._device):
            tf.raw_ops.QueueEnqueueManyV2(
                handle=self._queue, components=[tf.zeros([count], tf.int32)]
            )
            # The value fetched is the proof that it has happened.
            tf.raw_ops.QueueSizeV2(handle=self._queue).numpy()

    def give(self, count: tf.Tensor | int = 1) -> tf.Operation:
        """Gives some, in the graph."""
        with tf.device(self._device):
            return tf.raw_ops.QueueEnqueueManyV2(
                handle=self._queue, components=[tf.zeros([count], tf.int32)]
            )

    def take(self) -> tf.Tensor:
        """Waits for one, in the graph."""
        with tf.device(self._device):
            return tf.raw_ops.QueueDequeueV2(
                handle=self._queue, component_types=[tf.int32]
            )[0]
