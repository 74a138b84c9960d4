"""Reads TF_CONFIG, and refuses at once what could only fail later.

TensorFlow reads most malformed values without complaint, and the job then hangs
or trains alone. Everything here runs before TensorFlow is imported.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from keras_parallax.cluster.addresses import split_address
from keras_parallax.errors import ConfigError

EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"], "ps": ["host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True)
class TFConfig:
    """A cluster of workers and servers, and this process's place in it.

    Attributes:
        workers: `"host:port"` of each worker. A chief is worker 0.
        servers: `"host:port"` of each `ps` task.
        task_type: `"worker"` or `"ps"`.
        task_index: Index of this task in `workers` or `servers`.
    """

    workers: tuple[str, ...]
    servers: tuple[str, ...]
    task_type: str
    task_index: int


def read(environ: Mapping[str, str]) -> TFConfig | None:
    """The cluster that TF_CONFIG describes, or None when it is not set.

    Args:
        environ: The environment, such as `os.environ`.

    Raises:
        ConfigError: (a `ValueError`) TF_CONFIG is set, and malformed.
    """
    text = environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    received = f"TF_CONFIG={text}"
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _error(f"TF_CONFIG is not JSON ({error})", received) from error
    if not isinstance(config, dict):
        raise _error("TF_CONFIG is not a JSON object", received)
    task = config.get("task")
    if not isinstance(task, dict):
        raise _error(
            "TF_CONFIG has no 'task' object, which says which process this is",
            received,
        )
    return from_cluster(
        config.get("cluster"), task.get("type"), task.get("index"), received
    )


def from_cluster(
    cluster: Any, task_type: Any, task_index: Any, received: str
) -> TFConfig:
    """Checks a cluster's description, whatever it was read from.

    Args:
        cluster: `{"worker": ["host:port", ...], ...}` with the jobs `chief` (at
            most one task), `worker` and `ps`.
        task_type: Job of this process.
        task_index: Index of this process in its job.
        received: The value as the user gave it, to be shown in errors.

    Raises:
        ConfigError: The description is not one of a cluster.
    """
    if not isinstance(cluster, Mapping):
        raise _error("There is no 'cluster' object", received)
    if not isinstance(task_type, str):
        raise _error(f"The task's 'type' is {task_type!r}, not a job's name", received)
    _refuse_unknown_jobs({*cluster, task_type}, received)
    tasks = {job: _addresses(cluster, job, received) for job in _JOBS}
    if len(tasks["chief"]) > 1:
        raise _error(
            f"There are {len(tasks['chief'])} tasks in the job 'chief'; it has one",
            received,
        )
    workers = tasks["chief"] + tasks["worker"]
    if not workers:
        raise _error("The cluster has no worker", received)
    _refuse_duplicates(workers + tasks["ps"], received)
    index = _index(task_type, task_index, len(tasks[task_type]), received)
    if task_type == "worker":
        index += len(tasks["chief"])
    return TFConfig(
        workers=workers,
        servers=tasks["ps"],
        task_type="ps" if task_type == "ps" else "worker",
        task_index=index,
    )


_JOBS = ("chief", "worker", "ps")


def _error(what: str, received: str) -> ConfigError:
    return ConfigError(
        f"{what}. Expected something like {EXAMPLE}. Received: {received}"
    )


def _refuse_unknown_jobs(jobs: set, received: str) -> None:
    if "evaluator" in jobs:
        raise _error(
            "The job 'evaluator' is not supported: `model.fit` evaluates on the "
            "workers, with `validation_data`. Remove it from the cluster and do "
            "not start its process",
            received,
        )
    unknown = sorted(str(job) for job in jobs if job not in _JOBS)
    if unknown:
        raise _error(
            f"Unknown job {', '.join(map(repr, unknown))}; the jobs are 'chief', "
            "'worker' and 'ps'",
            received,
        )


def _addresses(cluster: Mapping, job: str, received: str) -> tuple[str, ...]:
    tasks = cluster.get(job, ())
    if isinstance(tasks, Mapping):
        # ClusterSpec describes a job with gaps as {index: address}.
        if sorted(map(str, tasks)) != sorted(map(str, range(len(tasks)))):
            raise _error(f"The job {job!r} lacks some of its tasks", received)
        tasks = [tasks[key] for key in sorted(tasks, key=int)]
    if not isinstance(tasks, (list, tuple)):
        raise _error(f"The job {job!r} is not a list of addresses", received)
    for address in tasks:
        try:
            split_address(address)
        except ConfigError as error:
            raise _error(
                f"The job {job!r} holds {address!r}, which is not 'host:port'",
                received,
            ) from error
    return tuple(tasks)


def _refuse_duplicates(addresses: tuple[str, ...], received: str) -> None:
    duplicates = sorted({a for a in addresses if addresses.count(a) > 1})
    if duplicates:
        raise _error(
            f"The address {duplicates[0]!r} appears more than once; each task has "
            "an address of its own",
            received,
        )


def _index(task_type: str, index: Any, count: int, received: str) -> int:
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool):
        raise _error(f"The task's 'index' is {index!r}, not a number", received)
    if not 0 <= index < count:
        raise _error(
            f"The task is {task_type} {index}, but the cluster has {count} tasks "
            f"in the job {task_type!r}, counted from 0",
            received,
        )
    return index
