"""`ParallaxTensorBoard`: shows in TensorBoard what the strategy does."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
import psutil

from keras_parallax import errors
from keras_parallax.callbacks import charts, load_picture, plan_text
from keras_parallax.callbacks.event_file import EventFile
from keras_parallax.callbacks.server_accounts import ServerAccounts
from keras_parallax.callbacks.stopwatch import Stopwatch

if TYPE_CHECKING:
    from keras_parallax.callbacks.partition_search import PartitionSearch

_METRICS = {
    "throughput/all_examples_per_second": "examples per second",
    "throughput/all_tokens_per_second": "tokens per second",
    "step_ms/total": "milliseconds per step",
}


class ParallaxTensorBoard(keras.callbacks.Callback):
    """Writes throughput, where a step's time goes, traffic and the plan.

    Each worker writes under `<log_dir>/parallax/worker-<rank>`, beside the `train`
    and `validation` of `keras.callbacks.TensorBoard`. Look at it with `tensorboard
    --logdir <log_dir>`; its page "Custom Scalars" opens on the charts that one wants
    first. Give it to `fit` on every worker.

    ```python
    model.fit(dataset, callbacks=[kp.callbacks.ParallaxTensorBoard("logs")])
    ```

    Steps are timed in their graph from then on, which costs a little of each step; see
    the benchmark `watching`.

    Args:
        log_dir: The folder that TensorBoard looks into.
        update_freq: Write every so many steps; "epoch" writes at each epoch's end
            only. An epoch's end writes the steps that are left in any case.
        hparams: Settings of the run to note beside those that are known by
            themselves, `{name: number, text or bool}`.
        search: A `PartitionSearch` of the same `fit`, whose samples are shown.

    Raises:
        ConfigError: `update_freq` is neither "epoch" nor a positive number; when
            `fit` begins: the model was not built under a `ParallaxStrategy`.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike = "logs",
        update_freq: int | str = 100,
        *,
        hparams: Mapping[str, str | float | bool] | None = None,
        search: PartitionSearch | None = None,
    ):
        super().__init__()
        valid = update_freq == "epoch" or (type(update_freq) is int and update_freq > 0)
        if not valid:
            raise errors.ConfigError(
                "`update_freq` is 'epoch' or a number of steps, 1 or more. "
                f"Received: update_freq={update_freq!r}"
            )
        self._folder = pathlib.Path(log_dir) / "parallax"
        self._every = None if update_freq == "epoch" else int(update_freq)
        self._hparams = dict(hparams or {})
        self._search = search
        self._process = psutil.Process()
        self._file: EventFile | None = None
        self._watch: Stopwatch | None = None
        self._servers: ServerAccounts | None = None
        self._steps = 0
        self._batch = 0
        self._is_laid_out = False
        self._changes = 0
        self._shown = ""
        self._searched = ""

    def on_train_begin(self, logs=None):
        """Opens the event file; steps are timed from now on."""
        self._watch = Stopwatch(self.model, type(self).__name__)
        strategy = self._watch.strategy
        self._file = EventFile(self._folder / f"worker-{strategy.worker_index}")
        self._steps = 0
        self._is_laid_out = False
        if strategy.is_chief:
            self._file.hparams(self._settings(), _METRICS)
            if strategy.num_servers:
                self._servers = ServerAccounts.of_connected()
                self._servers.read()  # What comes is told as a difference from this.

    def on_epoch_begin(self, epoch, logs=None):
        """Times no step across an epoch's end."""
        if self._watch is not None:
            self._watch.pause()

    def on_train_batch_begin(self, batch, logs=None):
        """Notes the time."""
        self._batch = batch
        if self._watch is not None:
            self._watch.begin_batch()

    def on_train_batch_end(self, batch, logs=None):
        """Writes, if `update_freq` steps are over."""
        if self._watch is None:
            return
        self._watch.end_batch()
        self._steps += batch - self._batch + 1
        if self._every is not None and self._steps >= self._every:
            self._write()

    def on_epoch_end(self, epoch, logs=None):
        """Writes the steps that are left, and the pictures."""
        if self._watch is None or self._file is None:
            return
        self._watch.pause()
        self._write()
        if self._watch.strategy.is_chief:
            self._write_plan()
            self._write_search()
        for load in self._watch.loads():
            if len(load.by_partition) > 1:
                self._file.picture(
                    self._now(),
                    f"where_ids_fall/{load.variable}",
                    load_picture.draw(load),
                    "Which partitions the pushed rows of this worker have fallen on.",
                )
        self._file.flush()

    def on_train_end(self, logs=None):
        """Closes the event file."""
        if self._file is not None:
            self._file.close()
        self._file = self._watch = self._servers = None

    def _write(self) -> None:
        if self._watch is None or self._file is None:
            return
        window = self._watch.window()
        if window is None:
            return
        self._steps = 0
        strategy = self._watch.strategy
        plan = strategy.plan.to_dict()
        values = charts.scalars(
            window,
            self._watch.loads(),
            plan,
            self._process.memory_info().rss,
            strategy.is_chief,
            [] if self._servers is None else self._servers.read(),
        )
        self._file.scalars(self._now(), values, charts.described(values))
        if strategy.is_chief and not self._is_laid_out:
            self._file.layout(charts.layout(values))
            self._is_laid_out = True
        if strategy.is_chief and not self._shown:
            self._write_plan()
        self._watch.resume()

    def _write_plan(self) -> None:
        if self._file is None:
            return
        plan = self.model.distribute_strategy.plan
        shown = plan_text.plan_as_markdown(plan.to_dict())
        if shown != self._shown:
            self._file.text(self._now(), "plan", shown)
            self._shown = shown
        changes = plan.changes[self._changes :]
        if changes:
            listed = "\n".join(f"- {line}" for line in changes)
            self._file.text(self._now(), "plan_changes", listed)
            self._changes += len(changes)

    def _write_search(self) -> None:
        if self._file is None or self._search is None:
            return
        markdown = plan_text.searches_as_markdown(self._search.searches)
        if markdown and markdown != self._searched:
            self._file.text(self._now(), "partition_search", markdown)
            self._searched = markdown

    def _now(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def _settings(self) -> dict[str, str | float | bool]:
        strategy = self.model.distribute_strategy
        optimizer = self.model.optimizer
        homes = {e.home for e in strategy.plan if e.road == "servers"}
        return {
            "workers": strategy.num_workers,
            "servers": strategy.num_servers,
            "tables": sum(e.road == "servers" for e in strategy.plan),
            "home": ", ".join(sorted(homes)) or "none",
            "optimizer": type(optimizer).__name__,
            "learning_rate": float(optimizer.learning_rate),
            "steps_per_execution": int(self.model.steps_per_execution),
            **self._hparams,
        }
