"""What a plan has to know of the job around a table: machines, network, memory.

All workers ask between the same two steps: what is measured is the same for all.
"""

from __future__ import annotations

import dataclasses
import os
import time

import psutil

from keras_parallax.cluster.session import Session
from keras_parallax.plan.calibration import MEASURE, network_of
from keras_parallax.plan.network import NETWORK_VARIABLE, Cluster, Network
from keras_parallax.servers.home import Home

# Copies of tables take no more than this share of what a worker has free.
_MEMORY_SHARE = 0.1
# The network is measured again when what is known of it is older than this; that
# takes a second or two.
NETWORK_HOLDS_SECONDS = 600.0


class Surroundings:
    """The cluster, measured when it is first asked for.

    Args:
        session: The job.
        home: Where rows live.
        local_aggregation: Whether the workers of a machine act as one.
    """

    def __init__(self, session: Session, home: Home, local_aggregation: bool):
        self._session = session
        self._home = home
        self._local_aggregation = local_aggregation
        self._cluster: Cluster | None = None
        self._network_since = 0.0

    @property
    def machines(self) -> int:
        """Number of machines; where they are uneven, each worker counts as one."""
        machines = self._session.machines
        return self._session.job.size if machines is None else machines.count

    @property
    def cluster(self) -> Cluster:
        """Machines, network and memory."""
        if self._cluster is None:
            job, home = self._session.job, self._home
            local = job.size // self.machines
            free = psutil.virtual_memory().available * _MEMORY_SHARE / local
            self._cluster = Cluster(
                workers=job.size,
                machines=self.machines,
                network=self._measured_network(),
                servers=len(home.devices) if home.name == "dedicated" else 0,
                server_machines=self._session.server_machines(),
                local_aggregation=self._local_aggregation,
                memory_limit_bytes=min(job.gather(free)),
            )
        return self._cluster

    def look_again(self) -> None:
        """Measures the network again if it may have changed; one worker's clock
        decides."""
        age = time.monotonic() - self._network_since
        if self._cluster and self._session.job.share(age > NETWORK_HOLDS_SECONDS):
            network = self._measured_network(anew=True)
            self._cluster = dataclasses.replace(self._cluster, network=network)

    def _measured_network(self, anew: bool = False) -> Network:
        self._network_since = time.monotonic()
        # What the user has said of the network is not measured.
        given = MEASURE if anew and not os.environ.get(NETWORK_VARIABLE) else None
        return network_of(self._session, given, self._home.speaks_with)
