"""`FitSummary`: says in a few lines, at the end of `fit`, where the time went."""

from __future__ import annotations

import dataclasses

import keras

from keras_parallax.callbacks.stopwatch import Stopwatch, Window
from keras_parallax.collectives.load import imbalance
from keras_parallax.strategy import ParallaxStrategy

# What stands out: a share of a step that is worth a change, and a load beyond even.
_MUCH = 0.25
_UNEVEN = 1.5
# Calling a step takes some tenths of a millisecond, which no dataset can help.
_CALL_SECONDS = 1e-3

_TITLES = {
    "data": "waiting for data and calling the step",
    "pull": "pulling rows",
    "compute": "computing",
    "allreduce": "all-reducing gradients",
    "push": "pushing gradients of rows",
    "callbacks": "Keras and callbacks",
}


class FitSummary(keras.callbacks.Callback):
    """Prints one summary at the end of `fit`, on worker 0.

    How many examples and tokens a second, what a step has sent beside the least that
    it could, where the time went, and one hint what to change. Give it to `fit` on
    every worker; the others print nothing.

    Attributes:
        window: All steps of the last `fit` but those of its first call, as a
            `Window`; None before.
        text: What was printed, or would be on worker 0; "" before.

    Raises:
        ConfigError: When `fit` begins: the model was not built under a
            `ParallaxStrategy`.
    """

    def __init__(self):
        super().__init__()
        self.window: Window | None = None
        self.text = ""
        self._watch: Stopwatch | None = None

    def on_train_begin(self, logs=None):
        """Steps are timed from now on."""
        self._watch = Stopwatch(self.model, type(self).__name__)

    def on_epoch_begin(self, epoch, logs=None):
        """Times no step across an epoch's end."""
        if self._watch is not None:
            self._watch.pause()

    def on_train_batch_begin(self, batch, logs=None):
        """Notes the time."""
        if self._watch is not None:
            self._watch.begin_batch()

    def on_train_batch_end(self, batch, logs=None):
        """Notes the time."""
        if self._watch is not None:
            self._watch.end_batch()

    def on_epoch_end(self, epoch, logs=None):
        """What follows is no training."""
        if self._watch is not None:
            self._watch.pause()

    def on_train_end(self, logs=None):
        """Prints the summary."""
        if self._watch is None:
            return
        strategy = self._watch.strategy
        self.window = _of_all(self._watch.whole(), strategy)
        if self.window is None:
            return
        loads = [imbalance(load.by_server) for load in self._watch.loads()]
        uneven = max(loads, default=1.0)
        updates_all = any(entry.update == "exact" for entry in strategy.plan)
        self.text = summary_of(
            self.window,
            strategy.num_workers,
            strategy.num_servers,
            uneven,
            updates_all,
        )
        self._watch = None
        if strategy.is_chief:
            print(self.text, flush=True)


def _of_all(window: Window | None, strategy: ParallaxStrategy) -> Window | None:
    """The window, with the throughput of all workers; every worker calls it."""
    if not strategy.synchronous:
        return window  # The others may be steps away from their last.
    rates = (0.0, 0.0)
    if window is not None:
        rates = window.examples_per_second, window.tokens_per_second
    examples, tokens = map(sum, zip(*strategy.everyones(rates), strict=True))
    if window is None or window.all_examples_per_second is not None:
        return window
    return dataclasses.replace(
        window, all_examples_per_second=examples, all_tokens_per_second=tokens
    )


def summary_of(
    window: Window,
    workers: int,
    servers: int,
    uneven: float,
    updates_all: bool = False,
) -> str:
    """The summary of a window.

    Args:
        window: The window.
        workers: Number of workers.
        servers: Number of server processes.
        uneven: The largest load of a server as a multiple of the mean.
        updates_all: Whether each step updates all rows of some table.
    """
    lines = [
        f"keras-parallax: {window.steps:,} steps of {_ms(window.seconds)} on "
        f"{workers} worker{'s' * (workers > 1)}"
        + (f" and {servers} server{'s' * (servers > 1)}" if servers else ""),
        f"  throughput  {_throughput(window)}",
        f"  traffic     {_traffic(window, workers)}",
        f"  time        {_time(window)}",
        f"  hint        {hint(window, workers, servers, uneven, updates_all)}",
    ]
    return "\n".join(lines)


def hint(
    window: Window,
    workers: int,
    servers: int,
    uneven: float,
    updates_all: bool = False,
) -> str:
    """One thing to change, for what takes most of a step; see `summary_of`."""
    share = {
        name: (seconds or 0.0) / window.seconds
        for name, seconds in window.phases.items()
    }
    called = (window.phases["data"] or 0.0) <= _CALL_SECONDS
    if share["data"] > _MUCH and not called:
        return (
            "A step waits long for its batch: end the dataset with "
            "`.prefetch(tf.data.AUTOTUNE)`, read and map in parallel, or cache it."
        )
    if share["data"] + share["callbacks"] > _MUCH:
        return (
            "Steps are short beside what it takes to call them: take larger batches, "
            "compile with a larger `steps_per_execution`, look at what callbacks do."
        )
    if share["wait"] > _MUCH:
        return (
            "Workers wait for the slowest: compare `step_ms` of the workers in "
            "TensorBoard, and see what else runs on the slowest's machine."
        )
    travels = share["pull"] + share["push"] + share["allreduce"]
    if updates_all and travels > _MUCH:
        # Workers that wait for the update of another's rows see a long all-reduce.
        return (
            "The optimizer updates every row of a table in each step, touched or not: "
            "try `sparse_update='lazy'`, or Adagrad; both are other methods."
        )
    if servers and uneven > _UNEVEN and share["pull"] + share["push"] > _MUCH:
        return (
            f"The busiest server gets {uneven:.1f} times the mean: use more "
            "partitions (`partitions=`, or let `PartitionSearch` find how many)."
        )
    if share["pull"] + share["push"] > _MUCH and workers > 1:
        return (
            "Rows of tables take long: try larger batches, `wire='float16'` for half "
            "the bytes, or `PartitionSearch`"
            + (", or more servers." if servers else ".")
        )
    if share["allreduce"] > _MUCH:
        return (
            "The all-reduce takes long: try larger batches, or `dense_wire='float16'` "
            "for half the bytes."
        )
    return "Most of a step is computing: what makes the model faster helps most."


def _throughput(window: Window) -> str:
    examples, tokens = window.all_examples_per_second, window.all_tokens_per_second
    whose = ""
    if examples is None:
        examples, tokens = window.examples_per_second, window.tokens_per_second
        whose = " on this worker"
    words = f", {tokens:,.0f} tokens/s" if tokens else ""
    return f"{examples:,.0f} examples/s{words}{whose}"


def _traffic(window: Window, workers: int) -> str:
    if workers == 1 and not window.table_bytes:
        return "none: one worker, with its tables in its own process"
    parts = []
    if window.tables:
        told = f"{_mb(window.table_bytes)} a step and worker for tables"
        if window.least_bytes:
            factor = window.table_bytes / window.least_bytes
            told += f" ({factor:.2f} times the least, {_mb(window.least_bytes)})"
        parts.append(told)
    if window.allreduce_bytes:
        parts.append(f"{_mb(window.allreduce_bytes)} by all-reduce, computed")
    return "; ".join(parts) or "none"


def _time(window: Window) -> str:
    parts = [
        f"{(window.phases[name] or 0) / window.seconds:.0%} {title}"
        for name, title in _TITLES.items()
        if (window.phases[name] or 0) / window.seconds >= 0.005
    ]
    wait = window.phases["wait"]
    if wait is not None and wait / window.seconds >= 0.005:
        parts.append(f"of which {wait / window.seconds:.0%} waiting for slower workers")
    return ", ".join(parts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def _mb(number: float) -> str:
    return f"{number / 1e6:,.2f} MB"
