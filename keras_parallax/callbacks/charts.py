"""What TensorBoard shows of a window: tags, what they mean, and the first charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_parallax.callbacks.stopwatch import PHASES, Window
from keras_parallax.collectives.load import TableLoad, imbalance

_MB = 1e6
_TITLES = {"allreduce": "All-reduce"}

#: The first charts: of each group, titles with the unit, and patterns of tags. A
#: chart has few tags, for TensorBoard gives a worker one colour in all of them.
LAYOUT = {
    "Parallax": {
        "Throughput (examples, tokens per second)": [
            "^throughput/all_(examples|tokens)_per_second$"
        ],
        "Time of a step (milliseconds)": ["^step_ms/total$"],
        "Bytes of a step for tables (megabytes)": [
            "^megabytes_a_step/tables(_least)?$"
        ],
    },
    "Parallax: phases of a step": {
        f"{_TITLES.get(phase, phase.capitalize())} (milliseconds a step)": [
            f"^step_ms/{phase}$"
        ]
        for phase in PHASES
        if phase != "callbacks"
    },
    "Parallax: tables and memory": {
        "Alpha (share of rows a step, 0 to 1)": ["^alpha/"],
        "Imbalance (fullest partition / mean)": ["^imbalance/partitions/"],
        "Memory of a worker (megabytes)": ["^memory_mb/"],
    },
}

DESCRIPTIONS = {
    "throughput/examples_per_second": "Examples of this worker, per second.",
    "throughput/all_examples_per_second": "Examples of all workers, per second.",
    "throughput/tokens_per_second": (
        "Elements of this worker's integer sequences, such as words, per second."
    ),
    "throughput/all_tokens_per_second": "The same of all workers.",
    "step_ms/total": "Milliseconds from one step to the next.",
    "step_ms/data": (
        "Milliseconds until a step's batch is there; calling the step, some tenths of "
        "a millisecond, is contained in it."
    ),
    "step_ms/pull": "Milliseconds in which rows of tables are pulled.",
    "step_ms/compute": (
        "Milliseconds of a step in which nothing is pulled, pushed or all-reduced."
    ),
    "step_ms/allreduce": (
        "Milliseconds in which dense gradients are all-reduced; may overlap the push."
    ),
    "step_ms/push": (
        "Milliseconds in which gradients of rows are pushed, until they are applied."
    ),
    "step_ms/wait": (
        "Milliseconds in which this worker has arrived and the last one has not; "
        "contained in pull, all-reduce and push."
    ),
    "step_ms/callbacks": (
        "Milliseconds between two calls of the step: Keras and its callbacks."
    ),
    "megabytes_a_step/tables": (
        "Sent and received for tables by this worker, measured; 1 MB is 10^6 bytes."
    ),
    "megabytes_a_step/tables_least": (
        "The least that it could have been: each row once, its gradient and one id."
    ),
    "megabytes_a_step/allreduce_predicted": (
        "What a ring all-reduce of the dense gradients sends and receives, computed."
    ),
    "memory_mb/resident": "Memory of this worker's process; 1 MB is 10^6 bytes.",
}


def scalars(
    window: Window,
    loads: Sequence[TableLoad],
    plan: Sequence[Mapping],
    resident_bytes: int,
    is_chief: bool,
) -> dict[str, float]:
    """The numbers of a window, by tag.

    Args:
        window: The window.
        loads: Where pushed rows have fallen.
        plan: The plan's entries as plain data.
        resident_bytes: Memory of this process.
        is_chief: Whether this worker also tells of all workers.
    """
    found: dict[str, float | None] = {
        "throughput/examples_per_second": window.examples_per_second,
        "throughput/tokens_per_second": window.tokens_per_second or None,
        "step_ms/total": window.seconds * 1e3,
        "megabytes_a_step/tables": window.table_bytes / _MB,
        "megabytes_a_step/tables_least": window.least_bytes / _MB,
        "megabytes_a_step/allreduce_predicted": window.allreduce_bytes / _MB,
        "memory_mb/resident": resident_bytes / _MB,
    }
    for road, number in _bytes_by_road(window, plan).items():
        found[f"megabytes_by_road/{road}"] = number / _MB
    for phase, seconds in window.phases.items():
        found[f"step_ms/{phase}"] = None if seconds is None else seconds * 1e3
    for table in window.tables:
        name = table.variable
        found[f"alpha/{name}"] = table.alpha
        found[f"ids_pulled_a_step/{name}"] = table.pulled_ids
        found[f"ids_pushed_a_step/{name}"] = table.pushed_ids
        found[f"megabytes_by_table/{name}"] = table.moved_bytes / _MB
    for load in loads:
        found[f"imbalance/partitions/{load.variable}"] = imbalance(load.by_partition)
        found[f"imbalance/servers/{load.variable}"] = imbalance(load.by_server)
    if is_chief:
        found |= _of_all(window, plan)
    return {tag: value for tag, value in found.items() if value is not None}


def _bytes_by_road(window: Window, plan: Sequence[Mapping]) -> dict[str, float]:
    """Rows, gradients and ids of the tables on each road; dense gradients."""
    roads = {entry["variable"]: entry["road"] for entry in plan}
    found: dict[str, float] = {}
    for table in window.tables:
        road = roads.get(table.variable, "servers")
        found[road] = found.get(road, 0.0) + table.moved_bytes
    if window.allreduce_bytes:
        found["allreduce"] = found.get("allreduce", 0.0) + window.allreduce_bytes
    return found


def _of_all(window: Window, plan: Sequence[Mapping]) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        "throughput/all_examples_per_second": window.all_examples_per_second,
        "throughput/all_tokens_per_second": window.all_tokens_per_second or None,
    }
    for entry in plan:
        if entry["road"] != "servers":
            continue
        found[f"partitions/{entry['variable']}"] = entry["partitions"]
        predicted = entry.get("predicted_bytes")
        if predicted is not None:
            found[f"megabytes_predicted/{entry['variable']}"] = predicted / _MB
    return found


def plan_as_markdown(plan: Sequence[Mapping]) -> str:
    """The plan as a table in Markdown, tables on servers first."""
    columns = {
        "variable": lambda e: f"`{e['variable']}`",
        "shape": lambda e: " x ".join(f"{n:,}" for n in e["shape"]) or "scalar",
        "gradient": lambda e: e["gradient"],
        "alpha": lambda e: _number(e.get("alpha"), "{:.3g}"),
        "road": lambda e: e["road"],
        "partitions": lambda e: str(e["partitions"]),
        "home": lambda e: e["home"],
        "bytes a step, predicted": lambda e: _number(e.get("predicted_bytes"), "{:,}"),
        "bytes a step, measured": lambda e: _number(e.get("measured_bytes"), "{:,}"),
        "reason": lambda e: e["reason"].replace("|", "\\|"),
    }
    ordered = sorted(plan, key=lambda entry: entry["road"] != "servers")
    rows = [[cell(entry) for cell in columns.values()] for entry in ordered]
    # A column that says nothing of any variable is left out.
    kept = [n for n in range(len(columns)) if any(row[n] for row in rows)]
    lines = [list(columns), ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line[n] for n in kept) + " |" for line in lines)


def changes_of_plan(before: Sequence[Mapping], after: Sequence[Mapping]) -> list[str]:
    """What has changed from one state of the plan to another, a line each."""
    then = {entry["variable"]: entry for entry in before}
    lines = []
    for entry in after:
        old = then.get(entry["variable"])
        if old is None:
            lines.append(f"`{entry['variable']}` is new, by {entry['road']}.")
            continue
        for field in ("gradient", "road", "partitions", "home", "update"):
            if old[field] != entry[field]:
                lines.append(
                    f"`{entry['variable']}`: {field} was {old[field] or 'unknown'}, "
                    f"is {entry[field] or 'unknown'}."
                )
    return lines


def searches_as_markdown(searches: Mapping[str, Any]) -> str:
    """What a `PartitionSearch` has tried, as tables in Markdown."""
    parts = []
    for variable, search in searches.items():
        if not search.samples:
            continue
        lines = [
            f"`{variable}`: best so far {search.chosen} partitions",
            "",
            "| partitions | milliseconds a step |",
            "| --- | --- |",
        ]
        for count, seconds in sorted(search.samples.items()):
            lines.append(f"| {count} | {seconds * 1e3:.2f} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
