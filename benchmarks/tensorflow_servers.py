"""The language model on TensorFlow's own parameter servers, in plain TensorFlow.

`ParameterServerStrategy` trains no model of Keras 3, but a loop of one's own still can:
asynchronously, since it knows no other way. Workers take steps by themselves, as the
coordinator hands them out, and each variable lives whole on one of the servers, as it
does without a partitioner. Run by `comparison.py` as each process of a cluster that has
one process more on each host, which is the server:

    python -m benchmarks.tensorflow_servers '{"model": "language model", …}'

with the fields of `system_steps.Job`. Rank 0 is the coordinator, and starts the worker
whose place it takes.
"""

import json
import os
import socket
import subprocess
import sys
import time

from benchmarks import system_steps
from benchmarks.cluster import print_result
from benchmarks.mirrored import HOSTS_VARIABLE

_CHIEF_PORT, _GOODBYE_PORT, _FIRST_PORT = 41_998, 41_999, 42_000
_LEARNING_RATE = 0.05


def main(text, *task):
    job = system_steps.Job(**json.loads(text))
    hosts = os.environ[HOSTS_VARIABLE].split(",")
    rank = int(os.environ["HOROVOD_RANK"])
    local_size = int(os.environ["HOROVOD_LOCAL_SIZE"])
    cluster = cluster_of(hosts, local_size)
    if rank > 0 or task:
        serve(cluster, *place_of(rank, local_size), hosts[0])
    command = [sys.executable, "-m", "benchmarks.tensorflow_servers", text, "worker"]
    # While this is open, servers stay; they connect to it and hear when it is closed.
    with socket.create_server((hosts[0], _GOODBYE_PORT), backlog=256):
        worker = subprocess.Popen(command)
        try:
            print_result({name: coordinate(job, cluster) for name in job.systems})
        finally:
            worker.kill()
    # The strategy's threads would wait for servers that are gone.
    os._exit(0)


def cluster_of(hosts, local_size):
    """Addresses by task: on each host a server, and a worker less than processes."""
    workers = [
        f"{host}:{_FIRST_PORT + local}"
        for host in hosts
        for local in range(local_size - 1)
    ]
    servers = [f"{host}:{_FIRST_PORT + local_size - 1}" for host in hosts]
    return {"chief": [f"{hosts[0]}:{_CHIEF_PORT}"], "worker": workers, "ps": servers}


def place_of(rank, local_size):
    """Task and index of a process: the last on each host is the server."""
    host, local = divmod(rank, local_size)
    if local == local_size - 1:
        return "ps", host
    return "worker", host * (local_size - 1) + local


def serve(cluster, task, index, chief):
    """Serves until the coordinator says goodbye, and ends the process."""
    import tensorflow as tf

    server = tf.distribute.Server(cluster, task, index, protocol="grpc")
    connection = socket.socket()
    while connection.connect_ex((chief, _GOODBYE_PORT)):
        connection.close()
        time.sleep(0.2)
        connection = socket.socket()
    try:
        connection.recv(1)
    except ConnectionError:
        pass
    del server
    os._exit(0)


def coordinate(job, cluster):
    """Has the workers take steps; returns what `system_steps` would have found."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = LanguageModel(**job.options)
    workers = len(cluster["worker"])
    batches = iter(
        coordinator.create_per_worker_dataset(lambda: model.batches(job.batch))
    )

    @tf.function
    def step(batches):
        return strategy.run(model.step, (next(batches),))

    def seconds(steps):
        start = time.perf_counter()
        for _ in range(steps * workers):
            coordinator.schedule(step, args=(batches,))
        coordinator.join()
        return (time.perf_counter() - start) / steps

    seconds(1)
    count = system_steps.steps_of_turn(job.steps, seconds(1))
    turns = [{"seconds": seconds(count), "host_bytes": None} for _ in range(job.turns)]
    return {"turns": turns, "least_bytes": None, "plan": {}, "changes": []}


class LanguageModel:
    """`kinds.language_model` as variables and a step; made in a strategy's scope."""

    def __init__(self, vocabulary, width, drawn):
        import tensorflow as tf

        from benchmarks.models import kinds

        def variable(*shape):
            return tf.Variable(tf.random.stateless_normal(shape, (0, 1), stddev=0.05))

        self._vocabulary, self._drawn = vocabulary, drawn
        self._draw = kinds.SampledSoftmax(vocabulary, drawn)._draw
        self._words = kinds.WORDS
        self._embedding = variable(vocabulary, width)
        self._kernel = variable(2 * width, 4 * width)
        self._bias = variable(4 * width)
        self._softmax = variable(vocabulary, width)
        self._width = width

    def batches(self, batch):
        """Batches of one worker, without an end."""
        import tensorflow as tf

        from benchmarks.models import kinds
        from benchmarks.systems import BATCHES

        shape = (batch * BATCHES, self._words + 1)
        text = tf.data.Dataset.from_tensor_slices(kinds.zipf(self._vocabulary, shape))
        return text.batch(batch, drop_remainder=True).cache().repeat()

    def step(self, text):
        """One step of SGD; returns the loss."""
        import tensorflow as tf

        variables = [self._embedding, self._kernel, self._bias, self._softmax]
        with tf.GradientTape() as tape:
            loss = self._loss(text[:, :-1], text[:, 1:])
        for variable, gradient in zip(
            variables, tape.gradient(loss, variables), strict=True
        ):
            if isinstance(gradient, tf.IndexedSlices):
                change = _LEARNING_RATE * gradient.values
                variable.scatter_sub(tf.IndexedSlices(change, gradient.indices))
            else:
                variable.assign_sub(_LEARNING_RATE * gradient)
        return loss

    def _loss(self, words, targets):
        import tensorflow as tf

        # Read once: each use of a remote variable sends it again.
        kernel, bias = tf.identity(self._kernel), tf.identity(self._bias)
        embedded = tf.nn.embedding_lookup(self._embedding, words)
        hidden = cell = tf.zeros((tf.shape(words)[0], self._width))
        outputs = []
        for x in tf.unstack(embedded, self._words, axis=1):
            gates = tf.matmul(tf.concat([x, hidden], 1), kernel) + bias
            enter, forget, new, leave = tf.split(gates, 4, axis=1)
            cell = tf.sigmoid(forget) * cell + tf.sigmoid(enter) * tf.tanh(new)
            hidden = tf.sigmoid(leave) * tf.tanh(cell)
            outputs.append(hidden)
        targets = tf.reshape(tf.cast(targets, tf.int64), (-1, 1))
        return tf.reduce_mean(
            tf.nn.sampled_softmax_loss(
                self._softmax,
                tf.zeros([self._vocabulary]),
                targets,
                tf.reshape(tf.stack(outputs, 1), (-1, self._width)),
                self._drawn,
                self._vocabulary,
                sampled_values=self._draw(targets),
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
