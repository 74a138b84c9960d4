"""This worker's place in the job, and the few things that all workers do at once.

The calls here are for set-up and for what happens between steps: each is made by
every worker, in the same order. What happens within a step is in the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_parallax.cluster.topology import Topology


class Job:
    """The workers of one job, as seen by one of them.

    Horovod must be initialised when there is more than one worker.

    Args:
        topology: Who this worker is, and who else is there.

    Attributes:
        call_roll: Told what for before each wait for all workers; raises where they
            would never meet. None where the workers go in step, and wait for each
            other in any case.
    """

    def __init__(self, topology: Topology):
        self.topology = topology
        self.rank = topology.rank
        self.size = topology.size
        self.call_roll: Callable[[str], None] | None = None
        self._calls = 0
        self._doing = ""

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Within the block, workers wait for each other for `what`; the outermost
        block says it."""
        before, self._doing = self._doing, self._doing or what
        try:
            yield
        finally:
            self._doing = before

    def meet(self, what: str) -> None:
        """Called before this worker waits for all others, outside of a graph."""
        if self.call_roll is not None:
            self.call_roll(self._doing or what)

    def barrier(self, what: str = "each other") -> None:
        """Returns when every worker has called it.

        Args:
            what: What for.
        """
        with self.doing(what):
            self.gather(None)

    def share(self, value: Any) -> Any:
        """Worker 0's `value`, on every worker."""
        if self.size == 1:
            return value
        import horovod.tensorflow as hvd

        return hvd.broadcast_object(value, root_rank=0, name=self._name("share"))

    def gather(self, value: object) -> list:
        """Every worker's `value`, in order of rank, on every worker."""
        if self.size == 1:
            return [value]
        import horovod.tensorflow as hvd

        return hvd.allgather_object(value, name=self._name("gather"))

    def broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        """Worker `root`'s array, of the same shape and type on every worker."""
        if self.size == 1:
            return array
        import horovod.tensorflow as hvd

        name = self._name("broadcast")
        # As bytes: Horovod does not know every type that TensorFlow has.
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        sent = hvd.broadcast(tf.constant(flat), root, name=name).numpy()
        return sent.view(array.dtype).reshape(array.shape)

    def _name(self, what: str) -> str:
        # Horovod pairs operations by name: a fresh one a call keeps a worker
        # that is one call ahead from being paired with the wrong call.
        self.meet(f"a {what} of what all have to know")
        self._calls += 1
        return f"keras_parallax/job/{what}/{self._calls}"
