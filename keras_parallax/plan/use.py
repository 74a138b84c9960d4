"""How a training step uses a variable: what the cost model has to know of it."""

from __future__ import annotations

import dataclasses

from keras_parallax import errors
from keras_parallax.plan.network import Cluster


@dataclasses.dataclass(frozen=True)
class Use:
    """A variable, as a training step uses it.

    Attributes:
        path: Path of the variable.
        num_rows: Its rows.
        row_bytes: Bytes of one row.
        alpha: Mean share of its rows that one worker touches in a step; 1 for a
            variable that is used whole.
        alpha_machine: Share that the workers of one machine touch together.
        alpha_all: Share that all workers touch together. What is not given is taken
            from `alpha` as though every worker drew its rows independently and
            evenly; where some rows are frequent the true share is smaller.
        gradient: "sparse" or "dense".
        slots: Optimizer's slots, each as large as the variable.
        updates_all_rows: Whether a step updates rows without a gradient, too.
        id_bytes: Bytes of an id.
        wire_row_bytes: Bytes of a row as it travels; `row_bytes` if None.
    """

    path: str
    num_rows: int
    row_bytes: float
    alpha: float = 1.0
    alpha_machine: float | None = None
    alpha_all: float | None = None
    gradient: str = "sparse"
    slots: int = 1
    updates_all_rows: bool = False
    id_bytes: int = 4
    wire_row_bytes: float | None = None

    def __post_init__(self) -> None:
        shares = (self.alpha, self.alpha_machine, self.alpha_all)
        if not all(share is None or 0 <= share <= 1 for share in shares):
            raise errors.ConfigError(
                f"A share of the rows of {self.path} lies between 0 and 1. Received: "
                f"alpha={self.alpha!r}, alpha_machine={self.alpha_machine!r}, "
                f"alpha_all={self.alpha_all!r}"
            )
        if self.gradient not in ("sparse", "dense"):
            raise errors.ConfigError(
                f"The gradient of {self.path} is 'sparse' or 'dense'. "
                f"Received: gradient={self.gradient!r}"
            )

    @property
    def size_bytes(self) -> float:
        """Bytes of the variable."""
        return self.num_rows * self.row_bytes

    @property
    def travel_bytes(self) -> float:
        """Bytes of a row as it travels."""
        return self.row_bytes if self.wire_row_bytes is None else self.wire_row_bytes

    def touched_rows(self, cluster: Cluster) -> tuple[float, float, float]:
        """Distinct rows that one worker, one machine and all touch in a step."""
        one = self.alpha
        machine = self.alpha_machine
        if machine is None:
            machine = union_share(one, cluster.workers_per_machine)
        everyone = self.alpha_all
        if everyone is None:
            everyone = union_share(machine, cluster.machines)
        return one * self.num_rows, machine * self.num_rows, everyone * self.num_rows


def union_share(alpha: float, draws: int) -> float:
    """Share of the rows that `draws` touch, each `alpha` of them, independently."""
    return 1 - (1 - alpha) ** draws
