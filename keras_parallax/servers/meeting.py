"""Where the workers' contributions to one server come together in a step.

Every worker puts its contribution into a queue on the server and waits for a token
in a queue of its own. One worker, the server's *runner*, takes as many contributions
as there are workers, sums them by row, has the rows updated, and gives everyone a
token. Tokens are what keeps a fast worker's next pull from overtaking a slow
worker's push. Where the sums' squares are asked for, the runner hands them to
everyone before the update, by one more queue for each worker. All of it is operations
on the server's device, so the runner sends nothing that the others do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.collectives.wire import Wire
from keras_parallax.servers.home import sum_by_row
from keras_parallax.servers.parcels import (
    pack_places,
    pack_values,
    unpack_places,
    unpack_values,
)
from keras_parallax.servers.storage import TableSpec
from keras_parallax.servers.sums import Sums, sum_of_squares, times

# `(places, summed gradients) of each partition -> op`.
Updates = Callable[[Sequence[tuple[tf.Tensor, tf.Tensor]]], tf.Operation]


class Meeting:
    """The workers' contributions to one server, taken together.

    Args:
        job: This worker's place in the job.
        device: The server's.
        server: Its index.
        specs: Of the tables that are pushed together, one for each partition. The
            first names the queues, which are the same for every worker.
        wire: The form in which gradients travel.

    Attributes:
        device: The server's.
    """

    def __init__(
        self,
        job: Job,
        device: str,
        server: int,
        specs: Sequence[TableSpec],
        wire: Wire,
    ):
        self._job = job
        self.device = device
        self._specs = specs
        self._wire = wire
        self._single = len(specs) == 1
        wide = any(spec.id_dtype == tf.int64 for spec in specs)
        self._types = [
            tf.int64 if wide else tf.int32,
            *([] if self._single else [tf.int32]),
            *dict.fromkeys(wire.type_of(spec.dtype) for spec in specs),
        ]
        self._runs_here = server % job.size == job.rank
        self.name = f"keras_parallax/{specs[0].name}/{server}/{len(specs)}"

    def attend(
        self,
        places: Sequence[tf.Tensor],
        gradients: Sequence[tf.Tensor],
        updates: Updates,
    ) -> MeetingSums:
        """Hands in this worker's contribution.

        Args:
            places: In each partition of the server, `(n,)`.
            gradients: Of its rows, `(n, *row_shape)`.
            updates: Runs with what all workers have handed in, on one of them.

        Returns:
            The sums, an entry for each partition.
        """
        joined, sizes = pack_places(places)
        sent = [joined, *([] if sizes is None else [sizes])]
        sent += pack_values([self._wire.encode(gradient) for gradient in gradients])
        collected = None
        with tf.device(self.device):
            arrived = tf.raw_ops.QueueEnqueueV2(
                handle=self._contributions(), components=sent
            )
            if self._runs_here:
                with tf.control_dependencies([arrived]):
                    collected = self._collect()
        return MeetingSums(self, arrived, collected, updates)

    def tell_squares(self, squares: tf.Tensor) -> tf.Operation:
        """Hands them to every worker; called by the runner."""
        return tf.group(
            *(
                tf.raw_ops.QueueEnqueueV2(
                    handle=self._squares(rank), components=[squares]
                )
                for rank in range(self._job.size)
            )
        )

    def hear_squares(self) -> tf.Tensor:
        """What `tell_squares` was given, `(number of partitions,)`."""
        with tf.device(self.device):
            (heard,) = tf.raw_ops.QueueDequeueV2(
                handle=self._squares(self._job.rank), component_types=[tf.float64]
            )
        return heard

    def wait_for_update(self) -> tf.Tensor:
        """What ends when the runner has released this worker."""
        with tf.device(self.device):
            return tf.raw_ops.QueueDequeueV2(
                handle=self._tokens(self._job.rank), component_types=[tf.int32]
            )[0]

    def close(self) -> None:
        """Ends the meetings: whoever waits in one, or comes to one, gets an error."""
        with tf.device(self.device):
            everyone = range(self._job.size)
            for queue in (
                self._contributions(),
                *map(self._squares, everyone),
                *map(self._tokens, everyone),
            ):
                # Closes a queue that is closed already, too.
                tf.raw_ops.QueueCloseV2(handle=queue, cancel_pending_enqueues=True)
                # Fetched, so that it has happened: the process may end right after.
                tf.raw_ops.QueueIsClosedV2(handle=queue).numpy()

    def _contributions(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=self._types,
            shared_name=f"{self.name}/contributions",
            capacity=2 * self._job.size,
        )

    def _tokens(self, rank: int) -> tf.Tensor:
        # A queue for each: a worker that is quick could take the token of another.
        return tf.raw_ops.FIFOQueueV2(
            component_types=[tf.int32],
            shapes=[[]],
            shared_name=f"{self.name}/tokens/{rank}",
            capacity=2,
        )

    def _squares(self, rank: int) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=[tf.float64],
            shapes=[[len(self._specs)]],
            shared_name=f"{self.name}/squares/{rank}",
            capacity=2,
        )

    def _collect(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Places and gradients of each partition, summed over the workers by row."""
        everyone = []
        queue = self._contributions()
        for _ in range(self._job.size):
            taken = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._types)
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
        """Lets every worker go on; called by the runner."""
        return tf.group(
            *(
                tf.raw_ops.QueueEnqueueV2(
                    handle=self._tokens(rank), components=[tf.constant(0)]
                )
                for rank in range(self._job.size)
            )
        )


class MeetingSums(Sums):
    """What a meeting has summed up.

    Args:
        meeting: The meeting.
        arrived: Ends when this worker's contribution is there.
        collected: Places and sums of each partition, on the runner.
        updates: Runs with them.
    """

    def __init__(
        self,
        meeting: Meeting,
        arrived: tf.Operation,
        collected: list[tuple[tf.Tensor, tf.Tensor]] | None,
        updates: Updates,
    ):
        self._meeting = meeting
        self._arrived = arrived
        self._collected = collected
        self._updates = updates

    def squares(self) -> tf.Tensor:
        """See `Sums.squares`; of each partition."""
        if self._collected is not None:
            with tf.device(self._meeting.device):
                mine = [sum_of_squares(total) for _, total in self._collected]
                self._arrived = self._meeting.tell_squares(tf.stack(mine))
        with tf.control_dependencies([self._arrived]):
            return self._meeting.hear_squares()

    def update(self, factors: tf.Tensor | None = None) -> tf.Operation:
        """See `Sums.update`; the runner's factors are everyone's."""
        if self._collected is not None:
            with tf.device(self._meeting.device):
                updated = self._updates(self._scaled(factors))
                with tf.control_dependencies([updated]):
                    self._arrived = self._meeting.release()
        with tf.control_dependencies([self._arrived]):
            return self._meeting.wait_for_update()

    def _scaled(self, factors: tf.Tensor | None) -> list[tuple[tf.Tensor, tf.Tensor]]:
        collected = self._collected or []
        if factors is None:
            return collected
        return [
            (places, times(total, factor))
            for (places, total), factor in zip(
                collected, tf.unstack(factors, len(collected)), strict=True
            )
        ]
