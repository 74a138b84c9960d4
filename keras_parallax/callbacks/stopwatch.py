"""What a stretch of training took: the difference of two looks at the counters.

Everything that is counted is counted in the graph or by the clock; here it is read,
a few times an epoch, and made into numbers a step.
"""

from __future__ import annotations

import dataclasses
import time

import keras

from keras_parallax import errors
from keras_parallax.collectives.load import TableLoad
from keras_parallax.collectives.spans import Reading
from keras_parallax.plan.traffic import TableTraffic, Traffic, hit_share
from keras_parallax.strategy import ParallaxStrategy

#: Parts of a step, in the order in which it comes to them. "wait" is contained in
#: those before it, and they overlap.
PHASES = ("data", "pull", "compute", "allreduce", "push", "wait", "callbacks")


def strategy_of(model: keras.Model, callback: str) -> ParallaxStrategy:
    """The strategy in whose scope a model was built.

    Args:
        model: The model.
        callback: Name of the callback that asks, for the message.

    Raises:
        ConfigError: The model was not built in the scope of a `ParallaxStrategy`.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if isinstance(strategy, ParallaxStrategy):
        return strategy
    raise errors.ConfigError(
        f"{callback} needs a model that was built in the scope of a ParallaxStrategy. "
        "Build and compile it in `with strategy.scope():`, where strategy is a "
        "keras_parallax.ParallaxStrategy; or leave the callback out. Received: "
        f"the model {model.name!r}, whose strategy is a {type(strategy).__name__}."
    )


@dataclasses.dataclass(frozen=True)
class TableWindow:
    """One table in a window; numbers a step, of this worker.

    Attributes:
        variable: Path of the variable.
        alpha: Share of the table's rows that a step pushes to.
        pulled_ids: Distinct ids that a step pulls, summed over lookups.
        pushed_ids: Distinct ids that a step pushes.
        moved_bytes: Bytes of their rows, gradients and ids.
        hit_share: Share of the ids looked up whose row was pulled for another of
            the same lookup already; None where nothing was looked up.
    """

    variable: str
    alpha: float
    pulled_ids: float
    pushed_ids: float
    moved_bytes: float
    hit_share: float | None = None


@dataclasses.dataclass(frozen=True)
class Window:
    """Some steps in a row; numbers a step, of this worker unless they say all.

    Attributes:
        steps: How many steps.
        seconds: Seconds a step, from one to the next.
        phases: Seconds a step of each of `PHASES`; None for what is not known.
        examples_per_second: Examples.
        tokens_per_second: Elements of integer sequences; 0 where inputs are none.
        all_examples_per_second: Examples of all workers; None where not known.
        all_tokens_per_second: Tokens of all workers; None where not known.
        sent_bytes: Sent for tables to other processes.
        received_bytes: Received for tables from other processes.
        least_bytes: The least that both together could have been.
        allreduce_bytes: What a ring all-reduce of the dense gradients sends and
            receives, by arithmetic.
        tables: Each table's.
    """

    steps: int
    seconds: float
    phases: dict[str, float | None]
    examples_per_second: float
    tokens_per_second: float
    all_examples_per_second: float | None
    all_tokens_per_second: float | None
    sent_bytes: float
    received_bytes: float
    least_bytes: float
    allreduce_bytes: float
    tables: tuple[TableWindow, ...]

    @property
    def table_bytes(self) -> float:
        """Sent and received for tables, a step."""
        return self.sent_bytes + self.received_bytes


@dataclasses.dataclass(frozen=True)
class _Look:
    reading: Reading
    traffic: Traffic
    seconds: float
    call_seconds: float


class Stopwatch:
    """Measures the steps of `fit`, told of each batch by a callback.

    The first call of a `fit` is left out: it traces the step.

    Args:
        model: The model that is trained.
        callback: Name of the callback that measures, for messages.

    Raises:
        ConfigError: The model was not built in the scope of a `ParallaxStrategy`.
    """

    def __init__(self, model: keras.Model, callback: str):
        self.strategy = strategy_of(model, callback)
        if self.strategy.spans.switch_on() and model.train_function is not None:
            # Its graph may have been traced before, without spans.
            model.make_train_function(force=True)
        self._seconds = 0.0
        self._call_seconds = 0.0
        self._resumed_at: float | None = None
        self._called_at = 0.0
        self._first: _Look | None = None
        self._before: _Look | None = None

    def pause(self) -> None:
        """What follows is no training: an epoch has ended."""
        self._resumed_at = None

    def begin_batch(self) -> None:
        """The step function is about to be called."""
        self._called_at = time.perf_counter()
        if self._resumed_at is None:
            self._resumed_at = self._called_at

    def end_batch(self) -> None:
        """It has returned."""
        now = time.perf_counter()
        if self._resumed_at is None:
            return
        self._call_seconds += now - self._called_at
        self._seconds += now - self._resumed_at
        self._resumed_at = now
        if self._first is None:
            self._first = self._before = self._look()
            self.resume()

    def window(self) -> Window | None:
        """The steps since the last call, or None if there were none."""
        if self._before is None:
            return None
        window, now = self._since(self._before)
        if window is not None:
            self._before = now
        return window

    def resume(self) -> None:
        """What was done since the batch ended is no part of a step."""
        if self._resumed_at is not None:
            self._resumed_at = time.perf_counter()

    def whole(self) -> Window | None:
        """All steps but for those of the first call, or None if there were none."""
        return None if self._first is None else self._since(self._first)[0]

    def loads(self) -> list[TableLoad]:
        """Where the rows that this worker has pushed have fallen."""
        return self.strategy.spans.load.read()

    def _look(self) -> _Look:
        return _Look(
            self.strategy.spans.read(),
            self.strategy.traffic,
            self._seconds,
            self._call_seconds,
        )

    def _since(self, before: _Look) -> tuple[Window | None, _Look]:
        now = self._look()
        reading = now.reading - before.reading
        if reading.steps < 1:
            return None, now
        return _window(reading, before, now, self.strategy.num_workers), now


def _window(reading: Reading, before: _Look, now: _Look, workers: int) -> Window:
    steps = reading.steps
    seconds = max(now.seconds - before.seconds, 1e-9)
    called = now.call_seconds - before.call_seconds
    wait = reading.wait_seconds + reading.hold_seconds
    knows_all = reading.told_steps >= 0.5 * steps
    knows_wait = knows_all or reading.hold_seconds > 0
    travels = _each_moment_once(reading)
    spent: dict[str, float | None] = {
        "data": max(0.0, called - reading.step_seconds),
        "pull": travels["pull"],
        "compute": max(0.0, reading.step_seconds - reading.travel_seconds),
        "allreduce": travels["allreduce"],
        "push": travels["push"],
        "wait": wait if knows_wait else None,
        "callbacks": max(0.0, seconds - called),
    }
    # The numbers of others come one step late.
    told = seconds * reading.told_steps / steps
    then = {table.variable: table for table in before.traffic.tables}
    return Window(
        steps=round(steps),
        seconds=seconds / steps,
        phases={
            name: None if value is None else value / steps
            for name, value in spent.items()
        },
        examples_per_second=reading.examples / seconds,
        tokens_per_second=reading.tokens / seconds,
        all_examples_per_second=reading.all_examples / told if knows_all else None,
        all_tokens_per_second=reading.all_tokens / told if knows_all else None,
        sent_bytes=(now.traffic.sent_bytes - before.traffic.sent_bytes) / steps,
        received_bytes=(now.traffic.received_bytes - before.traffic.received_bytes)
        / steps,
        least_bytes=(now.traffic.least_bytes - before.traffic.least_bytes) / steps,
        allreduce_bytes=4 * now.traffic.dense_bytes * (workers - 1) / workers,
        tables=tuple(
            _table(table, then.get(table.variable)) for table in now.traffic.tables
        ),
    )


def _each_moment_once(reading: Reading) -> dict[str, float]:
    """Seconds of the phases that overlap, so that they add up: what an all-reduce does
    while rows are pushed or pulled is hidden by these, and costs a step nothing."""
    seconds = {
        "allreduce": reading.allreduce_seconds,
        "push": reading.push_seconds,
        "pull": reading.pull_seconds,
    }
    twice = sum(seconds.values()) + reading.hold_seconds - reading.travel_seconds
    for name, spent in seconds.items():
        hidden = min(spent, max(0.0, twice))
        seconds[name] = spent - hidden
        twice -= hidden
    return seconds


def _table(now: TableTraffic, before: TableTraffic | None) -> TableWindow:
    # A table whose counts have begun anew has not been there before.
    if before is None or before.steps > now.steps:
        before = TableTraffic(now.variable, 0, 0, 0, 0.0, 0)
    steps = max(1, now.steps - before.steps)
    pulled = now.pulled_rows - before.pulled_rows
    pushed = now.pushed_rows - before.pushed_rows
    return TableWindow(
        variable=now.variable,
        alpha=(now.alpha * now.steps - before.alpha * before.steps) / steps,
        pulled_ids=pulled / steps,
        pushed_ids=pushed / steps,
        moved_bytes=(now.moved_bytes - before.moved_bytes) / steps,
        hit_share=hit_share(pulled, now.requested_ids - before.requested_ids),
    )
