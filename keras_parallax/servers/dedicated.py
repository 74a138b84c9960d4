"""Partitions on TensorFlow server processes, updated synchronously.

A step's push, for each partition: every worker puts its ids and summed
gradients into a queue on the server; one worker, the partition's *runner*, takes
as many contributions as there are workers, sums them, runs the update, and puts
a token for each worker into a second queue; every worker waits for its token.
All of it is ops on the server's device, so the runner sends nothing that the
others do not. Tokens are what keeps a fast worker's next pull from overtaking
a slow worker's push.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.servers.home import (
    Home,
    Update,
    fill_partitions,
    partitioning_of,
)
from keras_parallax.servers.storage import Storage, TableSpec


class DedicatedHome(Home):
    """Keeps partitions on server processes that all workers are connected to.

    Args:
        job: This worker's place in the job.
        devices: One device of each server.
    """

    name = "dedicated"

    def __init__(self, job: Job, devices: tuple[str, ...]):
        self.devices = devices
        self._job = job
        self._queues: dict[str, list[_Meeting]] = {}

    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """See `Home.allocate`; workers fill the partitions that they run."""
        storage = self.open(spec)
        mine = [
            p for p in range(spec.num_partitions) if self._runner(p) == self._job.rank
        ]
        fill_partitions(storage, mine, constant, initial_rows)
        self._job.barrier()
        if self._job.size > 1:
            self._queues[spec.name] = [
                _Meeting(self._job, self.device_of(p), f"{spec.name}/{p}", spec)
                for p in range(spec.num_partitions)
            ]
        return storage

    def push(
        self,
        storage: Storage,
        unique_ids: tf.Tensor,
        summed_gradients: tf.Tensor,
        update: Update,
    ) -> tf.Operation:
        """See `Home.push`."""
        spec = storage.spec
        places, positions = partitioning_of(spec).split(unique_ids)
        done = []
        for p in range(spec.num_partitions):
            gradients = summed_gradients
            if spec.num_partitions > 1:
                gradients = tf.gather(summed_gradients, positions[p])
            with tf.device(self.device_of(p)):
                if self._job.size == 1:
                    done.append(update(p, places[p], gradients))
                    continue
                meeting = self._queues[spec.name][p]
                arrived = meeting.arrive(places[p], gradients)
                if self._runner(p) == self._job.rank:
                    with tf.control_dependencies([arrived]):
                        updated = update(p, *meeting.collect())
                    with tf.control_dependencies([updated]):
                        arrived = meeting.release()
                with tf.control_dependencies([arrived]):
                    done.append(meeting.leave())
        return tf.group(*done)

    def _runner(self, partition: int) -> int:
        """Worker that runs the update of `partition`; spread over the workers."""
        return partition % self._job.size


class _Meeting:
    """Where the workers' contributions to one partition come together.

    Args:
        job: This worker's place in the job.
        device: The server's.
        name: Name of the partition; every worker opens the same queues by it.
        spec: The table's.
    """

    def __init__(self, job: Job, device: str, name: str, spec: TableSpec):
        self._size = job.size
        self._spec = spec
        with tf.init_scope(), tf.device(device):
            self._contributions = tf.raw_ops.FIFOQueueV2(
                component_types=[spec.id_dtype, spec.dtype],
                shared_name=f"keras_parallax/{name}/contributions",
                capacity=2 * job.size,
            )
            self._tokens = tf.raw_ops.FIFOQueueV2(
                component_types=[tf.int32],
                shapes=[[]],
                shared_name=f"keras_parallax/{name}/tokens",
                capacity=2 * job.size,
            )

    def arrive(self, places: tf.Tensor, gradients: tf.Tensor) -> tf.Operation:
        """Hands in this worker's contribution."""
        return tf.raw_ops.QueueEnqueueV2(
            handle=self._contributions, components=[places, gradients]
        )

    def collect(self) -> tuple[tf.Tensor, tf.Tensor]:
        """All workers' contributions, summed by row."""
        every_place, every_gradient = [], []
        earlier: list[tf.Tensor] = []
        for _ in range(self._size):
            with tf.control_dependencies(earlier):
                place, gradient = tf.raw_ops.QueueDequeueV2(
                    handle=self._contributions,
                    component_types=[self._spec.id_dtype, self._spec.dtype],
                )
            earlier = [place]
            every_place.append(tf.reshape(place, [-1]))
            every_gradient.append(
                tf.reshape(gradient, (-1, *self._spec.row_shape))
            )
        places, slots = tf.unique(tf.concat(every_place, 0))
        gradients = tf.math.unsorted_segment_sum(
            tf.concat(every_gradient, 0), slots, tf.size(places)
        )
        return places, gradients

    def release(self) -> tf.Operation:
        """Lets every worker go on."""
        return tf.raw_ops.QueueEnqueueManyV2(
            handle=self._tokens, components=[tf.zeros([self._size], tf.int32)]
        )

    def leave(self) -> tf.Tensor:
        """Waits until the rows are updated."""
        return tf.raw_ops.QueueDequeueV2(
            handle=self._tokens, component_types=[tf.int32]
        )[0]
