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

    def push(self, contributions: Sequence[Push]) -> tf.Operation:
        """See `Home.push`; with this worker's gradients alone."""
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
        others = [r for r in range(job.size) if r != job.rank]
        self._from = [Permissions(device, f"{name}/{r}-{job.rank}") for r in others]
        self._to = [Permissions(device, f"{name}/{job.rank}-{r}") for r in others]
        with tf.init_scope(), tf.device(device):
            self._steps = tf.raw_ops.VarHandleOp(
                shared_name=f"{name}/steps", dtype=tf.int64, shape=[job.size]
            )
            if job.rank == 0:
                zeros = tf.zeros([job.size], tf.int64)
                tf.raw_ops.AssignVariableOp(resource=self._steps, value=zeros)
                # The value fetched is the proof that it has happened.
                tf.raw_ops.ReadVariableOp(resource=self._steps, dtype=tf.int64).numpy()
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
            allowed = [permissions.take() for permissions in self._from]
            with tf.control_dependencies(allowed):
                steps = tf.raw_ops.ReadVariableOp(resource=self._steps, dtype=tf.int64)
        lead = steps[self._rank] - tf.reduce_min(steps)
        noted = self._max_lead.assign(tf.maximum(self._max_lead, lead))
        with tf.control_dependencies([*allowed, noted]):
            return tf.no_op()

    def end(self, after: Sequence[tf.Operation]) -> None:
        """Lets the others go on, in the graph, when `after` have happened."""
        with tf.control_dependencies(after), tf.device(self._device):
            counted = tf.raw_ops.ResourceScatterAdd(
                resource=self._steps,
                indices=[self._rank],
                updates=tf.ones([1], tf.int64),
            )
            with tf.control_dependencies([counted]):
                given = [permissions.give() for permissions in self._to]
            with tf.control_dependencies(given):
                done = tf.ones([], tf.int64)
        # The step ends on this worker when this has come back from the server.
        self._ended.assign_add(done)


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

    def give(self) -> tf.Operation:
        """Gives one, in the graph."""
        with tf.device(self._device):
            return tf.raw_ops.QueueEnqueueV2(
                handle=self._queue, components=[tf.constant(0)]
            )

    def take(self) -> tf.Tensor:
        """Waits for one, in the graph."""
        with tf.device(self._device):
            return tf.raw_ops.QueueDequeueV2(
                handle=self._queue, component_types=[tf.int32]
            )[0]
