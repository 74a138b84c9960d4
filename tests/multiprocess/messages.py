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
            [tf.constant(size[me], tf.int32) for size in sizes],
            numbers,
        )
        for i, (size, found) in enumerate(zip(sizes, received, strict=True)):
            wanted = [content(size[by, me], step, i, by, me) for by in workers]
            if not np.array_equal(found, np.concatenate(wanted)):
                return f"step {step}: {size.tolist()} bytes"
        if not np.array_equal(total, len(workers) * numbers):
            return f"step {step}: a sum of {len(numbers)} numbers"
    return "all as sent"


@tf.function(reduce_retracing=True)
def exchange(sent, splits, numbers):
    """All at once: a message to each worker, several times, and a sum."""
    received = [
        hvd.alltoall(message, split, name=f"message{i}")[0]
        for i, (message, split) in enumerate(zip(sent, splits, strict=True))
    ]
    return received, hvd.allreduce(numbers, op=hvd.Sum, name="numbers")


def content(size, *seed):
    """What a message of some size is: its step, number, sender and receiver tell."""
    return np.random.default_rng(seed).integers(256, size=size, dtype="uint8")
