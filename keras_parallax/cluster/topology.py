"""Who am I, and who else is there?"""

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from keras_parallax.cluster import tf_config
from keras_parallax.cluster.addresses import split_address
from keras_parallax.errors import ConfigError

SERVERS_VARIABLE = "KERAS_PARALLAX_SERVERS"
LIFELINE_VARIABLE = "KERAS_PARALLAX_LIFELINE"


@dataclasses.dataclass(frozen=True)
class Slot:
    """A worker's place among all workers, and on its host.

    Attributes:
        host: Name of its host.
        rank: Its index among all `size` workers.
        local_rank: Its index among the `local_size` workers of its host.
        cross_rank: Its index among the `cross_size` workers that have the same
            local rank on their hosts.
    """

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclasses.dataclass(frozen=True)
class Topology:
    """What this process knows of its job before it has met the others.

    Attributes:
        rank: Index of this worker among all workers; -1 in a server.
        size: Number of workers.
        local_rank: Index among the workers of this host; -1 in a server.
        local_size: Number of workers on this host.
        cross_rank: Index among the workers of equal local rank; -1 in a server.
        cross_size: Number of workers of equal local rank.
        host: Name under which the other processes reach this host.
        task: `"worker"` or `"ps"`.
        index: Index of the task in its job; a worker's is its rank.
        source: `"alone"`, `"horovod"` (started by `keras-parallax run` or
            `horovodrun`) or `"tf_config"` (TF_CONFIG or a cluster resolver).
        servers: `"host:port"` of each server that runs already.
        workers: `"host:port"` of each worker, known from `"tf_config"` only.
        lifeline: `"host:port"` of the job's coordinator, or None.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str
    task: str
    index: int
    source: str
    servers: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    lifeline: str | None = None


def resolve(
    environ: Mapping[str, str] | None = None, cluster_resolver: Any = None
) -> Topology:
    """Finds this process's place from whatever started it.

    In this order: `cluster_resolver`; Horovod's variables, which
    `keras-parallax run` and `horovodrun` set; TF_CONFIG; else one worker, alone.

    Args:
        environ: The environment; `os.environ` by default.
        cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver`
            that knows its task's type and id.

    Raises:
        ConfigError: What started this process has described it wrongly.
    """
    environ = os.environ if environ is None else environ
    if cluster_resolver is not None:
        config = _from_resolver(cluster_resolver)
    elif "HOROVOD_RANK" in environ or "HOROVOD_SIZE" in environ:
        return _from_horovod(environ)
    else:
        config = tf_config.read(environ)
    return _alone(environ) if config is None else _from_config(config)


def assign_slots(hosts: Sequence[str]) -> list[Slot]:
    """The slot of each worker, given the host of each, in order of rank.

    A host's workers need not stand together in the list: the order of the ranks
    is the order of TF_CONFIG, which may alternate between the hosts.
    """
    local_sizes = Counter(hosts)
    seen: Counter = Counter()
    local_ranks = []
    for host in hosts:
        local_ranks.append(seen[host])
        seen[host] += 1
    cross_sizes = Counter(local_ranks)
    crossed: Counter = Counter()
    slots = []
    for rank, (host, local_rank) in enumerate(zip(hosts, local_ranks, strict=True)):
        slots.append(
            Slot(
                host=host,
                rank=rank,
                size=len(hosts),
                local_rank=local_rank,
                local_size=local_sizes[host],
                cross_rank=crossed[local_rank],
                cross_size=cross_sizes[local_rank],
            )
        )
        crossed[local_rank] += 1
    return slots


def _alone(environ: Mapping[str, str]) -> Topology:
    return Topology(
        **dataclasses.asdict(assign_slots(["127.0.0.1"])[0]),
        task="worker",
        index=0,
        source="alone",
        servers=_servers(environ),
        lifeline=_lifeline(environ),
    )


def _from_horovod(environ: Mapping[str, str]) -> Topology:
    size = _integer(environ, "HOROVOD_SIZE", 1)
    rank = _integer(environ, "HOROVOD_RANK", 0, below=size)
    # Horovod itself takes a worker to be alone on its host where it is not told.
    local_size = _integer(environ, "HOROVOD_LOCAL_SIZE", 1, default=1)
    cross_size = _integer(environ, "HOROVOD_CROSS_SIZE", 1, default=size)
    return Topology(
        rank=rank,
        size=size,
        local_rank=_integer(environ, "HOROVOD_LOCAL_RANK", 0, local_size, 0),
        local_size=local_size,
        cross_rank=_integer(environ, "HOROVOD_CROSS_RANK", 0, cross_size, rank),
        cross_size=cross_size,
        host=environ.get("HOROVOD_HOSTNAME") or "127.0.0.1",
        task="worker",
        index=rank,
        source="horovod",
        servers=_servers(environ),
        lifeline=_lifeline(environ),
    )


def _from_config(config: tf_config.TFConfig) -> Topology:
    hosts = [split_address(worker)[0] for worker in config.workers]
    common: dict[str, Any] = {
        "task": config.task_type,
        "index": config.task_index,
        "source": "tf_config",
        "servers": config.servers,
        "workers": config.workers,
        "lifeline": config.workers[0],
    }
    if config.task_type == "worker":
        slot = assign_slots(hosts)[config.task_index]
        return Topology(**dataclasses.asdict(slot), **common)
    host = split_address(config.servers[config.task_index])[0]
    return Topology(
        rank=-1,
        size=len(hosts),
        local_rank=-1,
        local_size=hosts.count(host),
        cross_rank=-1,
        cross_size=len(set(hosts)),
        host=host,
        **common,
    )


def _from_resolver(resolver: Any) -> tf_config.TFConfig | None:
    cluster = resolver.cluster_spec().as_dict()
    if not cluster:
        return None
    received = (
        f"{type(resolver).__name__} with cluster {cluster}, "
        f"task_type={resolver.task_type!r}, task_id={resolver.task_id!r}"
    )
    if not resolver.task_type or resolver.task_id is None:
        raise ConfigError(
            "The cluster resolver does not say which task this process is. Give "
            "it both, for example `SimpleClusterResolver(cluster_spec, "
            "task_type='worker', task_id=0)`, with another task_id in each "
            f"process. Received: {received}"
        )
    return tf_config.from_cluster(
        cluster, resolver.task_type, resolver.task_id, received
    )


def _servers(environ: Mapping[str, str]) -> tuple[str, ...]:
    text = environ.get(SERVERS_VARIABLE, "")
    servers = tuple(part.strip() for part in text.split(",") if part.strip())
    for server in servers:
        _check(SERVERS_VARIABLE, server)
    return servers


def _lifeline(environ: Mapping[str, str]) -> str | None:
    address = environ.get(LIFELINE_VARIABLE) or None
    if address is not None:
        _check(LIFELINE_VARIABLE, address)
    return address


def _check(variable: str, address: str) -> None:
    try:
        split_address(address)
    except ConfigError as error:
        raise ConfigError(f"The environment variable {variable}: {error}") from error


def _integer(
    environ: Mapping[str, str],
    name: str,
    least: int,
    below: int | None = None,
    default: int | None = None,
) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    limit = "" if below is None else f" below {below}"
    try:
        value = int(text or "")
    except ValueError:
        value = least - 1
    if value < least or (below is not None and value >= below):
        given = {k: environ[k] for k in sorted(environ) if k in _HOROVOD_PLACE}
        raise ConfigError(
            f"The environment variable {name} is a whole number of at least {least}"
            f"{limit}; `keras-parallax run` and `horovodrun` set it, together with "
            f"the others of its kind. Received: {given}"
        )
    return value


_HOROVOD_PLACE = frozenset(
    f"HOROVOD_{scope}{what}"
    for scope in ("", "LOCAL_", "CROSS_")
    for what in ("RANK", "SIZE")
)
