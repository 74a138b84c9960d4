"""What is known of each process of a job, and when it is taken to be lost."""

import dataclasses
import os
from typing import Any


@dataclasses.dataclass
class MemberState:
    """What the coordinator knows of one process.

    Attributes:
        role: `"worker"` or `"server"`.
        index: Which of them.
        pid: Its process id on its host.
        host: Name of its host.
        info: Whatever it has told about itself when it joined.
        state: `"running"`, `"left"`, `"failed"` or `"lost"`.
        step: Last training step it has told of.
        calls: Calls of `strategy.run` that it has come to; None for a process that does
            not take them together with others.
        calls_at: `time.monotonic()` of the last news of one.
        place: Where in its program it is.
        last_seen: `time.monotonic()` of its last message.
        left_at: `time.monotonic()` of its goodbye, if it has left.
    """

    role: str
    index: int
    pid: int
    host: str
    info: dict[str, Any]
    state: str = "running"
    step: int | None = None
    calls: int | None = None
    calls_at: float = 0.0
    place: str | None = None
    last_seen: float = 0.0
    left_at: float = 0.0


def silence_seconds() -> float:
    """How long a process may be silent before it is taken to be lost.

    `KERAS_PARALLAX_SILENCE_SECONDS` overrides the 20 seconds.
    """
    return seconds_of("KERAS_PARALLAX_SILENCE_SECONDS", 20.0)


def seconds_of(variable: str, default: float) -> float:
    """What the environment says in a variable; the default where that is no number."""
    try:
        return float(os.environ.get(variable, default))
    except ValueError:
        return default
