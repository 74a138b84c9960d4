"""Which road a variable takes when it is created."""

import fnmatch
from collections.abc import Mapping

from keras_parallax import errors
from keras_parallax.roads import ALLREDUCE, ROADS, SERVERS

ARCHITECTURES = ("hybrid", "ps", "allreduce")

#: Why a variable is dense before its gradient is known.
NOT_LOOKED_UP = "not looked up by row, as far as is known"

# Rows move between memories in one piece each, so a partition stays far below
# the 2 GiB at which TensorFlow refuses a transfer.
PARTITION_LIMIT_BYTES = 1 << 30


class Routing:
    """Decides road and partitions of variables from what is known at creation.

    Args:
        architecture: "hybrid", "ps" (dense variables on servers, too) or
            "allreduce" (no tables at all).
        routes: `{pattern: road}`; patterns are matched against the paths of
            variables as in a shell, the first match decides.
        partitions: "auto", a number, or `{pattern: number}`.

    Raises:
        ValueError: An argument is none of these.
    """

    def __init__(
        self,
        architecture: str = "hybrid",
        routes: Mapping[str, str] | None = None,
        partitions: str | int | Mapping[str, int] = "auto",
    ):
        if architecture not in ARCHITECTURES:
            raise errors.ConfigError(
                f"`architecture` is one of {ARCHITECTURES}. "
                f"Received: architecture={architecture!r}"
            )
        for pattern, road in (routes or {}).items():
            if road not in ROADS:
                raise errors.ConfigError(
                    f"`routes` sends variables by one of the roads {ROADS}. "
                    f"Received: routes={{{pattern!r}: {road!r}}}"
                )
        counts = (
            partitions.values() if isinstance(partitions, Mapping) else [partitions]
        )
        for count in counts:
            if count != "auto" and (type(count) is not int or count < 1):
                raise errors.ConfigError(
                    "`partitions` is 'auto', a positive integer, or a dict from "
                    "patterns of variable paths to positive integers. "
                    f"Received: partitions={partitions!r}"
                )
        self._architecture = architecture
        self.dense_on_servers = architecture == "ps"
        self._routes = dict(routes or {})
        self._partitions = partitions

    def road(
        self, path: str, is_embedding: bool, shape: tuple[int, ...]
    ) -> tuple[str, str]:
        """Road of a new variable, and the reason for it in one sentence."""
        for pattern, road in self._routes.items():
            if fnmatch.fnmatchcase(path, pattern):
                if road != ALLREDUCE and not shape:
                    raise errors.ConfigError(
                        f"A scalar has no rows to look up. Received: "
                        f"routes={{{pattern!r}: {road!r}}}, which matches {path}."
                    )
                return road, f"routes says so ({pattern})"
        if self._architecture == "allreduce":
            return ALLREDUCE, "architecture='allreduce'"
        if is_embedding:
            return SERVERS, "weights of an Embedding are looked up by row"
        return ALLREDUCE, NOT_LOOKED_UP

    def adapts(self, path: str) -> bool:
        """Whether the variable may change its road when more is known of it."""
        return self._architecture == "hybrid" and self.promotes(path)

    def promotes(self, path: str) -> bool:
        """Whether the variable becomes a table if its rows are looked up."""
        return self._architecture != "allreduce" and not any(
            fnmatch.fnmatchcase(path, pattern) for pattern in self._routes
        )

    def partitions(self, path: str, num_rows: int, row_bytes: int, homes: int) -> int:
        """Number of partitions for a table.

        Args:
            path: Path of the variable.
            num_rows: Its rows.
            row_bytes: Bytes of one row.
            homes: Places that can hold partitions.
        """
        count = self._partitions
        if isinstance(count, Mapping):
            matching = [n for p, n in count.items() if fnmatch.fnmatchcase(path, p)]
            count = matching[0] if matching else "auto"
        least = -(-num_rows * row_bytes // PARTITION_LIMIT_BYTES)
        if not isinstance(count, int):
            count = -(-max(least, homes) // homes) * homes
        elif count < least:
            raise errors.ConfigError(
                f"{path} has {num_rows} rows of {row_bytes} bytes; with "
                f"{count} partitions one would exceed {PARTITION_LIMIT_BYTES} bytes, "
                f"which no transfer can carry. Expected at least {least} partitions. "
                f"Received: partitions={self._partitions!r}"
            )
        return min(count, num_rows)

    def unused_routes(self, paths: list[str]) -> list[str]:
        """Patterns of `routes` that match none of `paths`: often a misspelling."""
        return [
            pattern
            for pattern in self._routes
            if not any(fnmatch.fnmatchcase(path, pattern) for path in paths)
        ]
