"""How many threads a worker computes with: its share of its machine's cores.

TensorFlow gives an operation as many threads as there are cores, in each process. The
workers of one machine would then have several for each core, and spend their time on
changing places: four workers on two cores took 1.22 times as long for a step of the
example `language_model.py` (179 ms, 147 ms).
"""

import os

# Read by TensorFlow when it begins to compute.
THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"


def usable_cores() -> int:
    """Cores that this process may use: a container or a scheduler may give it few."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def share_of_cores(workers: int) -> int:
    """Threads for each of the workers of this machine, at least one.

    Args:
        workers: How many there are.
    """
    return max(1, usable_cores() // workers)
