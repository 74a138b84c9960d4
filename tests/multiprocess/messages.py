"""Sends messages of all sizes among the workers of a job."""

import random
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

# The transport sends those of up to 64 KiB without asking.
SIZES = np.array([0, 1, 1000, 2**16 - 1, 2**16, 2**16 + 1, 300_000])
AT_ONCE = 3
STEPS = 40


def check(strategy):
    """Says whether all arrive as they were sent, whoever is late."""
    workers, me = range(strategy.num_workers), strategy.worker_index
    for step in range(STEPS):
        # The same at each worker: bytes of each message from one to another.
        shape = (AT_ONCE, len(workers), len(workers))
        sizes = np.random.default_rng(step).choice(SIZES, shape)
        sent = [
            [content(size[me, to], step, i, me, to) for to in workers]
            for i, size in enumerate(sizes)
        ]
        numbers = tf.range(sizes[0, 0, 0], dtype="float32")
        time.sleep(random.choice((0.0, 0.001, 0.004)))
        received, total = exchange(
            [tf.concat(parts, 0) for parts in sent],
            [splits(size, me, told=i > 0) for i, size in enumerate(sizes)],
            numbers,
        )
        for i, (size, found) in enumerate(zip(sizes, received, strict=True)):
            wanted = [content(size[by, me], step, i, by, me) for by in workers]
            if not np.array_equal(found, np.concatenate(wanted)):
                return f"step {step}: {size.tolist()} bytes"
        if not np.array_equal(total, len(workers) * numbers):
            return f"step {step}: a sum of {len(numbers)} numbers"
    return "all as sent"


def splits(size, me, told):
    """Bytes that go to each worker and, where these are told, come from each."""
    parts = [size[me], size[:, me]] if told else [size[me]]
    return tf.constant(np.concatenate(parts), tf.int32)


@tf.function(reduce_retracing=True)
def exchange(sent, parts, numbers):
    """All at once: a message to each worker, several times, and a sum.

    Some are told how long the messages will be that they receive.
    """
    received = [
        hvd.alltoall(message, part, name=f"message{i}")[0]
        for i, (message, part) in enumerate(zip(sent, parts, strict=True))
    ]
    return received, hvd.allreduce(numbers, op=hvd.Sum, name="numbers")


def content(size, *seed):
    """What a message of some size is: its step, number, sender and receiver tell."""
    return np.random.default_rng(seed).integers(256, size=size, dtype="uint8")
