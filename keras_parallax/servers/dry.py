"""A home that holds nothing, for predicting what a table would cost.

Lookups get rows of zeros and pushes change nothing, so a step runs as it would with
tables of any size; what it asks for is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_parallax.servers.home import Home, Pull, Push
from keras_parallax.servers.storage import Storage, TableSpec
from keras_parallax.servers.sums import Sums, SumsHere


class DryHome(Home):
    """Takes note of the rows that steps push to, and keeps none.

    Attributes:
        pushed: Ids that each push has named, each once, by path of the table.
    """

    name = "in_process"
    sends_messages = False

    def __init__(self) -> None:
        # The name of no device: nobody asks it for its free memory.
        self.devices = ("dry",)
        self.pushed: dict[str, list[np.ndarray]] = {}

    def allocate(
        self, spec: TableSpec, constant: float | None, initial_rows: Callable | None
    ) -> Storage:
        """See `Home.allocate`; makes no rows."""
        del constant, initial_rows
        return Storage(spec, [])

    def open(self, spec: TableSpec) -> Storage:
        """See `Home.open`."""
        return Storage(spec, [])

    def pull(self, requests: Sequence[Pull]) -> list[tf.Tensor]:
        """See `Home.pull`; all rows are zeros."""
        specs = [request.storage.spec for request in requests]
        return [
            tf.zeros((tf.size(request.ids), *spec.row_shape), spec.dtype)
            for request, spec in zip(requests, specs, strict=True)
        ]

    def sum(self, contributions: Sequence[Push]) -> Sums:
        """See `Home.sum`."""
        return SumsHere(contributions, self._note)

    def _note(self, contributions: Sequence[Push]) -> tf.Operation:
        # The gradients are asked for, too: they are what a step computes.
        return tf.group(
            *(
                tf.numpy_function(
                    self._noting(push.storage.spec.path),
                    [push.ids, tf.reduce_sum(push.gradients)],
                    [],
                )
                for push in contributions
            )
        )

    def _noting(self, path: str) -> Callable:
        def note(ids: np.ndarray, total: np.ndarray) -> None:
            del total
            self.pushed.setdefault(path, []).append(ids.copy())

        return note

    def read_rows(self, storage: Storage, start: int, stop: int) -> np.ndarray:
        """See `Home.read_rows`."""
        spec = storage.spec
        return np.zeros((stop - start, *spec.row_shape), spec.dtype.as_numpy_dtype)

    def assign_rows(self, storage: Storage, start: int, rows: np.ndarray) -> None:
        """See `Home.assign_rows`; forgets them."""
