"""What the cost model knows of a cluster: workers, machines, and what joins them.

Plain figures, given by a user, measured by `calibration`, or taken as they are usual.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from keras_parallax import errors

#: Overrides the measured figures, as in `bandwidth=10Gbit,latency=0.1ms`.
NETWORK_VARIABLE = "KERAS_PARALLAX_NETWORK"

_BANDWIDTH = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([KMGT]?)(bit|bps|B)(/s)?", re.I)
_DURATION = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(ns|us|µs|ms|s)")
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclasses.dataclass(frozen=True)
class Network:
    """How fast the workers of a job exchange.

    Attributes:
        bandwidth_bytes_per_s: Of one machine's link, in each direction; what an
            exchange attains, not what the link is sold as.
        latency_s: Until a small message has reached another machine.
        local_bandwidth_bytes_per_s: Of what the workers of one machine exchange,
            all of them together.
        local_latency_s: Until a small message has reached another process of the
            same machine.
        call_s: What an exchange of all workers takes besides, however little it
            carries: that all of them are ready has to be agreed on first.
        server_trip_s: What a question to the servers that a worker speaks with and
            their answer take besides, however little they carry, while all workers
            ask; where tables live on server processes.
        memory_bytes_per_s: At which one worker reads and writes rows that are picked
            by their ids, while the others of its machine do so, too.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 100e-6
    local_bandwidth_bytes_per_s: float = 2e9
    local_latency_s: float = 20e-6
    call_s: float = 1e-3
    server_trip_s: float = 1e-3
    memory_bytes_per_s: float = 4e9

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            least = "positive" if name.endswith("_per_s") else "0 or more"
            fits = value > 0 if least == "positive" else value >= 0
            if not (fits and math.isfinite(value)):
                raise errors.ConfigError(
                    f"`{name}` of a network is a finite number, {least}. "
                    f"Received: {name}={value!r}"
                )

    def to_dict(self) -> dict[str, float]:
        """The figures as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, figures: Mapping[str, float]) -> Network:
        """From what `to_dict` gave; fields of other versions are left out."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: figures[name] for name in names & figures.keys()})

    def changed(self, text: str) -> Network:
        """These figures, but for what `text` says, as in `latency=0.1ms`.

        Args:
            text: `name=value` separated by commas; names are `bandwidth`,
                `latency`, `local_bandwidth`, `local_latency`, `call`, `server_trip` and
                `memory`.

        Raises:
            ConfigError: It says something else.
        """
        return dataclasses.replace(self, **parse_network(text))


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Who takes part in a step.

    Attributes:
        workers: Number of workers.
        machines: Number of machines that have workers, each as many.
        network: What joins them.
        servers: Number of server processes; 0 where tables live in the workers.
        server_machines: Machines of their own that the servers have; 0 where they
            run on the workers' machines.
        local_aggregation: Whether the workers of a machine pull a row once for all
            of them, and sum its gradients before they leave the machine.
        memory_limit_bytes: Memory that one worker has for copies of tables and
            their slots, or None if unknown.
    """

    workers: int
    machines: int
    network: Network
    servers: int = 0
    server_machines: int = 0
    local_aggregation: bool = True
    memory_limit_bytes: float | None = None

    def __post_init__(self) -> None:
        whole = self.machines >= 1 and self.workers % self.machines == 0
        if self.workers < 1 or not whole:
            raise errors.ConfigError(
                "A cluster has at least one worker, and equally many on each of its "
                f"machines. Received: workers={self.workers}, "
                f"machines={self.machines}"
            )

    @property
    def workers_per_machine(self) -> int:
        """Workers on each machine."""
        return self.workers // self.machines

    @property
    def aggregates(self) -> bool:
        """Whether workers of a machine act as one towards the other machines."""
        stages = self.machines > 1 and self.workers_per_machine > 1
        return stages and self.local_aggregation

    @property
    def relays(self) -> bool:
        """Whether each worker has a server beside it, and speaks with it alone: what
        is for other servers goes through the workers beside those."""
        return 1 < self.workers == self.servers and not self.server_machines

    @property
    def link_latency_s(self) -> float:
        """Latency of the slowest link that an exchange of all workers uses."""
        network = self.network
        return network.latency_s if self.machines > 1 else network.local_latency_s


def parse_network(text: str) -> dict[str, float]:
    """Fields of a `Network` from `bandwidth=1Gbit,latency=0.1ms`.

    Raises:
        ConfigError: It does not have that form.
    """
    found = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name in ("bandwidth", "local_bandwidth", "memory"):
            found[f"{name}_bytes_per_s"] = parse_bandwidth(value)
        elif name in ("latency", "local_latency", "call", "server_trip"):
            found[f"{name}_s"] = parse_duration(value)
        else:
            raise errors.ConfigError(
                "A network is described by bandwidth, latency, local_bandwidth, "
                "local_latency, call, server_trip and memory, as in "
                f"'bandwidth=1Gbit,latency=0.1ms'. Received: {text!r}"
            )
    return found


def parse_bandwidth(text: str) -> float:
    """Bytes per second from `"100Gbit"`, `"1.2 GB/s"` or `"200Mbps"`.

    Prefixes are decimal. `bit` and `bps` are bits, `B` is bytes.

    Raises:
        ConfigError: It is none of these.
    """
    match = _BANDWIDTH.fullmatch(text.strip())
    value = _number(match[1]) if match else None
    if match is None or not value:
        raise errors.ConfigError(
            "A bandwidth is a positive number with a unit, such as 100Gbit, 200Mbps "
            f"or 1.2GB/s. Received: {text!r}"
        )
    scale = _PREFIXES[match[2].upper()]
    # Case tells bits from bytes, as everywhere: Gb is bits, GB is bytes.
    return value * scale / (1 if match[3] == "B" else 8)


def parse_duration(text: str) -> float:
    """Seconds from `"0.1ms"`, `"50us"` or `"2s"`.

    Raises:
        ConfigError: It is none of these.
    """
    match = _DURATION.fullmatch(text.strip())
    value = _number(match[1]) if match else None
    if match is None or value is None:
        raise errors.ConfigError(
            "A duration is a number with a unit, such as 50us, 0.1ms or 2s. "
            f"Received: {text!r}"
        )
    return value * _SECONDS[match[2]]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
