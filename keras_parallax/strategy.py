"""`ParallaxStrategy`: what users construct."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.adaptation import Adaptation
from keras_parallax.cluster.job import Job
from keras_parallax.cluster.session import Session, use_gpu_of
from keras_parallax.cluster.topology import Topology, resolve
from keras_parallax.collectives.attendance import Attendance
from keras_parallax.collectives.dense import DenseRoad
from keras_parallax.collectives.spans import Spans
from keras_parallax.collectives.wire import Wire
from keras_parallax.extended import ParallaxExtended
from keras_parallax.plan.network import Network
from keras_parallax.plan.plan import Plan
from keras_parallax.plan.routing import Routing
from keras_parallax.plan.sparsity import Sparsity
from keras_parallax.plan.traffic import TableTraffic, Traffic
from keras_parallax.roads import ALLREDUCE
from keras_parallax.servers.choice import Manner, kind_of_home, settle, with_copies
from keras_parallax.tables import dispatch
from keras_parallax.tables.factory import TableFactory
from keras_parallax.tables.measured import note_time
from keras_parallax.tables.optimizer import TableOptimizer
from keras_parallax.tables.router import Router
from keras_parallax.tables.traffic import StepTraffic

logger = logging.getLogger("keras_parallax")

_numbers = itertools.count(1)


class ParallaxStrategy(tf.distribute.Strategy):
    """Trains stock Keras models with large embeddings on many workers.

    Gradients of dense variables are summed by all-reduce; variables whose rows are
    looked up become tables in partitions, whose gradients travel as the touched
    rows alone. After Kim et al., "Parallax: Sparsity-aware Data Parallel Training
    of Deep Neural Networks", EuroSys 2019.

    Make it first in the program, then build and compile the model in its scope:

    ```python
    import keras
    import keras_parallax as kp

    strategy = kp.ParallaxStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Embedding(10_000, 16), keras.layers.Flatten(),
             keras.layers.Dense(1)]
        )
        model.compile("adagrad", "mse")
    ```

    `python train.py` trains with one worker; `keras-parallax run -np 4 -- python
    train.py`, `horovodrun` and TF_CONFIG with many. Batches are global: each worker
    trains on its share, and the result is that of one process with the whole batch.

    Args:
        cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver`; by
            default the environment tells (the launcher's, Horovod's, TF_CONFIG).
        architecture: "hybrid"; "ps" to keep dense variables on servers, too; or
            "allreduce" to make no tables.
        routes: `{pattern: road}`, with roads "servers" and "allreduce", for
            variables whose path matches the pattern as a file name would; the first
            match decides.
        servers: Where tables live: "in_process" (one worker only), "peers" (the
            workers themselves, each serving its share), "dedicated" (server
            processes; the strategy starts one a machine where there are none), or
            "auto": server processes if there are any, else the workers.
        partitions: Partitions of a table: "auto", a number, or `{pattern: number}`.
        sparse_update: "lazy" updates the rows that a batch touches; "exact" does
            to every row what the optimizer does with a dense gradient; "auto" is
            lazy where both are the same, which is tried out, and exact elsewhere.
        synchronous: Whether a step's update is the sum over all workers. If not, each
            worker's push is applied as it comes, on server processes, where dense
            variables live then, too.
        max_staleness: Where it is not: how many steps a worker may be ahead of the
            slowest; None for any number, 0 for synchronous training.
        local_aggregation: Where several machines have several workers each, let
            a row cross a machine's boundary once for all its workers, and sum
            gradients on the machine before they leave it.
        wire: Type in which rows and their gradients travel: None for their own,
            "float16" or "bfloat16" for half the bytes at less precision.
        dense_wire: The same for gradients that are all-reduced.

    Raises:
        ConfigError: An argument or the environment cannot be right.
        ScopeError: TensorFlow was used before, and connecting to servers would
            leave what it made unusable.
        ClusterError: The job's other processes could not be reached.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        *,
        architecture: str = "hybrid",
        routes: Mapping[str, str] | None = None,
        servers: str = "auto",
        partitions: str | int | Mapping[str, int] = "auto",
        sparse_update: str = "auto",
        synchronous: bool = True,
        max_staleness: int | None = None,
        local_aggregation: bool = True,
        wire: str | None = None,
        dense_wire: str | None = None,
    ):
        _check_staleness(synchronous, max_staleness)
        # Nobody ahead of the slowest is what synchronous means.
        synchronous = synchronous or max_staleness == 0
        manner = Manner(local_aggregation, Wire(wire), synchronous, max_staleness)
        if not synchronous:
            architecture = _without_all_reduce(architecture)
        routing = Routing(architecture, routes, partitions)
        topology = resolve(cluster_resolver=cluster_resolver)
        kind = kind_of_home(
            servers, topology, _needs_servers(architecture, synchronous)
        )
        if topology.task == "ps":
            _serve(topology)
        use_gpu_of(topology.local_rank)
        session = Session.join(topology, wants_servers=kind == "dedicated")
        job = session.job
        self._session = session
        self._topology = topology
        self._plan = Plan()
        settled = self._settle(kind, session, manner)
        self._spans = spans = Spans(job, settled.device)
        dense = DenseRoad(job, Wire(dense_wire), spans)
        home = with_copies(settled, session, dense, manner.wire)
        self._home = home
        self._meters = settled.meters
        traffic = StepTraffic(home, spans)
        attendance = Attendance(settled.device)
        factory = TableFactory(
            job, home, traffic, routing, self._plan, self, f"strategy{next(_numbers)}"
        )
        self._router = Router(
            session,
            home,
            factory,
            traffic,
            routing,
            self._plan,
            lambda dtype: manner.wire.type_of(dtype).size,
            local_aggregation,
        )
        super().__init__(
            ParallaxExtended(
                self,
                device=settled.device,
                dense=dense,
                plan=self._plan,
                factory=factory,
                router=self._router,
                optimizer=TableOptimizer(sparse_update, self._plan),
                traffic=traffic,
                attendance=attendance,
                rank=job.rank,
                size=job.size,
                together=synchronous,
            )
        )
        self._adaptation = Adaptation(self._router)
        self._factory = factory
        self._routing = routing
        self._has_run = False
        if session.progress is not None and kind == "dedicated":
            session.progress.add_held(self._held_by_servers)
        if session.progress is not None and synchronous:
            session.progress.add_calls(attendance.read)
        session.at_leave(home.close)
        session.at_leave(self._warn_if_unused)
        _share_seed(job)
        dispatch.register()

    # What a dry run has in its place.
    _settle = staticmethod(settle)

    @property
    def worker_index(self) -> int:
        """Rank of this worker, from 0."""
        return self._topology.rank

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self._topology.size

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0: the one that prints, saves and logs."""
        return self._topology.rank == 0

    @property
    def num_servers(self) -> int:
        """Number of server processes; 0 when tables live in this process."""
        return len(self._home.devices) if self._home.name == "dedicated" else 0

    @property
    def plan(self) -> Plan:
        """Which road each variable takes, and why; `print` shows a table.

        Where steps are timed (`strategy.spans`), it has what each variable took, too.
        """
        with tf.init_scope():
            note_time(self._plan, self._factory.tables, self._spans.read())
        return self._plan

    @property
    def synchronous(self) -> bool:
        """Whether a step's update is the sum over all workers."""
        return self._home.is_synchronous

    def sparsity(self) -> list[Sparsity]:
        """How sparsely each table was used since this was last called, or since the
        start. Every worker calls it, between the same two steps."""
        with self._session.job.doing("strategy.sparsity()"):
            return self._router.measured(exactly=True)

    @property
    def network(self) -> Network:
        """What the plan takes the network to be: given in `KERAS_PARALLAX_NETWORK`,
        or measured. Every worker asks when one does first."""
        with self._session.job.doing("strategy.network"):
            return self._router.network

    def everyones(self, value: Any) -> list:
        """Every worker's `value`, in order of rank; for callbacks that have to decide
        alike. Every worker calls it, between the same two steps."""
        with self._session.job.doing("strategy.everyones()"):
            return self._session.job.gather(value)

    def reroute(self, roads: Mapping[str, str]) -> None:
        """Moves tables to other roads, with their slots; values stay what they are.

        The plan leaves them there, until it is told "auto" for them.

        Every worker calls it, between the same two steps. Training steps have to be
        traced anew: `model.make_train_function(force=True)`, or another
        `tf.function`.

        Args:
            roads: "servers", "allgather" or "allreduce" by path of the variable;
                "auto" gives it back to the plan, which looks at it again after some
                steps.

        Raises:
            ConfigError: There is no such table or road.
        """
        with self._session.job.doing("strategy.reroute()"):
            self._router.reroute(roads)

    def repartition(self, counts: Mapping[str, int]) -> None:
        """Moves tables into other numbers of partitions; as `reroute` does.

        Args:
            counts: Number of partitions by path of the variable.

        Raises:
            ConfigError: There is no such table, or a number cannot be.
        """
        with self._session.job.doing("strategy.repartition()"):
            self._router.repartition(counts)

    @property
    def max_lead_steps(self) -> int | None:
        """The most steps that this worker was seen ahead of the slowest; None where
        `max_staleness` does not bound it."""
        clock = getattr(self._home.first, "clock", None)
        return None if clock is None else clock.max_lead_steps

    @property
    def traffic(self) -> Traffic:
        """Bytes that this worker has exchanged for tables since the start."""
        rows = [(table, *table.counted()) for table in self._factory.tables]
        crossed = [meter.read() for meter in self._meters]
        return Traffic.of(
            crossed,
            [
                TableTraffic.of(
                    table.path,
                    table.storage.spec,
                    pulled_rows=pulled,
                    pushed_rows=pushed,
                    steps=steps,
                    requested_ids=table.requested_ids,
                )
                for table, pulled, pushed, steps in rows
            ],
            home=self._home.name,
            workers=self.num_workers,
            dense_bytes=sum(e.size_bytes for e in self._plan if e.road == ALLREDUCE),
        )

    @property
    def spans(self) -> Spans:
        """Seconds that steps spend in each phase; off until it is switched on."""
        return self._spans

    def run(self, fn: Callable, args=(), kwargs=None, options=None):
        """Runs `fn` on this worker's data; see `tf.distribute.Strategy.run`."""
        with self.extended.stepping(fn) as step:
            if step.model is not None and self._session.progress is not None:
                self._session.progress.follow(_steps_of(step.model))
            self._warn_of_unused_routes()
            outputs = super().run(fn, args, kwargs, options)
            if step.model is not None and step.trains:
                self._adaptation.follow(step.model)
            return outputs

    def close(self) -> None:
        """Frees the tables; the models made in this strategy's scope are dead then.

        Every worker calls it, after its last step. Leaving the program does so too.
        """
        with self._session.job.doing("strategy.close()"):
            self._session.job.barrier()
            self._factory.close()
            self._session.job.barrier()

    def _held_by_servers(self) -> list[list[str]]:
        """What each server holds: one phrase a table."""
        held: list[dict[str, int]] = [{} for _ in self._home.devices]
        for table in self._factory.tables:
            if table.replica is None and table.home is self._home.first:
                spec = table.storage.spec
                what = f"{table.num_rows:,} rows of {table.path}"
                for index, partition in enumerate(table.storage.partitions):
                    here = held[self._home.first.server_of(index, spec)]
                    here[what] = here.get(what, 0) + partition.num_rows
        return [[f"{rows:,} of {what}" for what, rows in here.items()] for here in held]

    def _warn_of_unused_routes(self) -> None:
        """Warns, at the first step, of routes that no variable takes."""
        if not self._has_run:
            self._has_run = True
            paths = [entry.variable for entry in self._plan]
            for pattern in self._routing.unused_routes(paths):
                logger.warning(
                    "No variable's path matches the pattern %r of `routes`; it has "
                    "no effect. The paths are: %s.",
                    pattern,
                    ", ".join(paths),
                )

    def _warn_if_unused(self) -> None:
        """Warns, at the end, of workers that had nothing to do with each other."""
        if self.num_workers > 1 and not len(self._plan):
            logger.warning(
                "No trainable variable was created in the scope of this strategy: "
                "whatever this program trained, each of its %d workers trained on "
                "its own, with all of the data. Build and compile the model in "
                "`with strategy.scope():`.",
                self.num_workers,
            )


def _needs_servers(architecture: str, synchronous: bool) -> str:
    if not synchronous:
        return "synchronous=False"
    return "architecture='ps'" if architecture == "ps" else ""


def _without_all_reduce(architecture: str) -> str:
    """The architecture of asynchronous training."""
    if architecture == "allreduce":
        raise errors.ConfigError(
            "An all-reduce waits for every worker in each step, and with "
            "`synchronous=False` a step waits for none. Leave `architecture` out, or "
            "train synchronously. Received: architecture='allreduce', "
            "synchronous=False"
        )
    return "ps" if architecture == "hybrid" else architecture


def _check_staleness(synchronous: bool, max_staleness: int | None) -> None:
    if max_staleness is None:
        return
    if type(max_staleness) is not int or max_staleness < 0 or synchronous:
        raise errors.ConfigError(
            "`max_staleness` is a number of steps, from 0, for `synchronous=False`. "
            f"Received: max_staleness={max_staleness!r}, synchronous={synchronous!r}"
        )


def _steps_of(model: keras.Model) -> Callable[[], int | None]:
    """Reads how many steps a model was trained for; does not keep it alive."""
    held = weakref.ref(model)

    def steps() -> int | None:
        optimizer = getattr(held(), "optimizer", None)
        return None if optimizer is None else int(optimizer.iterations.numpy())

    return steps


def _serve(topology: Topology) -> None:
    """A TF_CONFIG "ps" task runs the same script: it serves, and ends with the job."""
    from keras_parallax.servers.serve import serve_forever

    sys.exit(serve_forever(topology))


def _share_seed(job: Job) -> None:
    """Makes datasets shuffle alike on all workers, whatever seeds they were given.

    A worker's share is cut out of the global batch; the batch must be the same on
    every worker.
    """
    if job.size == 1:
        return
    from tensorflow.python.eager import context

    seed = context.global_seed()
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little") >> 1
    tf.random.set_seed(job.share(seed))
