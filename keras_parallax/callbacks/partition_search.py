"""Finds the number of partitions while training goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import pathlib
import statistics
import time

import keras

from keras_parallax import errors
from keras_parallax.adaptation import retrace
from keras_parallax.cache import cache_dir, keep, kept
from keras_parallax.callbacks.stopwatch import strategy_of
from keras_parallax.plan.partition_search import PartitionSearch as Search
from keras_parallax.plan.plan import Entry
from keras_parallax.plan.routing import PARTITION_LIMIT_BYTES
from keras_parallax.roads import SERVERS

logger = logging.getLogger("keras_parallax")

# Tables whose traffic is within this factor of each other are searched together.
_ALIKE = 8.0
# Tables that have less than this of the traffic make no difference.
_LEAST_SHARE = 0.05
# By then the plan has seen what is looked up, and given tables their roads.
_STEPS_BEFORE = 7


class PartitionSearch(keras.callbacks.Callback):
    """Finds, in the first steps of `fit`, into how many partitions to cut tables.

    Tables on server processes are moved into some numbers of partitions in turn;
    with each, a few steps are timed. The model `t0 + t1/P + t2·P` of Kim et al.,
    "Parallax", EuroSys 2019, is fitted to the times, and the best number is kept for
    the rest of the training, and for the next run of the same model on the same
    cluster. Every step is a training step: none is lost or done twice.

    Tables that differ much in what they exchange are searched one group after the
    other. Where tables live in the workers there is nothing to search: each serves
    its share of the rows in one piece.

    Args:
        steps: Steps timed for each number; their median counts.
        warm_up_steps: Steps before them that are not timed.
        most_steps: Steps that the search may take in all.
        most_partitions: Most partitions to try; None for 16 a server.
        remember: Whether to keep the answer for the next run, and to use one that
            was kept.

    Attributes:
        searches: What was tried, by path of the first table of each group: its
            `samples`, `fit` and `chosen`.
        steps_taken: Steps that the search has taken.
    """

    def __init__(
        self,
        steps: int = 8,
        warm_up_steps: int = 3,
        most_steps: int = 100,
        most_partitions: int | None = None,
        remember: bool = True,
    ):
        super().__init__()
        if steps < 1 or warm_up_steps < 1 or most_steps < steps + warm_up_steps:
            raise errors.ConfigError(
                "A search takes at least one step to warm up and one that is timed, "
                f"and most_steps has room for both. Received: {steps=}, "
                f"{warm_up_steps=}, {most_steps=}"
            )
        self._steps = steps
        self._warm_up_steps = warm_up_steps
        self._most_steps = most_steps
        self._most_partitions = most_partitions
        self._remember = remember
        self.searches: dict[str, Search] = {}
        self._groups: list[list[Entry]] = []
        self._is_over = False
        self._search: Search | None = None
        self.steps_taken = 0
        self._seconds: list[float] = []
        self._ended = 0.0

    def on_train_begin(self, logs=None):
        """See `keras.callbacks.Callback`."""
        self._strategy = strategy = strategy_of(self.model, type(self).__name__)
        if self._is_over:
            return
        if strategy.num_servers == 0:
            self._end("tables live in the workers, each of which serves its share")
            return
        # Asked by all workers: it may have to be measured.
        self._network = strategy.network.to_dict()
        found = self._found_before()
        if found:
            self._apply(found)
            self._end(f"an earlier run has found {found}")

    def on_train_batch_end(self, batch, logs=None):
        """See `keras.callbacks.Callback`."""
        if self._is_over:
            return
        # From end to end: a step's last updates may go on while the next begins.
        before, self._ended = self._ended, time.perf_counter()
        self.steps_taken += 1
        if self._search is None:
            if self.steps_taken >= _STEPS_BEFORE:
                self._groups = self._groups_of_tables()
                self._next_group()
            return
        self._seconds.append(self._ended - before)
        if len(self._seconds) < self._warm_up_steps + self._steps:
            return
        mine = statistics.median(self._seconds[self._warm_up_steps :])
        # A step takes as long as it does for the slowest; and all decide alike.
        seconds = max(self._strategy.everyones(mine))
        self._search.add(self._count, seconds)
        self._sample(self._search)

    def _sample(self, search: Search) -> None:
        """Goes on to the next number of partitions, or the next group."""
        count = search.next_count()
        if count is not None:
            self._count = count
            self._apply({entry.variable: count for entry in self._group})
            self._seconds = []
            return
        chosen = search.chosen
        self._apply({entry.variable: chosen for entry in self._group})
        if self._strategy.is_chief:
            logger.info(
                "Partitions of %s: tried %s; %s; chosen: %d.",
                ", ".join(entry.variable for entry in self._group),
                ", ".join(
                    f"{count} ({1e3 * seconds:.1f} ms)"
                    for count, seconds in sorted(search.samples.items())
                ),
                search.fit,
                chosen,
            )
        self._next_group()

    def _next_group(self) -> None:
        self._search = None
        room = (self._most_steps - self.steps_taken) // (
            self._steps + self._warm_up_steps
        )
        if not self._groups or room < 2:
            self._end()
            return
        self._group = self._groups.pop(0)
        first = self._group[0]
        servers = self._strategy.num_servers
        rows = min(entry.shape[0] for entry in self._group)
        largest = max(entry.size_bytes for entry in self._group)
        self._search = Search(
            start=first.partitions,
            least=-(-largest // PARTITION_LIMIT_BYTES),
            most=min(rows, self._most_partitions or 16 * servers),
            most_samples=room if not self._groups else max(2, room // 2),
        )
        self.searches[first.variable] = self._search
        self._sample(self._search)

    def _groups_of_tables(self) -> list[list[Entry]]:
        """Tables on servers, those that exchange most first."""
        alphas = {s.variable: s.alpha for s in self._strategy.sparsity()}
        traffic = {
            entry.variable: entry.size_bytes * alphas.get(entry.variable, 0.0)
            for entry in self._strategy.plan
            if entry.road == SERVERS and entry.variable in alphas
        }
        total = sum(traffic.values())
        groups: list[list[Entry]] = []
        for path in sorted(traffic, key=lambda path: -traffic[path]):
            if traffic[path] < _LEAST_SHARE * total:
                continue
            entry = self._strategy.plan[path]
            if groups and traffic[groups[-1][0].variable] < _ALIKE * traffic[path]:
                groups[-1].append(entry)
            else:
                groups.append([entry])
        return groups

    def _apply(self, counts: dict[str, int]) -> None:
        plan = self._strategy.plan
        counts = {
            path: count
            for path, count in counts.items()
            # The plan may have found another road for it meanwhile.
            if plan[path].road == SERVERS and plan[path].partitions != count
        }
        if counts:
            self._strategy.repartition(counts)
            retrace(self.model)

    def _end(self, why: str = "") -> None:
        self._is_over = True
        self._search = None
        if why and self._strategy.is_chief:
            logger.info("Partitions are not searched: %s.", why)
        if self.searches and self._remember and self._strategy.is_chief:
            found = {
                entry.variable: entry.partitions
                for entry in self._strategy.plan
                if entry.road == SERVERS
            }
            keep(self._path(), "Numbers of partitions", found)

    def _found_before(self) -> dict[str, int]:
        """What an earlier run has found, if it fits this one."""
        found: dict[str, int] = {}
        if self._remember and self._strategy.is_chief:
            found = kept(self._path()) or {}
            shapes = {e.variable: e.shape for e in self._strategy.plan}
            if not all(
                p in shapes and 1 <= n <= shapes[p][0] for p, n in found.items()
            ):
                found = {}
        return self._strategy.everyones(found)[0]

    def _path(self) -> pathlib.Path:
        """Where the answer for this model on this cluster is kept."""
        what = {
            "variables": [(e.variable, e.shape, e.dtype) for e in self._strategy.plan],
            "optimizer": type(self.model.optimizer).__name__,
            "workers": self._strategy.num_workers,
            "servers": self._strategy.num_servers,
            "network": self._network,
        }
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
        return cache_dir() / "partitions" / f"{digest[:32]}.json"
