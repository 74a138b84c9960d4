"""What a worker does to compare systems: the steps of each in turns.

Run by `comparison.py` as each worker of a cluster:

    python -m benchmarks.system_steps '{"model": "language model", …}'

with the fields of `Job`. All systems are made and warmed up; then each takes some
steps, in turns that lie close together, every second round backwards.
"""

import dataclasses
import json
import sys
import time

from benchmarks import systems
from benchmarks.cluster import host_traffic, print_result

_WARM_UP_STEPS = 2
#: A turn of a system that is slow ends sooner.
_MOST_SECONDS = 4.0
#: A step so long does not notice which system had the caches before it.
_LONG_SECONDS = 2.0
_ID_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        model: Key of `builders()`.
        options: What else its builder is given.
        systems: Names of the systems.
        batch: Batch of one worker.
        turns: Turns of each system.
        steps: Steps in a turn; fewer where they take long.
    """

    model: str
    options: dict
    systems: tuple
    batch: int
    turns: int
    steps: int


def builders():
    """The models by name; none of these has been imported until it is asked for."""
    from benchmarks.models import kinds, lookups, resnet

    return {
        "language model": kinds.language_model,
        "translator": kinds.translator,
        "resnet": resnet.resnet,
        "lookups": lookups.lookups,
    }


def main(text):
    job = Job(**json.loads(text))
    from keras_parallax.cluster.session import Session
    from keras_parallax.cluster.topology import resolve

    # What connects comes first: it takes away what TensorFlow has made before.
    session = Session.join(resolve(), any(map(systems.needs_servers, job.systems)))
    worker = Worker(job, session)
    for turn in range(job.turns):
        worker.take_turns(reversed(job.systems) if turn % 2 else job.systems)
    print_result(worker.found())


class Worker:
    """One worker, its systems, and what it has measured of them.

    Args:
        job: What to measure.
        session: The job that this process has joined.
    """

    def __init__(self, job, session):
        self._job = job
        self._everyone = session.job
        self._counts_host = session.job.topology.local_rank == 0
        build = builders()[job.model]
        model = systems.Model(build, job.options, job.batch * session.job.size)
        self._systems, self._counts, self._is_long = {}, {}, {}
        self._turns = {name: [] for name in job.systems}
        for name in job.systems:
            # What is printed last says where a run hangs that was not over in time.
            print(f"Making {name}.", flush=True)
            system = systems.make(name, model, session.job)
            for _ in range(_WARM_UP_STEPS):
                last = self._timed(system, 1)
            self._systems[name] = system
            self._counts[name] = steps_of_turn(job.steps, last)
            self._is_long[name] = last > _LONG_SECONDS
            if system.strategy is not None:
                system.strategy.sparsity()  # What comes after is what is measured.

    def take_turns(self, names):
        """Takes the steps of one turn with each system."""
        for name in names:
            print(f"Taking steps with {name}.", flush=True)
            system, count = self._systems[name], self._counts[name]
            if not self._is_long[name]:
                self._timed(system, 1)
            before = host_traffic()
            seconds = self._timed(system, count)
            after = host_traffic()
            crossed = None
            if before is not None and self._counts_host:
                crossed = (after - before).total_bytes / count
            self._turns[name].append({"seconds": seconds, "host_bytes": crossed})

    def found(self):
        """What was measured of each system, as plain data."""
        return {
            name: {
                "turns": self._turns[name],
                "changes": list(system.changes),
                "least_bytes": self._least_bytes(system),
                "plan": _plan_of(system),
                "loss": system.step(),
            }
            for name, system in self._systems.items()
        }

    def _timed(self, system, count):
        """Seconds of a step, until the last worker was done."""
        self._everyone.barrier()
        start = time.perf_counter()
        for _ in range(count):
            system.step()
        mine = (time.perf_counter() - start) / count
        return max(self._everyone.gather(mine))

    def _least_bytes(self, system):
        """The least that a host sends and receives in a step by the roads of a plan."""
        if system.strategy is None:
            return None
        used = {found.variable: found for found in system.strategy.sparsity()}
        machines = self._everyone.topology.cross_size
        workers = self._everyone.size
        total = 0.0
        for entry in system.strategy.plan:
            known = used.get(entry.variable)
            total += least_bytes(
                entry.road if known or entry.road != "servers" else "whole",
                entry.size_bytes,
                entry.shape[0] if entry.shape else 1,
                known.alpha if known else 1.0,
                known.alpha_machine if known else None,
                workers,
                machines,
            )
        return total


def steps_of_turn(most, seconds):
    """Steps in a turn of a system, a step of which takes so many seconds."""
    if seconds > _LONG_SECONDS:
        return 1
    return max(2, min(most, int(_MOST_SECONDS / seconds)))


def least_bytes(road, size_bytes, rows, alpha, alpha_machine, workers, machines):
    """The least that a machine sends and receives for a variable in a step.

    Args:
        road: A road of the plan; "whole" for a variable that is pulled from a server
            and pushed to it as a whole.
        size_bytes: Bytes of the variable.
        rows: Its rows.
        alpha: Share of them that a worker touches.
        alpha_machine: Share that a machine's workers touch together; None if unknown,
            or where there is one a machine.
        workers: Number of workers.
        machines: Number of machines.
    """
    if machines == 1:
        return 0.0
    away = (machines - 1) / machines
    row_bytes = size_bytes / max(1, rows)
    local = workers // machines
    if road == "servers":
        touched = rows * (alpha_machine if local > 1 and alpha_machine else alpha)
        return 2 * touched * (_ID_BYTES + 2 * row_bytes) * away
    if road == "allgather":
        return 2 * rows * alpha * (_ID_BYTES + row_bytes) * (workers - local)
    # All-reduced, or read and written whole by each machine.
    return 4 * size_bytes * away


def _plan_of(system):
    if system.strategy is None:
        return {}
    return {
        entry.variable: {
            "road": entry.road,
            "alpha": entry.alpha,
            "partitions": entry.partitions,
            "predicted_ms": None
            if entry.predicted_seconds is None
            else 1e3 * entry.predicted_seconds,
        }
        for entry in system.strategy.plan
    }


if __name__ == "__main__":
    main(sys.argv[1])
