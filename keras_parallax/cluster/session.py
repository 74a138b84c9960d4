"""This process's membership in its job, from joining it to leaving it.

A process joins one job in its life; every strategy that it makes shares it.
"""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_parallax import errors
from keras_parallax.cluster import processes, rendezvous
from keras_parallax.cluster.addresses import free_port, join_address, split_address
from keras_parallax.cluster.connection import (
    Connection,
    connect,
    in_use,
    refuse_living_objects,
    wait_for_server,
)
from keras_parallax.cluster.coordinator import Coordinator
from keras_parallax.cluster.excepthook import install_excepthook
from keras_parallax.cluster.job import Job
from keras_parallax.cluster.launch import server_command
from keras_parallax.cluster.lifeline import EXIT_LOST, Member
from keras_parallax.cluster.local_sizes import local_sizes
from keras_parallax.cluster.machines import Machines
from keras_parallax.cluster.progress import Progress
from keras_parallax.cluster.topology import LIFELINE_VARIABLE, Topology
from keras_parallax.versions import horovod_or_explain, of_exchange

logger = logging.getLogger("keras_parallax")

#: How long a worker that is done waits for the others before it stops servers.
LEAVE_SECONDS = 7 * 24 * 3600.0


class Session:
    """The job, as joined by this process.

    Attributes:
        job: This worker's place in it.
        machines: Which workers share a machine; None where that is uneven.
        member: Its connection to the job's coordinator; None when it is alone.
        progress: What tells the job how far training has come; None when this
            worker is alone.
        connection: Its servers, once it is connected to any.
    """

    _current: Session | None = None

    def __init__(self, topology: Topology):
        self.job = Job(topology)
        self.machines = Machines.of(topology, local_sizes(topology))
        self.member: Member | None = None
        self.progress: Progress | None = None
        self.connection: Connection | None = None
        self._coordinator: Coordinator | None = None
        self._lifeline = topology.lifeline
        self._process_sets: dict[tuple[int, ...], object] = {}
        self._servers: list[processes.Child] = []
        self._at_leave: list[Callable[[], object]] = []

    @classmethod
    def join(cls, topology: Topology, wants_servers: bool) -> Session:
        """Joins the job that this process is part of, once.

        Args:
            topology: What `topology.resolve` has found.
            wants_servers: Whether tables will live on servers.

        Raises:
            ScopeError: TensorFlow objects that connecting would kill exist.
            ClusterError: The others could not be reached.
        """
        if cls._current is None:
            session = cls(topology)
            session._meet(wants_servers)
            cls._current = session
        elif wants_servers and cls._current.connection is None:
            refuse_living_objects()
        session = cls._current
        if wants_servers and session.connection is None:
            session._connect()
        return session

    def at_leave(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when this worker has done its work, before it leaves.

        It is not called in a process that has failed.
        """
        self._at_leave.append(callback)

    def _meet(self, wants_servers: bool) -> None:
        topology = self.job.topology
        self._coordinator, self.member = rendezvous.bootstrap(topology)
        # From here on the others learn of whatever this worker ends with.
        atexit.register(self._leave)
        if self.member is not None:
            install_excepthook(self.member)
        if wants_servers:
            refuse_living_objects()
        if topology.size > 1:
            hvd = horovod_or_explain()
            hvd.init(process_sets=self._make_process_sets(hvd))
            if hvd.size() != topology.size:
                raise errors.ClusterError(
                    f"Horovod joined {hvd.size()} workers, but the environment "
                    f"describes {topology.size}. Start the script with "
                    "`keras-parallax run` or `horovodrun`."
                )
            if self.member is None:
                self.member = self._start_lifeline()
                install_excepthook(self.member)
        if self.member is not None:
            self.progress = Progress(self.member)
        if self.job.rank == 0:
            return
        # Keras draws its progress bar on worker 0 alone.
        import keras

        keras.config.disable_interactive_logging()

    def _make_process_sets(self, hvd) -> list:
        """Horovod's sets of the workers of each machine, and of one index on each.

        Every worker names all of them, in the same order.
        """
        machines = self.machines
        if machines is not None and machines.have_two_stages:
            for rank in range(self.job.size):
                for ranks in (machines.neighbours(rank), machines.counterparts(rank)):
                    key = tuple(sorted(ranks))
                    if key not in self._process_sets:
                        self._process_sets[key] = hvd.ProcessSet(list(key))
        return list(self._process_sets.values())

    def process_set(self, ranks: Sequence[int]) -> object | None:
        """Horovod's process set of some workers; None for all of them.

        Raises:
            KeyError: They are neither all, nor those of a machine, nor those of one
                index on each.
        """
        if len(ranks) == self.job.size:
            return None
        return self._process_sets[tuple(sorted(ranks))]

    def server_machines(self) -> int:
        """Machines that servers have for themselves; 0 where workers are on one of
        them, or no servers are known. Every worker calls it."""
        if self.connection is None:
            return 0
        workers = set(self.job.gather(self.job.topology.host))
        servers = {split_address(server)[0] for server in self.connection.servers}
        return 0 if servers & workers else len(servers)

    def _start_lifeline(self) -> Member:
        """The job's coordinator in worker 0, where no launcher of ours runs one."""
        topology = self.job.topology
        address = None
        if topology.rank == 0:
            self._coordinator = Coordinator(
                topology.host, 0, topology.size, name="worker 0"
            ).start()
            address = self._coordinator.address
        self._lifeline = str(self.job.share(address))
        info = {"alike": of_exchange()}
        return Member.join(self._lifeline, "worker", topology.rank, info=info)

    def _connect(self) -> None:
        topology = self.job.topology
        servers = topology.servers or self._start_servers()
        self.connection = connect(self.job, servers)
        if self.job.rank == 0:
            logger.info("Connected to %d servers: %s", len(servers), servers)

    def _start_servers(self) -> tuple[str, ...]:
        """Starts one server a machine; returns the addresses of all."""
        topology = self.job.topology
        address = None
        if topology.local_rank == 0:
            address = join_address(topology.host, free_port())
        everyone = [found for found in self.job.gather(address) if found]
        if address is not None:
            index = everyone.index(address)
            env = dict(os.environ)
            if self._lifeline is not None:
                env[LIFELINE_VARIABLE] = self._lifeline
            # TensorFlow prints a page when it starts: it is shown on a failure.
            handle, log_path = tempfile.mkstemp(
                ".log", f"keras-parallax-server-{index}-"
            )
            os.close(handle)
            child = processes.spawn(
                server_command(everyone, index), env, log_path, f"server {index}"
            )
            self._servers.append(child)
            wait_for_server(address, child=child)
        self.job.barrier()
        return tuple(everyone)

    def _leave(self) -> None:
        """Leaves the job; a worker that started a server stays until all are done."""
        failed = self.member is not None and self.member.failed
        if not failed:
            self._say_goodbye()
        if self.progress is not None:
            self.progress.stop()
        if self.member is not None:
            stays = bool(self._servers) or self._coordinator is not None
            self.member.leave(LEAVE_SECONDS if stays else None)
        # The servers have heard the end, too, and are ended with this process in any
        # case; not before it: TensorFlow still clears away what it keeps on them.
        for server in self._servers:
            if server.poll() not in (None, 0, EXIT_LOST):
                logger.error(
                    "%s. What it printed is in %s", server.describe(), server.log_path
                )
            elif server.log_path is not None:
                server.log_path.unlink(missing_ok=True)
        if self._coordinator is not None:
            self._coordinator.stop()

    def _say_goodbye(self) -> None:
        """Ends what the others could go on waiting in for this worker.

        A worker may leave in the middle of a step: `sys.exit` is no exception that
        could be seen here, and its status is not known before the process has
        ended, which a worker with servers does last of all. Where the others are
        done as well, none of this makes a difference to them.
        """
        for callback in reversed(self._at_leave):
            try:
                callback()
            except Exception as error:
                logger.warning("While leaving the job: %s", error)
        if self.job.size > 1:
            hvd = horovod_or_explain()
            if hvd.is_initialized():
                hvd.shutdown()


def use_gpu_of(local_rank: int) -> None:
    """Keeps this process to the GPU that its local rank says, if there are any.

    Must come before TensorFlow is used.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and not in_use():
        mine = gpus[local_rank % len(gpus)]
        tf.config.set_visible_devices(mine, "GPU")
        tf.config.experimental.set_memory_growth(mine, True)
