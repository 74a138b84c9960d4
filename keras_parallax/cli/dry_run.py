"""Runs a model's step on a sample of its data, with tables that hold nothing.

What it learns of each variable, and how long a step computes, is what the cost model
wants to know.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_parallax.errors import ConfigError
from keras_parallax.plan.plan import Entry
from keras_parallax.plan.prediction import grown_share
from keras_parallax.plan.use import Use
from keras_parallax.servers.choice import Settled
from keras_parallax.servers.dry import DryHome
from keras_parallax.strategy import ParallaxStrategy

#: Names that a model file has to define.
BUILD, SAMPLE = "build_model", "sample_batch"

_NO_DATA = "a tuple (x, y), or x alone where the model makes its own loss"


@dataclasses.dataclass(frozen=True)
class Observed:
    """What a step was seen to do.

    Attributes:
        uses: Its variables.
        shapes: Their shapes, by path.
        compute_s: Seconds that it took here.
        examples: Examples in the batch.
        notes: What had to be assumed, a sentence each.
    """

    uses: tuple[Use, ...]
    shapes: dict[str, tuple[int, ...]]
    compute_s: float
    examples: int
    notes: tuple[str, ...] = ()


class DryStrategy(ParallaxStrategy):
    """One worker, whose tables hold nothing."""

    def __init__(self) -> None:
        self.dry_home = DryHome()
        super().__init__(servers="in_process")

    def _settle(self, *_) -> Settled:
        return Settled(self.dry_home, "/CPU:0")


def load(path: str | pathlib.Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """`build_model` and `sample_batch` of a model file.

    Raises:
        ConfigError: There is no such file, or it lacks one of them.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. Expected a Python file.")
    name = "keras_parallax_model_file"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file: its name has to end in .py.")
    module = importlib.util.module_from_spec(spec)
    # As for a script: what lies beside it can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    spec.loader.exec_module(module)
    missing = [wanted for wanted in (BUILD, SAMPLE) if not hasattr(module, wanted)]
    if missing:
        raise ConfigError(
            f"{path} has to define `{BUILD}()`, which returns a compiled model, and "
            f"`{SAMPLE}()`, which returns one worker's batch of one step: {_NO_DATA}. "
            f"Missing: {', '.join(missing)}"
        )
    return getattr(module, BUILD), getattr(module, SAMPLE)


def observe(
    build_model: Callable[[], Any],
    sample_batch: Callable[[], Any],
    *,
    workers: int,
    workers_per_machine: int,
    samples: int = 4,
) -> Observed:
    """Runs a model's step on some batches.

    Args:
        build_model: Makes the model, compiled.
        sample_batch: Makes one worker's batch; called once for each sample.
        workers: Workers of the cluster that is asked about.
        workers_per_machine: How many of them share a machine.
        samples: Number of batches.

    Raises:
        ConfigError: One of the functions returns something else.
    """
    strategy = DryStrategy()
    with strategy.scope():
        model = build_model()
    if not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        raise ConfigError(
            f"`{BUILD}()` has to return a compiled Keras model. Received: {model!r}"
        )
    batches = [_unpacked(sample_batch()) for _ in range(max(1, samples))]
    # The first step is traced, which is not what a step takes.
    _seconds_of_step(model, batches[0])
    pushed = strategy.dry_home.pushed
    pushed.clear()
    seconds = [_seconds_of_step(model, batch) for batch in batches]
    slots = _slots(model)
    entries = [entry for entry in strategy.plan if entry.gradient != "none"]
    notes: list[str] = []
    uses = tuple(
        _use(entry, pushed, slots, workers, workers_per_machine, notes)
        for entry in entries
    )
    return Observed(
        uses,
        {entry.variable: entry.shape for entry in entries},
        statistics.median(seconds),
        len(keras.tree.flatten(batches[0])[0]),
        tuple(dict.fromkeys(notes)),
    )


def _unpacked(batch: Any) -> tuple:
    known = batch if isinstance(batch, tuple) else (batch,)
    if not 1 <= len(known) <= 3 or not keras.tree.flatten(known[0]):
        raise ConfigError(
            f"`{SAMPLE}()` has to return {_NO_DATA}. Received: {type(batch).__name__} "
            f"of {len(known)}"
        )
    return known


def _seconds_of_step(model: keras.Model, batch: tuple) -> float:
    start = time.perf_counter()
    model.train_on_batch(*batch)
    return time.perf_counter() - start


def _slots(model: keras.Model) -> int:
    """Slots that the optimizer keeps for a variable, each of its size."""
    shapes = [tuple(v.shape) for v in model.trainable_variables if v.shape]
    kept = [tuple(v.shape) for v in model.optimizer.variables]
    return sum(shape in shapes for shape in kept) // max(1, len(shapes))


def _use(
    entry: Entry,
    pushed: dict[str, list[np.ndarray]],
    slots: int,
    workers: int,
    workers_per_machine: int,
    notes: list[str],
) -> Use:
    ids = pushed.get(entry.variable)
    if ids is None:
        rows = entry.shape[0] if entry.shape else 1
        size = entry.size_bytes
        return Use(entry.variable, rows, size / rows, gradient="dense", slots=slots)
    rows = entry.shape[0]
    shares = _shares(ids, rows)
    alpha = float(np.mean([len(found) for found in ids])) / rows
    machine = everyone = None
    if len(shares) > 1 and shares[-1] == shares[0]:
        notes.append(
            f"{SAMPLE}() gave the same ids each time: workers are taken to draw "
            "theirs independently, which overestimates what they touch together"
        )
    elif len(shares) > 1:
        machine = max(alpha, grown_share(shares, workers_per_machine))
        everyone = max(machine, grown_share(shares, workers))
    return Use(
        path=entry.variable,
        num_rows=rows,
        row_bytes=entry.size_bytes / rows,
        alpha=alpha,
        alpha_machine=machine,
        alpha_all=everyone,
        slots=slots,
        updates_all_rows=entry.update == "exact",
    )


def _shares(ids: Sequence[np.ndarray], rows: int) -> list[float]:
    """Share of the rows that the first batch touches, the first two, and so on."""
    seen: np.ndarray = np.zeros(0, np.int64)
    shares = []
    for found in ids:
        seen = np.union1d(seen, found)
        shares.append(len(seen) / rows)
    return shares
