"""How sparse a table's use is: alpha, measured as the training runs.

Alpha is the share of a table's rows that one worker touches in a step (Kim et al.,
EuroSys 2019, section 3.1). The workers count distinct rows as they push them, and
whoever owns a row counts it once for all workers; so measuring it is reading some
counters.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Counted:
    """What one worker has counted of a table since it was made.

    Attributes:
        pushes: Steps that have pushed to it.
        pushed_rows: Distinct rows pushed, summed over these steps.
        squared_rows: The squares of them, summed.
        machine_rows: Rows that this worker has pushed for all workers of its
            machine; None where these do not act as one.
        owned_rows: Rows that all workers together have touched, of those that this
            worker answers for; None where nobody can tell.
    """

    pushes: int
    pushed_rows: int
    squared_rows: float
    machine_rows: int | None
    owned_rows: int | None

    def since(self, earlier: Counted) -> Counted:
        """What came after an earlier reading."""
        return Counted(
            self.pushes - earlier.pushes,
            self.pushed_rows - earlier.pushed_rows,
            self.squared_rows - earlier.squared_rows,
            _less(self.machine_rows, earlier.machine_rows),
            _less(self.owned_rows, earlier.owned_rows),
        )


@dataclasses.dataclass(frozen=True)
class Sparsity:
    """Use of a table over some steps.

    Attributes:
        variable: Path of the variable.
        steps: Steps measured.
        alpha: Mean share of the rows that one worker touches in a step.
        spread: Standard deviation of that share from step to step.
        by_worker: Each worker's mean share.
        alpha_machine: Share that the workers of one machine touch together; None if
            unknown.
        alpha_all: Share that all workers touch together; None if unknown.
    """

    variable: str
    steps: int
    alpha: float
    spread: float
    by_worker: tuple[float, ...]
    alpha_machine: float | None
    alpha_all: float | None

    @classmethod
    def of(
        cls, variable: str, num_rows: int, counted: Sequence[Counted], machines: int
    ) -> Sparsity | None:
        """From what the workers have counted; None before the first step.

        Args:
            variable: Path of the variable.
            num_rows: Its rows.
            counted: What each worker has counted over the same steps.
            machines: Number of machines.
        """
        steps = counted[0].pushes
        if not steps:
            return None
        means = [worker.pushed_rows / steps for worker in counted]
        squares = [worker.squared_rows / steps for worker in counted]
        variance = sum(squares) / len(squares) - (sum(means) / len(means)) ** 2
        alpha = sum(means) / len(means) / num_rows
        together = _total(worker.machine_rows for worker in counted)
        everyone = _total(worker.owned_rows for worker in counted)
        alpha_all = None if everyone is None else everyone / steps / num_rows
        machine: float | None
        if together is not None:
            machine = together / machines / steps / num_rows
        elif machines == 1:
            machine = alpha_all
        else:
            machine = alpha if machines == len(counted) else None
        return cls(
            variable=variable,
            steps=steps,
            alpha=alpha,
            spread=math.sqrt(max(0.0, variance)) / num_rows,
            by_worker=tuple(mean / num_rows for mean in means),
            alpha_machine=machine,
            alpha_all=alpha_all,
        )

    def to_dict(self) -> dict:
        """It, as plain data."""
        return dataclasses.asdict(self)


def _less(now: int | None, then: int | None) -> int | None:
    return None if now is None or then is None else now - then


def _total(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
