"""What a worker does to measure the sparse road alone: pulls and pushes, no model.

Run by other benchmarks as each worker of a cluster:

    python -m benchmarks.sparse_steps '{"roads": ["peers"], "rows": 400000, …}'

with the fields of `Plan`. A step asks for the rows of `n` ids, makes up a gradient
for each, and has the rows updated where they live, once each; ids differ from step
to step. The roads are `"dedicated"` and `"peers"`, through the homes of
keras_parallax; `"allgather"`, Horovod's all-reduce of `tf.IndexedSlices` on a table
of which every worker has a copy; and `"raw"`, the three all-to-alls of `"peers"`
with nothing around them that a step can do without.
"""

import dataclasses
import json
import statistics
import sys
import time

import numpy as np

from benchmarks.cluster import host_traffic, print_result

ID_BYTES = 4
_WARM_UP_STEPS = 2
_FEW_IDS = 2000
_MORE_STEPS = 6
_RATE = 0.01
_ZIPF_EXPONENT = 1.1


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        roads: Roads, taken in turns; with `"dedicated"` among them a process is
            connected to servers for all of them.
        rows: Rows of the table.
        width: Floats of a row.
        cases: `(distribution, duplicates, ids)` each: `"uniform"` or `"zipf"`;
            whether a step looks ids up several times; number of lookups.
        steps: Steps measured of each case; of few ids, several times as many.
        local_aggregation: As `ParallaxStrategy` takes it.
    """

    roads: tuple
    rows: int
    width: int
    cases: tuple
    steps: int
    local_aggregation: bool = True


def measured_steps(plan, case):
    """Numbers of the steps that are measured, which tell their ids to `draw`."""
    steps = plan.steps
    if case[2] <= _FEW_IDS:
        # Else what is said before and after the steps would be a part of the count.
        steps *= _MORE_STEPS
    return range(_WARM_UP_STEPS, _WARM_UP_STEPS + steps)


def draw(plan, case, rank, step):
    """Ids that worker `rank` looks up in a step, `(n,)`, int32.

    Duplicates of a uniform draw are four lookups of each id; of Zipf's law, those
    that come with drawing ids one by one.
    """
    distribution, duplicates, count = case
    random = np.random.default_rng([rank, step, count, len(distribution), duplicates])
    if distribution == "uniform":
        distinct = max(1, count // 4) if duplicates else count
        ids = random.choice(plan.rows, distinct, replace=False, shuffle=False)
        ids = np.resize(ids, count)
    else:
        share = np.arange(1, plan.rows + 1) ** -_ZIPF_EXPONENT
        if duplicates:
            total = np.cumsum(share)
            ids = np.searchsorted(total, random.random(count) * total[-1])
        else:
            # The first to come of independent arrivals, each at its own rate.
            arrivals = random.exponential(size=plan.rows) / share
            ids = np.argpartition(arrivals, count)[:count]
    return random.permutation(ids).astype(np.int32)


def least_bytes(plan, wanted, machine_of, machines):
    """The least that crosses the boundaries of all machines, sent and received.

    Each row that a machine wants and another has: its id asked once, the row
    answered once, its gradient pushed once, and each of them crosses two boundaries:

        2 · d · (ID_BYTES + 2 · row_bytes)

    with `d` the distinct rows that a machine wants of others, summed over machines.

    Args:
        plan: What is measured.
        wanted: Ids of each worker, or of each machine where its workers act as one.
        machine_of: Function of ids that tells the machine of each row.
        machines: Machine of each entry of `wanted`.
    """
    distant = 0
    for ids, machine in zip(wanted, machines, strict=True):
        distant += np.count_nonzero(machine_of(np.unique(ids)) != machine)
    return 2 * distant * (ID_BYTES + 2 * 4 * plan.width)


def main(text):
    plan = Plan(**json.loads(text))
    from keras_parallax.cluster.session import Session
    from keras_parallax.cluster.topology import resolve

    session = Session.join(resolve(), wants_servers="dedicated" in plan.roads)
    roads = {name: _BUILDERS[name](plan, session) for name in plan.roads}
    found = []
    for case in plan.cases:
        for name, road in roads.items():
            # Turns of the roads lie close together; each step waits for all workers.
            found.append({"road": name, **measure(plan, session.job, road, case)})
    print_result(found)


def measure(plan, job, road, case):
    """Runs one road's steps; returns what this worker has seen."""
    import tensorflow as tf

    distribution, duplicates, count = case
    measured = measured_steps(plan, case)
    steps = range(measured.stop)
    batches = [tf.constant(draw(plan, case, job.rank, step)) for step in steps]
    for ids in batches[:_WARM_UP_STEPS]:
        road.step(ids).numpy()
    job.barrier()
    counted, before = road.counted(), host_traffic()
    job.barrier()
    seconds = []
    for ids in batches[_WARM_UP_STEPS:]:
        start = time.perf_counter()
        road.step(ids).numpy()
        seconds.append(time.perf_counter() - start)
    job.barrier()
    after, counted = host_traffic(), road.counted() - counted
    crossed = None if before is None else after - before
    return {
        "distribution": distribution,
        "duplicates": bool(duplicates),
        "ids": count,
        "step_seconds": statistics.median(seconds),
        "sent_bytes": crossed and crossed.sent_bytes / len(measured),
        "received_bytes": crossed and crossed.received_bytes / len(measured),
        "counted_bytes": counted / len(measured),
    }


class _Road:
    """A way to do a step.

    Args:
        step: `ids -> scalar`, there once the step is over.
        meters: What counts its traffic, at the seam.
    """

    def __init__(self, step, meters=()):
        import tensorflow as tf

        signature = [tf.TensorSpec((None,), tf.int32)]
        self.step = tf.function(step, input_signature=signature, autograph=False)
        self._meters = meters

    def counted(self):
        """Bytes sent and received off this machine until now."""
        return sum(
            found.sent_off_machine_bytes + found.received_off_machine_bytes
            for found in (meter.read() for meter in self._meters)
        )


def _through_home(kind):
    def build(plan, session):
        import tensorflow as tf

        from keras_parallax.collectives.wire import Wire
        from keras_parallax.servers.choice import Manner, settle
        from keras_parallax.servers.home import Pull, Push
        from keras_parallax.servers.storage import TableSpec

        manner = Manner(plan.local_aggregation, Wire())
        settled = settle(kind, session, manner)
        home = settled.home
        session.at_leave(home.close)
        count = len(home.devices)
        spec = TableSpec(f"table_{kind}", plan.rows, (plan.width,), tf.float32, count)
        storage = home.allocate(spec, _RATE, None)

        def update(index, places, gradients):
            partition = storage.partitions[index]
            rows = partition.gather(places) - _RATE * gradients
            return partition.scatter(places, rows)

        def step(ids):
            with tf.device(settled.device):
                home.begin_step()
                unique, inverse = tf.unique(ids)
                (rows,) = home.pull([Pull(storage, unique)])
                gradients = _gradients(tf.gather(rows, inverse))
                summed = tf.math.unsorted_segment_sum(
                    gradients, inverse, tf.size(unique)
                )
                pushed = home.push([Push(storage, unique, summed, update)])
                home.end_step([pushed])
                with tf.control_dependencies([pushed]):
                    return tf.constant(0)

        return _Road(step, settled.meters)

    return build


def _allgather(plan, session):
    import horovod.tensorflow as hvd
    import tensorflow as tf

    del session
    table = tf.Variable(tf.fill((plan.rows, plan.width), _RATE))

    def step(ids):
        slices = tf.IndexedSlices(
            _gradients(tf.gather(table, ids)), ids, tf.constant(table.shape.as_list())
        )
        summed = hvd.allreduce(slices, op=hvd.Sum, name="slices")
        change = tf.IndexedSlices(-_RATE * summed.values, summed.indices)
        with tf.control_dependencies([table.scatter_add(change)]):
            return tf.constant(0)

    return _Road(step)


def _raw(plan, session):
    import horovod.tensorflow as hvd
    import tensorflow as tf

    size, rank = session.job.size, session.job.rank
    shard = tf.Variable(tf.fill((len(range(rank, plan.rows, size)), plan.width), _RATE))

    def step(ids):
        unique, _ = tf.unique(ids)
        owner = tf.math.floormod(unique, size)
        order = tf.argsort(owner, stable=True)
        counts = tf.math.bincount(owner, minlength=size, maxlength=size)
        asked, sources = hvd.alltoall(tf.gather(unique, order), counts, name="ids")
        places = tf.math.floordiv(asked, size)
        rows, _ = hvd.alltoall(tf.gather(shard, places), sources, name="rows")
        back, _ = hvd.alltoall(_gradients(rows), counts, name="gradients")
        touched, slots = tf.unique(places)
        summed = tf.math.unsorted_segment_sum(back, slots, tf.size(touched))
        change = tf.IndexedSlices(-_RATE * summed, touched)
        with tf.control_dependencies([shard.scatter_add(change)]):
            return tf.constant(0)

    return _Road(step)


def _gradients(rows):
    return rows * 0.001


_BUILDERS = {
    "dedicated": _through_home("dedicated"),
    "peers": _through_home("peers"),
    "allgather": _allgather,
    "raw": _raw,
}

if __name__ == "__main__":
    main(sys.argv[1])
