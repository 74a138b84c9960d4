"""How one process of a job has failed, in the words that users read."""

import dataclasses
import signal
from typing import Any

# Exit status of a process that ends because another one was lost. It marks the
# end as a consequence, so that the launcher does not report it as the cause.
EXIT_LOST = 70

# `what` of a process that has ended well, but before the others could do without it.
EARLY = "ended early"

# `what` of a worker that lives and does not come to where the others wait for it.
STUCK = "is stuck"


@dataclasses.dataclass(frozen=True)
class Failure:
    """The end of a process that the others cannot go on without.

    Attributes:
        role: `"worker"`, `"server"` or `"launcher"`.
        index: Which of them, or None where there is only one.
        what: `"died"`, `"failed"`, `"ended early"`, `"is stuck"` or `"is lost"`.
        reason: How it is known, such as `"signal 9"`; may be empty.
        step: Last training step it has told of, or None.
        summary: The exception's type and message, where there was one.
        traceback: The exception's traceback, as text.
        consequence: Whether another process's failure has brought it about.
        address: `"host:port"` of a server, else empty.
        held: What a server held, one phrase a table.
    """

    role: str
    index: int | None
    what: str
    reason: str = ""
    step: int | None = None
    summary: str = ""
    traceback: str = ""
    consequence: bool = False
    address: str = ""
    held: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The process, as users know it: `"worker 1"`."""
        return process_name(self.role, self.index)

    def __str__(self) -> str:
        text = f"{self.name} {self.what}"
        if self.reason:
            text += f" ({self.reason})"
        if self.step is not None:
            text += f" at step {self.step}"
        if self.summary:
            text += f": {self.summary}"
        if self.address:
            text += f"; its address was {self.address}"
        if self.held:
            text += f"; it held {', '.join(self.held)}"
        return text

    def to_json(self) -> dict[str, Any]:
        """The fields that the other processes need; a traceback is shown once."""
        fields = dataclasses.asdict(self)
        del fields["traceback"]
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Failure":
        """The failure that `to_json` has written."""
        known = {field.name for field in dataclasses.fields(cls)}
        found = {key: value for key, value in fields.items() if key in known}
        return cls(**{**found, "held": tuple(found.get("held", ()))})


def process_name(role: str, index: int | None) -> str:
    """`"worker 1"`, or the role alone where there is only one."""
    return role if index is None else f"{role} {index}"


def describe_exit(returncode: int) -> tuple[str, str]:
    """`what` and `reason` of a process that has ended with `returncode`.

    Args:
        returncode: As `subprocess` gives it: negative for a signal.
    """
    if returncode < 0:
        return "died", f"signal {-returncode}{_signal_hint(-returncode)}"
    if returncode == 0:
        return EARLY, "exit status 0"
    return "failed", f"exit status {returncode}"


def exit_code(returncode: int) -> int:
    """What a shell would report for `returncode`: 128 + n for signal n."""
    return 128 - returncode if returncode < 0 else returncode


def _signal_hint(number: int) -> str:
    # 9 is what a user's kill sends and what a full memory ends in; the others
    # have names that say more than their numbers.
    if number == signal.SIGKILL:
        return ""
    try:
        return f", {signal.Signals(number).name}"
    except ValueError:
        return ""
