"""Which process a job has failed by: the first failure that is not a consequence.

Where one process dies, others fail for want of it, and their news may come first. So a
failure that looks like a consequence waits a little for its cause.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

from keras_parallax.cluster.failure import EARLY, STUCK, Failure, describe_exit
from keras_parallax.cluster.membership import MemberState

# How long a failure that looks like a consequence waits for its cause, and how
# long where a worker has left already and is likely to be it.
CAUSE_SECONDS = 3.0
_LEAVER_SECONDS = 1.0
# Of these ends, how the process itself has ended says nothing.
_TOLD_BY_OTHERS = ("is lost", STUCK)

Key = tuple[str, int]


class Verdict:
    """Collects the failures of a job's processes, and announces one of them.

    Args:
        members: What is known of each process that has joined.
        announce: Called once, with the failure that ends the job.

    Attributes:
        announced: That failure, None before.
        held: What each server holds, one phrase a table.
    """

    def __init__(
        self,
        members: Mapping[Key, MemberState],
        announce: Callable[[Failure], object],
    ):
        self.announced: Failure | None = None
        self.held: list[tuple[str, ...]] = []
        self._members = members
        self._announce = announce
        self._failures: list[Failure] = []
        self._undecided: dict[Key, tuple[float, Failure]] = {}

    def first(self) -> Failure | None:
        """The failure to blame: the first that is not a consequence, if any."""
        undecided = [failure for _, failure in list(self._undecided.values())]
        failures = list(self._failures) + undecided
        causes = [failure for failure in failures if not failure.consequence]
        return next(iter(causes or failures), None)

    def add(self, failure: Failure, wait_seconds: float = 0.0) -> None:
        """Takes note of a failure.

        Args:
            failure: What is known of it.
            wait_seconds: How long more may become known of it.
        """
        key = _key(failure)
        if self.announced is not None:
            self._undecided.pop(key, None)
            self._failures.append(dataclasses.replace(failure, consequence=True))
        elif wait_seconds > 0:
            self._undecided[key] = (time.monotonic() + wait_seconds, failure)
        else:
            self._undecided.pop(key, None)
            failure = self._with_facts(failure)
            self._failures.append(failure)
            self.announced = failure
            self._announce(failure)

    def add_told(self, failure: Failure) -> None:
        """Takes note of a failure that its process tells of itself."""
        wait_seconds = _LEAVER_SECONDS if self.leaver() else CAUSE_SECONDS
        self.add(failure, wait_seconds if failure.consequence else 0.0)

    def add_exit(self, key: Key, returncode: int) -> bool:
        """Takes note of a process that has ended with a status that is not well.

        Args:
            key: Role and index of the process.
            returncode: As `subprocess` gives it: negative for a signal.

        Returns:
            Whether that is news: of one that has failed before it may say more.
        """
        what, reason = describe_exit(returncode)
        before = next((f for f in self._failures if _key(f) == key), None)
        if before is not None:
            if before.what not in _TOLD_BY_OTHERS:
                # Its exit says more than its exception or its connection did.
                better = dataclasses.replace(before, what=what, reason=reason)
                self._failures[self._failures.index(before)] = better
            return False
        member = self._members.get(key)
        failure = Failure(*key, what, reason, None if member is None else member.step)
        due = 0.0
        if key in self._undecided:
            at, told = self._undecided[key]
            failure = dataclasses.replace(told, what=what, reason=reason)
            # A consequence goes on waiting for its cause.
            due = at if failure.consequence else 0.0
        self.add(failure, max(0.0, due - time.monotonic()))
        return True

    def forget(self, key: Key) -> None:
        """A process of which the worst was feared has ended well."""
        self._undecided.pop(key, None)

    def hurry(self) -> None:
        """A worker has left: what others miss of it need not wait long any more."""
        soon = time.monotonic() + _LEAVER_SECONDS
        for key, (due, failure) in self._undecided.items():
            if failure.consequence:
                self._undecided[key] = (min(due, soon), failure)

    def look(self, now: float) -> None:
        """Decides on failures whose cause has not shown itself in time."""
        for key, (due, failure) in list(self._undecided.items()):
            if now < due:
                continue
            leaver = self.leaver()
            if failure.consequence and leaver is not None:
                # It said goodbye in the midst of what the others were doing with it.
                self._failures.append(failure)
                self._undecided.pop(key, None)
                reason = "it left while the others went on"
                failure = Failure("worker", leaver.index, EARLY, reason, leaver.step)
            self.add(failure)

    def leaver(self) -> MemberState | None:
        """The worker that was the first to say goodbye, if any has."""
        left = [m for m in self._members.values() if m.state == "left"]
        left = [m for m in left if m.role == "worker"]
        return min(left, key=lambda m: m.left_at, default=None)

    def _with_facts(self, failure: Failure) -> Failure:
        """What others know of a server that is lost: it says nothing any more."""
        member = self._members.get(_key(failure))
        if failure.role != "server" or member is None:
            return failure
        steps = [m.step for m in self._members.values() if m.step is not None]
        return dataclasses.replace(
            failure,
            step=max(steps, default=None),
            address=str(member.info.get("address", "")),
            held=next(iter(self.held[member.index : member.index + 1]), ()),
        )


def _key(failure: Failure) -> Key:
    return failure.role, failure.index or 0
