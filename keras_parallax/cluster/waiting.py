"""A worker that lives, but does not come to where the others wait for it.

It is in an endless loop, say, or its data come from something that does not answer.
Its heartbeats go on, and nothing that the others have sent fails: they would wait for
ever. What tells is how many calls of `strategy.run` each worker has come to, for all
take part in each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from keras_parallax.cluster.failure import STUCK, Failure
from keras_parallax.cluster.membership import MemberState, seconds_of

# Said after so long, or after half of what a job is given.
_SAY_SECONDS = 60.0


def stall_seconds() -> float:
    """How long workers may wait for one of them before the job is ended; 0 for ever.

    `KERAS_PARALLAX_STALL_SECONDS` overrides the 1800 seconds: one worker may have a
    lot to save, or to evaluate by itself.
    """
    return seconds_of("KERAS_PARALLAX_STALL_SECONDS", 1800.0)


@dataclasses.dataclass(frozen=True)
class Wait:
    """A worker, and those that wait for it.

    Attributes:
        late: The worker that has come to the fewest calls.
        waiting: The workers that have come to more.
        seconds: For how long they wait already.
    """

    late: MemberState
    waiting: tuple[MemberState, ...]
    seconds: float

    @classmethod
    def among(cls, members: Iterable[MemberState], now: float) -> Wait | None:
        """The wait among the members of a job, if any of them waits.

        Args:
            members: What is known of each process.
            now: `time.monotonic()`.
        """
        workers = [m for m in members if m.state == "running" and m.calls is not None]
        late = min(workers, key=lambda m: m.calls or 0, default=None)
        if late is None:
            return None
        ahead = tuple(m for m in workers if m.calls != late.calls)
        if not ahead:
            return None
        since = max(late.calls_at, min(m.calls_at for m in ahead))
        return cls(late, ahead, now - since)

    def __str__(self) -> str:
        names = ", ".join(f"worker {m.index}" for m in self.waiting)
        have = "have" if len(self.waiting) > 1 else "has"
        text = f"{names} {have} waited for worker {self.late.index} for "
        text += f"{self.seconds:.0f} s"
        return f"{text}; it is {self.late.place}" if self.late.place else text


class Patience:
    """How long the workers of a job wait for one of them.

    Args:
        limit_seconds: After which the job is ended; 0 for never.
    """

    def __init__(self, limit_seconds: float):
        self._limit_seconds = limit_seconds
        half = limit_seconds / 2 or _SAY_SECONDS
        self._say_seconds = min(_SAY_SECONDS, half)
        self._said: tuple[int, int | None] | None = None

    def news(self, wait: Wait | None) -> str | None:
        """What is worth saying of a wait, once."""
        if wait is None or wait.seconds < self._say_seconds:
            return None
        which = (wait.late.index, wait.late.calls)
        if which == self._said:
            return None
        self._said = which
        if not self._limit_seconds:
            return str(wait)
        return (
            f"{wait}. The job ends after {self._limit_seconds:g} s of it "
            "(KERAS_PARALLAX_STALL_SECONDS)"
        )

    def failure(self, wait: Wait | None) -> Failure | None:
        """The failure that a wait has become, if it has."""
        if wait is None or not 0 < self._limit_seconds <= wait.seconds:
            return None
        late = wait.late
        return Failure("worker", late.index, STUCK, str(wait), late.step)
