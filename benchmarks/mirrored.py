"""A model under TensorFlow's `MultiWorkerMirroredStrategy`, in a loop of one's own.

Its `fit` trains no model of Keras 3 that has an Embedding; a loop that computes
gradients and hands them to the optimizer does. Dense gradients are all-reduced by
TensorFlow's own collectives and slices gathered. Run by `comparison.py` as each worker:

    python -m benchmarks.mirrored '{"model": "language model", …}'

with the fields of `system_steps.Job`.
"""

import json
import os
import sys
import time

from benchmarks import system_steps, systems
from benchmarks.cluster import host_traffic, print_result

#: Addresses of the hosts, separated by commas; set by whoever starts the processes.
HOSTS_VARIABLE = "BENCHMARK_HOSTS"
_FIRST_PORT = 43_000
_WARM_UP_STEPS = 2


def main(text):
    job = system_steps.Job(**json.loads(text))
    rank, local_rank, local_size = (
        int(os.environ[f"HOROVOD_{name}"])
        for name in ("RANK", "LOCAL_RANK", "LOCAL_SIZE")
    )
    workers = addresses(os.environ[HOSTS_VARIABLE].split(","), local_size)
    # Read by the strategy when it is made, which has to come first of all.
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    )
    step = Steps(job, len(workers))

    def seconds(count):
        start = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - start) / count

    last = [seconds(1) for _ in range(_WARM_UP_STEPS)][-1]
    # Each worker has to take as many steps as the others.
    count = system_steps.steps_of_turn(job.steps, last) if rank == 0 else 0
    count = step.agree(count)
    turns = []
    for _ in range(job.turns):
        before = host_traffic()
        taken = seconds(count)
        crossed = None
        if before is not None and local_rank == 0:
            crossed = (host_traffic() - before).total_bytes / count
        turns.append({"seconds": taken, "host_bytes": crossed})
    found = {"turns": turns, "least_bytes": None, "plan": {}, "changes": []}
    print_result({name: found for name in job.systems})


def addresses(hosts, local_size):
    """Address of each worker, in order of rank."""
    return [
        f"{host}:{_FIRST_PORT + local}" for host in hosts for local in range(local_size)
    ]


class Steps:
    """Takes steps when it is called; every worker calls it.

    Args:
        job: What to measure.
        size: Number of workers.
    """

    def __init__(self, job, size):
        import tensorflow as tf

        self._strategy = strategy = tf.distribute.MultiWorkerMirroredStrategy()
        build = system_steps.builders()[job.model]
        with strategy.scope():
            model, dataset = systems.Model(build, job.options, job.batch * size).make()
            model.optimizer.build(model.trainable_variables)
        self._batches = iter(strategy.experimental_distribute_dataset(dataset))

        def of_worker(x, y):
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            # The optimizer adds up what the workers have.
            gradients = [_divided(gradient, size) for gradient in gradients]
            model.optimizer.apply(gradients, model.trainable_variables)
            return loss

        @tf.function
        def step(batches):
            losses = strategy.run(of_worker, next(batches))
            return strategy.reduce("MEAN", losses, axis=None)

        self._step = step

    def __call__(self):
        return float(self._step(self._batches))

    def agree(self, number):
        """The sum of the workers' numbers."""
        import tensorflow as tf

        @tf.function
        def total():
            context = tf.distribute.get_replica_context
            return self._strategy.run(
                lambda: context().all_reduce("SUM", tf.constant(number, tf.int32))
            )

        return int(total())


def _divided(gradient, count):
    import tensorflow as tf

    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values / count, gradient.indices, gradient.dense_shape
        )
    return gradient / count


if __name__ == "__main__":
    main(sys.argv[1])
