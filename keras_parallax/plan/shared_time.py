"""What a variable takes of the time that its phases of a step were measured to take.

All tables of a home travel in one message, and all dense gradients in one all-reduce:
no clock can tell the time of one of them. The time of a phase is shared by bytes, what
the message costs however small it is included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping


@dataclasses.dataclass(frozen=True)
class Phases:
    """A quantity in each phase of a step in which something travels.

    Attributes:
        pull: Rows being pulled.
        push: Gradients of rows being pushed.
        allreduce: Dense gradients being all-reduced.
    """

    pull: float = 0.0
    push: float = 0.0
    allreduce: float = 0.0


def shared(seconds: Phases, moved_bytes: Mapping[str, Phases]) -> dict[str, float]:
    """Seconds a step of each variable.

    Args:
        seconds: What each phase takes.
        moved_bytes: What each variable moves in it.
    """
    totals = [sum(column) for column in _columns(moved_bytes.values())]
    spent = dataclasses.astuple(seconds)
    return {
        key: sum(
            whole * part / total
            for whole, part, total in zip(
                spent, dataclasses.astuple(moved), totals, strict=True
            )
            if total
        )
        for key, moved in moved_bytes.items()
    }


def _columns(moved: Iterable[Phases]) -> list[tuple[float, ...]]:
    rows = [dataclasses.astuple(Phases()), *map(dataclasses.astuple, moved)]
    return list(zip(*rows, strict=True))
