"""What was measured of this worker's steps, written into the plan."""

from __future__ import annotations

from collections.abc import Sequence

from keras_parallax.collectives.spans import Reading
from keras_parallax.plan.plan import Plan
from keras_parallax.plan.shared_time import Phases, shared
from keras_parallax.tables.table import Table


def measured_bytes(table: Table) -> int:
    """Bytes that this worker has moved of a table in a step, since the start."""
    moved = table.moved_bytes()
    return round(moved.pull + moved.push)


def note_time(plan: Plan, tables: Sequence[Table], reading: Reading) -> None:
    """Notes what each variable takes of the time measured; nothing if none was.

    Args:
        plan: The plan.
        tables: All tables.
        reading: What steps spent in their phases.
    """
    if not reading.steps:
        return
    seconds = Phases(
        reading.pull_seconds / reading.steps,
        reading.push_seconds / reading.steps,
        reading.allreduce_seconds / reading.steps,
    )
    known = {table._unique_id: table for table in tables if table.replica is None}
    moved = {key: table.moved_bytes(reading.steps) for key, table in known.items()}
    for key, entry in plan.items():
        if key not in known and entry.gradient in ("dense", "both"):
            moved[key] = Phases(allreduce=entry.size_bytes)
    for key, took in shared(seconds, moved).items():
        plan.change(key, measured_seconds=took)
    for key, table in known.items():
        plan.change(key, measured_bytes=measured_bytes(table))
