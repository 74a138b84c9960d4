"""What a training has sent so far, and the least that it could have sent."""

import dataclasses
from collections.abc import Sequence

from keras_parallax.collectives.meter import Crossed
from keras_parallax.servers.storage import TableSpec


@dataclasses.dataclass(frozen=True)
class TableTraffic:
    """One table, as this worker has used it since the start.

    Attributes:
        variable: Path of the variable.
        steps: Training steps that have pushed to it.
        pulled_rows: Distinct rows pulled, summed over lookups.
        pushed_rows: Distinct rows pushed, summed over steps.
        alpha: Mean share of the table's rows that a step pushes to.
        moved_bytes: Bytes of those rows and gradients, and of the ids that ask for
            them; what of it crosses to another process depends on the home.
        requested_ids: Ids looked up, each as often as it was.
    """

    variable: str
    steps: int
    pulled_rows: int
    pushed_rows: int
    alpha: float
    moved_bytes: int
    requested_ids: int = 0

    @property
    def hit_share(self) -> float | None:
        """Share of the ids looked up whose row was pulled for another of the same
        lookup already; None before the first lookup."""
        return hit_share(self.pulled_rows, self.requested_ids)

    @classmethod
    def of(
        cls,
        variable: str,
        spec: TableSpec,
        pulled_rows: int,
        pushed_rows: int,
        steps: int,
        requested_ids: int = 0,
    ) -> "TableTraffic":
        """From what a table has counted."""
        alpha = pushed_rows / max(1, steps) / spec.num_rows
        asked = pulled_rows * (spec.id_dtype.size + spec.row_bytes)
        moved = asked + pushed_rows * spec.row_bytes
        return cls(
            variable, steps, pulled_rows, pushed_rows, alpha, moved, requested_ids
        )


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that this worker has exchanged since the start.

    Attributes:
        sent_bytes: Sent for tables to other processes, counted where it is sent.
        received_bytes: Received for tables from other processes.
        sent_off_machine_bytes: What of it went to other machines.
        received_off_machine_bytes: What of it came from other machines.
        least_bytes: The least that sent and received bytes together could have
            been: each row pulled and its gradient pushed, with one id, except for
            the share of the rows that the home has in this process.
        dense_bytes: Bytes of gradients that one step all-reduces. A ring sends and
            receives `4·dense_bytes·(N-1)/N` of them a step.
        tables: Each table's.
    """

    sent_bytes: int
    received_bytes: int
    sent_off_machine_bytes: int
    received_off_machine_bytes: int
    least_bytes: int
    dense_bytes: int
    tables: tuple[TableTraffic, ...]

    @classmethod
    def of(
        cls,
        crossed: Sequence[Crossed],
        tables: Sequence[TableTraffic],
        home: str,
        workers: int,
        dense_bytes: int,
    ) -> "Traffic":
        """From what was counted.

        Args:
            crossed: What each meter has counted.
            tables: Each table's.
            home: Where the rows live.
            workers: Number of workers.
            dense_bytes: Bytes of the gradients that one step all-reduces.
        """
        sent, received, sent_off_machine, received_off_machine = (
            sum(dataclasses.astuple(meter)[field] for meter in crossed)
            for field in range(4)
        )
        moved = sum(table.moved_bytes for table in tables)
        return cls(
            sent_bytes=sent,
            received_bytes=received,
            sent_off_machine_bytes=sent_off_machine,
            received_off_machine_bytes=received_off_machine,
            least_bytes=least_bytes(moved, home, workers),
            dense_bytes=dense_bytes,
            tables=tuple(tables),
        )

    def to_dict(self) -> dict:
        """It, as plain data."""
        return dataclasses.asdict(self)


def hit_share(pulled_rows: float, requested_ids: float) -> float | None:
    """Share of the ids looked up that needed no row of their own."""
    return 1 - pulled_rows / requested_ids if requested_ids else None


def least_bytes(moved_bytes: int, home: str, workers: int) -> int:
    """The least that one worker sends and receives.

    Args:
        moved_bytes: Of the rows, gradients and ids of its own lookups.
        home: Where the rows live.
        workers: Number of workers. As peers, each has one of so many rows itself;
            and it serves as much as it asks for, so that each byte counts twice, as
            it does for a machine that is worker and server in table 1 of Kim et
            al., EuroSys 2019.
    """
    if home == "in_process":
        return 0
    if home == "peers":
        return round(2 * moved_bytes * (workers - 1) / workers)
    return moved_bytes
