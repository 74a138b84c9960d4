"""Reports an uncaught exception to the job, and shows the one that matters.

When a worker fails, the others fail too, out of breath in the middle of an
all-reduce. Their tracebacks say nothing about the cause and would bury it.
"""

import re
import sys
import traceback
from types import TracebackType
from typing import TYPE_CHECKING

from keras_parallax.cluster.failure import EARLY
from keras_parallax.cluster.verdict import CAUSE_SECONDS
from keras_parallax.errors import ProcessLostError

if TYPE_CHECKING:
    from keras_parallax.cluster.lifeline import Member

# The coordinator settles on a cause within CAUSE_SECONDS, and then says so.
_WAIT_SECONDS = CAUSE_SECONDS + 3.0

# By name: none of the packages that define them is imported here.
_CONSEQUENCES = frozenset(
    {"HorovodInternalError", "UnavailableError", "AbortedError", "CancelledError"}
)
_HOROVOD_TEXT = "Horovod has been shut down"

# Lines by which TensorFlow tells where in a graph an error arose.
_PLACES = re.compile(
    r"\s|$|Graph execution error|Detected at node|Stack trace for op"
    r"|\d+ (root error|derived error|successful operations)|\(\d+\) "
)
_NODES = re.compile(r"\s*(\[\[\{\{node .*|\[Op:.*)$")
_COLOURS = re.compile(r"\x1b\[\d*m")
# The message, and the values that follow it, each in brackets. An error that comes
# back from a server says everything twice.
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\] ?((?: ?\[[^\]]*\])*)", re.DOTALL)


def summarize(error: BaseException) -> str:
    """An exception's type and what it says, in one line.

    Without the places in a graph that TensorFlow's errors list, page by page.
    """
    kind = type(error).__name__
    lines = _COLOURS.sub("", str(error)).splitlines()
    lines = [_NODES.sub("", line) for line in lines]
    if any("Graph execution error" in line for line in lines):
        lines = [line for line in lines if not _PLACES.match(line)]
    text = " ".join(" ".join(lines).split())
    asserted = _ASSERTION.search(text)
    if asserted is not None:
        text = " ".join(part for part in asserted.groups() if part)
    return f"{kind}: {text}" if text else kind


def is_consequence(error: BaseException | None) -> bool:
    """Whether an exception looks as if another process's end has caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ProcessLostError) or _HOROVOD_TEXT in str(error):
            return True
        if any(kind.__name__ in _CONSEQUENCES for kind in type(error).__mro__):
            return True
        error = error.__cause__ or error.__context__
    return False


def install_excepthook(member: "Member", wait_seconds: float = _WAIT_SECONDS) -> None:
    """Makes uncaught exceptions of this process known to its job.

    An exception that is a consequence of another process's end is replaced by
    one line that names that process, when it becomes known in time. Any other is
    shown as usual. The exit status is Python's own, 1.

    Args:
        member: This process's connection to the coordinator.
        wait_seconds: How long to wait for the name of the cause.
    """
    previous = sys.excepthook

    def hook(
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        if is_consequence(error):
            member.fail(summarize(error), text, consequence=True)
            cause = member.wait_lost(wait_seconds)
            if cause is not None:
                member.announce(cause)
            if cause is None or cause.what == EARLY:
                # What this process was doing when another had left is half of
                # the story: often a step that not all workers were to run.
                previous(kind, error, trace)
        else:
            previous(kind, error, trace)
            member.fail(summarize(error), text, consequence=False)

    sys.excepthook = hook
