"""Partitions on TensorFlow server processes, updated synchronously.

A pull costs a message to each server and one back, however many tables there are,
for rows, and the same again for gradients. Each server has what all workers give it
put together (`meeting.py`). Where it is asked for, and each worker has a server beside
it, workers speak with their own server alone in training steps and with each other by
all-to-all (`relay.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.meter import Meter, size_bytes
from keras_parallax.collectives.noted import Noted
from keras_parallax.collectives.reduce import reduced
from keras_parallax.collectives.wire import Wire
from keras_parallax.servers.home import (
    Home,
    Pull,
    Push,
    fill_partitions,
    no_rows,
    partitioning_of,
)
from keras_parallax.servers.meeting import Meeting
from keras_parallax.servers.parcels import (
    pack_places,
    pack_values,
    unpack_places,
    unpack_values,
)
from keras_parallax.servers.relay import Relay
from keras_parallax.servers.remote import call, placed
from keras_parallax.servers.storage import Partition, Storage, TableSpec
from keras_parallax.servers.sums import JoinedSums, Sums, SumsHere


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
        self._meetings: dict[str, Meeting] = {}
        self._asked: Noted[tf.Tensor] = Noted()
        self._relay: Relay | None = None
        if self.is_synchronous:
            self._relay = Relay.between(job, on_machine, wire, meter)
        beside = range(len(devices)) if self._relay is None else self._relay.servers
        self.speaks_with = tuple(devices[server] for server in beside)
        # The graph of the training step that is being traced.
        self._step: tf.Graph | None = None

    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """See `Home.allocate`; the workers share the filling of partitions."""
        storage = self.open(spec)
        mine = [p for p in range(spec.num_partitions) if self.writes(p)]
        fill_partitions(storage, mine, constant, initial_rows)
        self._job.barrier()
        return storage

    def begin_step(self) -> tf.Operation | None:
        """See `Home.begin_step`."""
        if not tf.executing_eagerly():
            self._step = tf.compat.v1.get_default_graph()
        return None

    def end_step(self, after: Sequence[tf.Operation]) -> None:
        """See `Home.end_step`."""
        del after
        self._step = None

    def _in_turn(self) -> Relay | None:
        """The relay, where all workers are sure to come along: in a training step,
        but not in its loops and branches."""
        inside = self._step is not None and not tf.executing_eagerly()
        if inside and self._step is tf.compat.v1.get_default_graph():
            return self._relay
        return None

    def pull(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        """See `Home.pull`: one message to each server, one back."""
        relay = self._in_turn()
        if relay is not None:
            return relay.pull(requests, self._ask_beside)
        # A step may pull several times before it pushes.
        self._asked.note(*(request.ids for request in requests))
        return self._ask(requests, range(len(self.devices)), calls=False)

    def _ask_beside(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        relay = cast(Relay, self._relay)
        return self._ask(requests, relay.servers, calls=True)

    def _ask(
        self, requests: Sequence[Pull], servers: Iterable[int], calls: bool
    ) -> list[tf.Tensor]:
        """Rows that are on some servers; all that are asked for are there."""
        run = call if calls else placed
        splits = [partitioning_of(r.storage.spec).split(r.ids) for r in requests]
        parts = [
            [no_rows(place, request.storage.spec) for place in places]
            for request, (places, _) in zip(requests, splits, strict=True)
        ]
        for server in servers:
            here = self._here(server, [r.storage for r in requests])
            if not here:
                continue
            joined, sizes = pack_places([splits[r][0][p] for r, p in here])
            asked = [joined, *([] if sizes is None else [sizes])]
            partitions = [requests[r].storage.partitions[p] for r, p in here]
            specs = [requests[r].storage.spec for r, _ in here]
            look_up = functools.partial(self._look_up, partitions, specs, calls)
            answer = run(self.devices[server], look_up, asked)
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

    def _look_up(
        self,
        partitions: Sequence[Partition],
        specs: Sequence[TableSpec],
        called: bool,
        joined: tf.Tensor,
        sizes: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        """Runs on the server: the rows at some places of its partitions."""
        places = unpack_places(joined, sizes, [spec.id_dtype for spec in specs])
        if called:
            partitions = [partition.opened() for partition in partitions]
        return pack_values(
            [
                self._wire.encode(partition.gather(place))
                for partition, place in zip(partitions, places, strict=True)
            ]
        )

    def sum(self, contributions: Sequence[Push]) -> Sums:
        """See `Home.sum`: one message to each server."""
        relay = self._in_turn()
        if relay is not None:
            return SumsHere(
                relay.sum(contributions),
                functools.partial(self._update_beside, relay),
                lambda squares: reduced(squares, "squares"),
            )
        if self._job.size == 1:
            return SumsHere(contributions, self._update_alone)
        sums: list[tuple[Sums, list[int]]] = []
        for server, parcel in self._parcels(contributions):
            device = self.devices[server]
            meeting = Meeting(self._job, device, server, parcel.specs, self._wire)
            self._meetings[meeting.name] = meeting
            self._count_push(server, parcel)
            updates = functools.partial(run_updates, parcel.updates)
            sums.append(
                (
                    meeting.attend(parcel.places, parcel.gradients, updates),
                    parcel.indices,
                )
            )
        return JoinedSums(sums, len(contributions))

    def _update_alone(self, sums: Sequence[Push]) -> tf.Operation:
        return tf.group(
            *(self._give(server, parcel) for server, parcel in self._parcels(sums))
        )

    def _update_beside(self, relay: Relay, sums: Sequence[Push]) -> tf.Operation:
        return tf.group(relay.when_everyone_is_done(self._give_beside(sums)))

    def _give_beside(self, contributions: Sequence[Push]) -> list[tf.Tensor]:
        relay = cast(Relay, self._relay)
        done = []
        for server, parcel in self._parcels(contributions):
            if server in relay.servers:
                self._count(server, sent=[*parcel.places, *parcel.gradients])
                with tf.control_dependencies([self._give(server, parcel)]):
                    done.append(parcel.partitions[0].read_touched())
        return done

    def _give(self, server: int, parcel: _Parcel) -> tf.Operation:
        """Updates rows of one server with what this worker alone gives it."""
        joined, sizes = pack_places(parcel.places)
        vectors = pack_values(parcel.gradients)
        with tf.device(self.devices[server]):
            places = unpack_places(joined, sizes, [s.id_dtype for s in parcel.specs])
            gradients = unpack_values(
                vectors,
                sizes,
                [spec.row_shape for spec in parcel.specs],
                [spec.dtype for spec in parcel.specs],
            )
            return run_updates(parcel.updates, zip(places, gradients, strict=True))

    def _parcels(self, contributions: Sequence[Push]) -> Iterator[tuple[int, _Parcel]]:
        """What goes to each server that gets anything."""
        splits = [partitioning_of(c.storage.spec).split(c.ids) for c in contributions]
        asked = self._asked.here()
        for server in range(len(self.devices)):
            here = self._here(server, [c.storage for c in contributions])
            if here:
                yield (
                    server,
                    _Parcel(
                        indices=[c for c, _ in here],
                        specs=[contributions[c].storage.spec for c, _ in here],
                        places=[splits[c][0][p] for c, p in here],
                        news=[
                            splits[c][0][p]
                            for c, p in here
                            if not any(contributions[c].ids is ids for ids in asked)
                        ],
                        gradients=[
                            contributions[c].gradients
                            if contributions[c].storage.spec.num_partitions == 1
                            else tf.gather(contributions[c].gradients, splits[c][1][p])
                            for c, p in here
                        ],
                        updates=[(contributions[c].update, p) for c, p in here],
                        partitions=[
                            contributions[c].storage.partitions[p] for c, p in here
                        ],
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

    def writes(self, partition: int) -> bool:
        return partition % self._job.size == self._job.rank


@dataclasses.dataclass(frozen=True, eq=False)
class _Parcel:
    """What a push has for one server: an entry for each partition there, of `indices`
    the position of its table among the contributions, and of `news` only for each whose
    places the server does not have from the pull."""

    indices: list[int]
    specs: list[TableSpec]
    places: list[tf.Tensor]
    news: list[tf.Tensor]
    gradients: list[tf.Tensor]
    updates: list[tuple]
    partitions: list[Partition]


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
