"""The plan: which road each variable takes, and why, as plain data."""

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np

from keras_parallax.roads import SERVERS


@dataclasses.dataclass
class Entry:
    """One variable's line in the plan.

    Attributes:
        variable: Path of the variable in the model.
        shape: Its shape.
        dtype: Its type.
        gradient: "sparse", "dense", "both", "none", or "unknown" until the first
            step has been traced.
        road: "servers", "allgather" or "allreduce".
        partitions: Number of partitions; 1 on the dense road.
        home: "in_process", "peers" or "dedicated" on servers; "workers" elsewhere.
        update: "lazy" or "exact" for tables once it is known, else "".
        reason: Why, in one sentence.
        alpha: Share of its rows that one worker touches in a step, as last
            measured; None where nothing was.
        costs: What it would cost a step on each road, the chosen one first; as
            `plan.cost.Cost.to_dict` has it. Empty where there was no choice.
        predicted_bytes: What the processes of the busiest machine send and receive
            for it in a step, by the cost model.
        predicted_seconds: What it costs a step alone, by the cost model.
        measured_bytes: Rows, gradients and ids that this worker has moved for it in
            a step, on average since the start.
        measured_seconds: Its share of the time that this worker's steps were measured
            to pull, push and all-reduce. What travels together is measured together;
            the time of each phase is shared by bytes. None where `strategy.spans`
            are off.
    """

    variable: str
    shape: tuple[int, ...]
    dtype: str
    gradient: str
    road: str
    partitions: int
    home: str
    update: str
    reason: str
    alpha: float | None = None
    costs: list[dict] = dataclasses.field(default_factory=list)
    predicted_bytes: int | None = None
    predicted_seconds: float | None = None
    measured_bytes: int | None = None
    measured_seconds: float | None = None

    @property
    def where(self) -> str:
        """Its road, and home and partitions where these say something."""
        if self.road == SERVERS:
            return f"{self.road} ({self.home}, {self.partitions} partitions)"
        return self.road

    @property
    def size_bytes(self) -> int:
        """Bytes of the variable."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Plan:
    """The plan of a strategy; `print` shows it as a table.

    Iterating gives the entries in the order in which variables were created.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        #: What has changed since the variables were created, a line each.
        self.changes: list[str] = []

    def add(self, key: str, entry: Entry) -> None:
        """Adds the variable known as `key`."""
        self._entries[key] = entry

    def change(self, key: str, **fields: Any) -> None:
        """Changes what the plan says of the variable known as `key`, if anything."""
        if key in self._entries:
            self._entries[key] = dataclasses.replace(self._entries[key], **fields)

    def note_change(self, line: str) -> None:
        """Notes that a variable has taken another road."""
        self.changes.append(line)

    def rename(self, key: str, new: str) -> None:
        """Knows the variable that was known as `key` as `new`."""
        self._entries[new] = self._entries.pop(key)

    def replace(self, key: str, old: str) -> None:
        """Puts the entry known as `key` in the place of the one known as `old`,
        and knows it by that name."""
        entry = self._entries.pop(key)
        self._entries[old] = entry

    def reason(self, key: str) -> str:
        """Why the variable known as `key` goes its way; empty if it is unknown."""
        return self._entries[key].reason if key in self._entries else ""

    def get(self, key: str) -> Entry:
        """The entry of the variable known as `key`."""
        return self._entries[key]

    def items(self) -> list[tuple[str, Entry]]:
        """All entries, and what they are known as."""
        return list(self._entries.items())

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, variable: str) -> Entry:
        """The entry of the variable whose path is, or ends with, `variable`."""
        found = [e for e in self if e.variable == variable] or [
            e for e in self if e.variable.endswith("/" + variable)
        ]
        if len(found) != 1:
            raise KeyError(
                f"Expected the path of one variable of the plan. Received: "
                f"{variable!r}, which names {len(found)} of: "
                f"{', '.join(e.variable for e in self)}."
            )
        return found[0]

    def to_dict(self) -> list[dict]:
        """The entries as plain data."""
        return [dataclasses.asdict(entry) for entry in self]

    def to_json(self) -> str:
        """The entries as a JSON array."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        header = ["variable", "shape", "gradient", "alpha", "road", "bytes", "time"]
        rows = [
            [
                e.variable,
                "x".join(map(str, e.shape)) or "scalar",
                e.gradient,
                "" if e.alpha is None else f"{e.alpha:.3g}",
                f"{e.home} x{e.partitions}" if e.road == SERVERS else e.road,
                "" if e.predicted_bytes is None else f"{e.predicted_bytes:,}",
                "" if e.predicted_seconds is None else _in_ms(e.predicted_seconds),
            ]
            for e in self
        ]
        if any(e.measured_seconds is not None for e in self):
            header += ["moved", "took"]
            for row, e in zip(rows, self, strict=True):
                row.append("" if e.measured_bytes is None else f"{e.measured_bytes:,}")
                seconds = e.measured_seconds
                row.append("" if seconds is None else _in_ms(seconds))
        widths = [
            max(len(row[column]) for row in [header, *rows])
            for column in range(len(header))
        ]
        rule = ["-" * width for width in widths]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in [header, rule, *rows]
        ]
        # A sentence does not fit into a column: those of tables follow.
        told = [e for e in self if e.home != "workers" or e.gradient != "dense"]
        width = max(40, sum(widths))
        reasons = [
            textwrap.fill(f"{e.variable}: {e.reason}.", width, subsequent_indent="  ")
            for e in told
        ]
        return "\n".join([*lines, *([""] if reasons else []), *reasons])


def _in_ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
