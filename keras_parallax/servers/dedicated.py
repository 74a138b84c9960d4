"""Partitions on TensorFlow server processes, updated synchronously.

A step's push, for each server: every worker puts its places and summed gradients
into a queue on the server; one worker, the server's *runner*, takes as many
contributions as there are workers, sums them by row, runs the updates, and puts
a token for each worker into a second queue; every worker waits for its token.
All of it is ops on the server's device, so the runner sends nothing that the
others do not. Tokens are what keeps a fast worker's next pull from overtaking
a slow worker's push.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.meter import Meter, size_bytes
from keras_parallax.collectives.wire import Wire
from keras_parallax.servers.home import (
    Home,
    Pull,
    Push,
    fill_partitions,
    partitioning_of,
    sum_by_row,
)
from keras_parallax.servers.parcels import (
    pack_places,
    pack_values,
    unpack_places,
    unpack_values,
)
from keras_parallax.servers.storage import Storage, TableSpec


class DedicatedHome(Home):
    """Keeps partitions on server processes that all workers are connected to.

    Args:
        job: This worker's place in the job.
        devices: One device of each server.
        wire: The form in which rows and gradients travel.
        meter: Counts what goes to servers and comes from them.
        on_machine: Whether each server is on this worker's machine.
    """

    name = "dedicated"

    def __init__(
        self,
        job: Job,
        devices: tuple[str, ...],
        wire: Wire,
        meter: Meter,
        on_machine: Sequence[bool],
    ):
        self.devices = devices
        self._job = job
        self._wire = wire
        self._meter = meter
        self._on_machine = list(on_machine)
        self._meetings: dict[str, _Meeting] = {}
        self._asked: list[tf.Tensor] = []

    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """See `Home.allocate`; the workers share the filling of partitions."""
        storage = self.open(spec)
        mine = [p for p in range(spec.num_partitions) if self._writes(p)]
        fill_partitions(storage, mine, constant, initial_rows)
        self._job.barrier()
        return storage

    def pull(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        """See `Home.pull`: one message to each server, one back."""
        self._asked = [request.ids for request in requests]
        splits = [partitioning_of(r.storage.spec).split(r.ids) for r in requests]
        parts = [[tf.constant(0)] * r.storage.spec.num_partitions for r in requests]
        for server in range(len(self.devices)):
            here = self._here(server, [r.storage for r in requests])
            if not here:
                continue
            places = [splits[r][0][p] for r, p in here]
            joined, sizes = pack_places(places)
            with tf.device(self.devices[server]):
                found = [
                    self._wire.encode(requests[r].storage.partitions[p].gather(place))
                    for (r, p), place in zip(
                        here,
                        unpack_places(joined, sizes, [p.dtype for p in places]),
                        strict=True,
                    )
                ]
                answer = pack_values(found)
            specs = [requests[r].storage.spec for r, _ in here]
            answer = [tf.identity(vector) for vector in answer]
            self._count(server, sent=[joined], received=answer)
            rows = unpack_values(
                answer,
                sizes,
                [spec.row_shape for spec in specs],
                [self._wire.type_of(spec.dtype) for spec in specs],
            )
            for (r, p), part, spec in zip(here, rows, specs, strict=True):
                parts[r][p] = self._wire.decode(part, spec.dtype)
        return [
            partitioning_of(request.storage.spec).merge(found, positions)
            for request, found, (_, positions) in zip(
                requests, parts, splits, strict=True
            )
        ]

    def push(self, contributions: Sequence[Push]) -> tf.Operation:
        """See `Home.push`: one message to each server, one token back."""
        done = []
        for server, parcel in self._parcels(contributions):
            device = self.devices[server]
            if self._job.size == 1:
                given = zip(parcel.places, parcel.gradients, strict=True)
                with tf.device(device):
                    done.append(run_updates(parcel.updates, given))
                continue
            meeting = _Meeting(self._job, device, server, parcel.specs, self._wire)
            self._meetings[meeting.name] = meeting
            arrived = meeting.arrive(parcel.places, parcel.gradients)
            self._count_push(server, parcel)
            if server % self._job.size == self._job.rank:
                with tf.control_dependencies([arrived]):
                    collected = meeting.collect()
                with tf.device(device):
                    updated = run_updates(parcel.updates, collected)
                with tf.control_dependencies([updated]):
                    arrived = meeting.release()
            with tf.control_dependencies([arrived]):
                done.append(meeting.leave())
        return tf.group(*done)

    def _parcels(self, contributions: Sequence[Push]) -> Iterator[tuple[int, _Parcel]]:
        """What goes to each server that gets anything."""
        splits = [partitioning_of(c.storage.spec).split(c.ids) for c in contributions]
        for server in range(len(self.devices)):
            here = self._here(server, [c.storage for c in contributions])
            if here:
                yield (
                    server,
                    _Parcel(
                        specs=[contributions[c].storage.spec for c, _ in here],
                        places=[splits[c][0][p] for c, p in here],
                        news=[
                            splits[c][0][p]
                            for c, p in here
                            if not any(
                                contributions[c].ids is ids for ids in self._asked
                            )
                        ],
                        gradients=[
                            contributions[c].gradients
                            if contributions[c].storage.spec.num_partitions == 1
                            else tf.gather(contributions[c].gradients, splits[c][1][p])
                            for c, p in here
                        ],
                        updates=[(contributions[c].update, p) for c, p in here],
                    ),
                )

    def close(self) -> None:
        """See `Home.close`; a worker that still waits for this one is told."""
        for meeting in self._meetings.values():
            meeting.close()
        self._meetings.clear()

    def _count_push(self, server: int, parcel: _Parcel) -> None:
        encoded = [self._wire.encode(gradient) for gradient in parcel.gradients]
        # Places that the pull has sent are there: TensorFlow sends a tensor once.
        self._count(server, sent=[*parcel.news, *encoded])

    def _count(
        self,
        server: int,
        sent: Sequence[tf.Tensor],
        received: Sequence[tf.Tensor] = (),
    ) -> None:
        zero = tf.constant(0, tf.int64)
        both = [
            tf.add_n([zero, *map(size_bytes, tensors)]) for tensors in (sent, received)
        ]
        off_machine = [zero, zero] if self._on_machine[server] else both
        self._meter.count(*both, *off_machine)

    def _here(self, server: int, storages: Sequence[Storage]) -> list[tuple[int, int]]:
        """(table, partition) pairs whose rows are on `server`, in a fixed order."""
        return [
            (index, p)
            for index, storage in enumerate(storages)
            for p in range(storage.spec.num_partitions)
            if self.server_of(p, storage.spec) == server
        ]

    def _writes(self, partition: int) -> bool:
        return partition % self._job.size == self._job.rank


@dataclasses.dataclass(frozen=True, eq=False)
class _Parcel:
    """What a push has for one server: an entry for each partition there, and of
    `news` for each whose places the server does not have from the pull."""

    specs: list[TableSpec]
    places: list[tf.Tensor]
    news: list[tf.Tensor]
    gradients: list[tf.Tensor]
    updates: list[tuple]


def run_updates(updates: Sequence[tuple], given: Iterable[tuple]) -> tf.Operation:
    """Runs each `(update, partition)` on its places and gradients."""
    return tf.group(
        *(
            update(partition, places, gradients)
            for (update, partition), (places, gradients) in zip(
                updates, given, strict=True
            )
        )
    )


class _Meeting:
    """Where the workers' contributions to one server come together.

    Args:
        job: This worker's place in the job.
        device: The server's.
        server: Its index.
        specs: Of the tables that are pushed together, one for each partition. The
            first names the queues, which are the same for every worker.
        wire: The form in which gradients travel.
    """

    def __init__(
        self,
        job: Job,
        device: str,
        server: int,
        specs: Sequence[TableSpec],
        wire: Wire,
    ):
        self._size = job.size
        self._device = device
        self._specs = specs
        self._wire = wire
        self._single = len(specs) == 1
        wide = any(spec.id_dtype == tf.int64 for spec in specs)
        self._types = [
            tf.int64 if wide else tf.int32,
            *([] if self._single else [tf.int32]),
            *dict.fromkeys(wire.type_of(spec.dtype) for spec in specs),
        ]
        self.name = name = f"keras_parallax/{specs[0].name}/{server}/{len(specs)}"
        with tf.init_scope(), tf.device(device):
            self._contributions = tf.raw_ops.FIFOQueueV2(
                component_types=self._types,
                shared_name=f"{name}/contributions",
                capacity=2 * job.size,
            )
            self._tokens = tf.raw_ops.FIFOQueueV2(
                component_types=[tf.int32],
                shapes=[[]],
                shared_name=f"{name}/tokens",
                capacity=2 * job.size,
            )

    def arrive(
        self, places: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
    ) -> tf.Operation:
        """Hands in this worker's contribution."""
        joined, sizes = pack_places(places)
        components = [joined, *([] if sizes is None else [sizes])]
        components += pack_values([self._wire.encode(g) for g in gradients])
        with tf.device(self._device):
            return tf.raw_ops.QueueEnqueueV2(
                handle=self._contributions, components=components
            )

    def collect(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Places and gradients of each table, summed over the workers by row."""
        everyone = []
        earlier: list[tf.Tensor] = []
        with tf.device(self._device):
            for _ in range(self._size):
                with tf.control_dependencies(earlier):
                    taken = tf.raw_ops.QueueDequeueV2(
                        handle=self._contributions, component_types=self._types
                    )
                earlier = [taken[0]]
                everyone.append(self._unpack(taken))
            return [
                sum_by_row(
                    tf.concat([place for place, _ in parts], 0),
                    tf.concat([gradient for _, gradient in parts], 0),
                )
                for parts in zip(*everyone, strict=True)
            ]

    def _unpack(self, taken: Sequence[tf.Tensor]) -> list[tuple]:
        joined = tf.ensure_shape(taken[0], (None,))
        sizes = None if self._single else tf.ensure_shape(taken[1], len(self._specs))
        places = unpack_places(joined, sizes, [s.id_dtype for s in self._specs])
        gradients = unpack_values(
            taken[1 if self._single else 2 :],
            sizes,
            [s.row_shape for s in self._specs],
            [self._wire.type_of(s.dtype) for s in self._specs],
        )
        decoded = [
            self._wire.decode(gradient, spec.dtype)
            for gradient, spec in zip(gradients, self._specs, strict=True)
        ]
        return list(zip(places, decoded, strict=True))

    def release(self) -> tf.Operation:
        """Lets every worker go on."""
        with tf.device(self._device):
            return tf.raw_ops.QueueEnqueueManyV2(
                handle=self._tokens, components=[tf.zeros([self._size], tf.int32)]
            )

    def leave(self) -> tf.Tensor:
        """Waits until the rows are updated."""
        with tf.device(self._device):
            return tf.raw_ops.QueueDequeueV2(
                handle=self._tokens, component_types=[tf.int32]
            )[0]

    def close(self) -> None:
        """Ends the meetings: whoever waits in one, or comes to one, gets an error."""
        with tf.device(self._device):
            for queue in (self._contributions, self._tokens):
                # Closes a queue that is closed already, too.
                tf.raw_ops.QueueCloseV2(handle=queue, cancel_pending_enqueues=True)
                # Fetched, so that it has happened: the process may end right after.
                tf.raw_ops.QueueIsClosedV2(handle=queue).numpy()
