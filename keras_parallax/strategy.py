"""`ParallaxStrategy`: what users construct."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Callable, Mapping

import tensorflow as tf

from keras_parallax import errors
from keras_parallax.cluster.job import Job
from keras_parallax.cluster.session import Session, use_gpu_of
from keras_parallax.cluster.topology import Topology, resolve
from keras_parallax.collectives.dense import DenseRoad
from keras_parallax.extended import ParallaxExtended
from keras_parallax.plan.plan import Plan
from keras_parallax.plan.routing import Routing
from keras_parallax.servers.dedicated import DedicatedHome
from keras_parallax.servers.home import Home
from keras_parallax.servers.in_process import InProcessHome
from keras_parallax.tables import dispatch
from keras_parallax.tables.factory import TableFactory
from keras_parallax.tables.optimizer import TableOptimizer

logger = logging.getLogger("keras_parallax")

SERVERS = ("auto", "in_process", "dedicated")

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
        architecture: "hybrid", or "allreduce" to make no tables.
        routes: `{pattern: road}`, with roads "servers" and "allreduce", for
            variables whose path matches the pattern as a file name would; the first
            match decides. By default the weights of `keras.layers.Embedding` become
            tables.
        servers: Where tables live: "in_process" (one worker only), "dedicated"
            (server processes), or "auto": server processes if there are any or
            there are several workers, else in this process.
        partitions: Partitions of a table: "auto", a number, or `{pattern: number}`.
        sparse_update: "lazy" updates the rows that a batch touches; "exact" does
            to every row what the optimizer does with a dense gradient; "auto" is
            lazy where both are the same, which is tried out, and exact elsewhere.

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
    ):
        routing = Routing(architecture, routes, partitions)
        topology = resolve(cluster_resolver=cluster_resolver)
        kind = _kind_of_home(servers, topology)
        if topology.task == "ps":
            _serve(topology)
        use_gpu_of(topology.local_rank)
        session = Session.join(topology, wants_servers=kind == "dedicated")
        job = session.job
        self._session = session
        self._topology = topology
        self._plan = Plan()
        home, device = _home(kind, session)
        self._home = home
        factory = TableFactory(
            job, home, routing, self._plan, self, f"strategy{next(_numbers)}"
        )
        super().__init__(
            ParallaxExtended(
                self,
                device=device,
                dense=DenseRoad(job),
                plan=self._plan,
                factory=factory,
                optimizer=TableOptimizer(sparse_update, self._plan),
                rank=job.rank,
                size=job.size,
            )
        )
        self._factory = factory
        _share_seed(job)
        dispatch.register()

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
        """Which road each variable takes, and why; `print` shows a table."""
        return self._plan

    def run(self, fn: Callable, args=(), kwargs=None, options=None):
        """Runs `fn` on this worker's data; see `tf.distribute.Strategy.run`."""
        with self.extended.stepping(fn):
            return super().run(fn, args, kwargs, options)

    def close(self) -> None:
        """Frees the tables; the models made in this strategy's scope are dead then.

        Every worker calls it, after its last step. Leaving the program does so too.
        """
        self._session.job.barrier()
        if self._session.job.rank == 0 or self._home.name == "in_process":
            self._factory.close()
        self._session.job.barrier()


def _kind_of_home(servers: str, topology: Topology) -> str:
    if servers not in SERVERS:
        raise errors.ConfigError(
            f"`servers` is one of {SERVERS}. Received: servers={servers!r}"
        )
    if servers == "auto":
        several = topology.size > 1 or topology.servers
        return "dedicated" if several else "in_process"
    if servers == "in_process" and topology.size > 1:
        raise errors.ConfigError(
            "servers='in_process' keeps tables in the memory of one worker, where "
            f"the other {topology.size - 1} of {topology.size} workers cannot reach "
            "them. Use servers='auto' or servers='dedicated'."
        )
    return servers


def _home(kind: str, session: Session) -> tuple[Home, str]:
    connection = session.connection
    if kind == "dedicated":
        return DedicatedHome(session.job, connection.server_devices), connection.device
    # A process that is connected has to name its own job, too.
    gpu = tf.config.list_physical_devices("GPU")
    device = connection.device if connection else f"/{'GPU' if gpu else 'CPU'}:0"
    return InProcessHome(device), device


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
