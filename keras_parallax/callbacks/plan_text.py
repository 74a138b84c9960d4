"""The plan and a search for partitions, as text in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BYTES = (
    "Bytes are those of one step: predicted, what the processes of the busiest machine "
    "send and receive; measured, rows, gradients and ids of this worker."
)


def plan_as_markdown(plan: Sequence[Mapping]) -> str:
    """The plan as a table in Markdown, tables first, and the reasons below it.

    TensorBoard breaks words where a table is wider than its page, so a reason, which is
    a sentence, has no column of its own.
    """
    columns = {
        "variable": lambda e: f"`{e['variable']}`",
        "shape": lambda e: " x ".join(f"{n:,}" for n in e["shape"]) or "scalar",
        "gradient": lambda e: e["gradient"],
        "alpha": lambda e: _number(e.get("alpha"), "{:.3g}"),
        "road": _road,
        "bytes predicted": lambda e: _number(e.get("predicted_bytes"), "{:,}"),
        "bytes measured": lambda e: _number(e.get("measured_bytes"), "{:,}"),
    }
    ordered = sorted(plan, key=lambda e: (e["road"] != "servers", not e.get("alpha")))
    rows = [[cell(entry) for cell in columns.values()] for entry in ordered]
    # A column that says nothing of any variable is left out.
    kept = [n for n in range(len(columns)) if any(row[n] for row in rows)]
    lines = [list(columns), ["---"] * len(columns), *rows]
    table = ["| " + " | ".join(line[n] for n in kept) + " |" for line in lines]
    reasons: dict[str, list[str]] = {}
    for entry in ordered:
        reasons.setdefault(entry["reason"], []).append(f"`{entry['variable']}`")
    told = [f"- {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return "\n".join([*table, "", *told, "", _BYTES])


def _road(entry: Mapping) -> str:
    """As `print(plan)` has it: where rows have one place, it is said which."""
    if entry["road"] != "servers":
        return entry["road"]
    return f"{entry['home']} x{entry['partitions']}"


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
