"""How far training has come, seen from outside of it.

A training step is one call of a compiled function, in which no Python runs that
could report it. What counts the steps is a variable of the optimizer; a thread of
its own reads it now and then. The lifeline's thread must not: a read may block
where TensorFlow does, and then this process would be taken for dead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from keras_parallax.cluster.lifeline import Member
from keras_parallax.cluster.place import place_in_program

POLL_SECONDS = 0.5
_STOP_SECONDS = 2.0


class Progress:
    """Tells the job, through this process's lifeline, what it is doing.

    The step that others read of is up to `POLL_SECONDS` and a heartbeat old.

    Args:
        member: This process's connection to the coordinator.
    """

    def __init__(self, member: Member):
        self._member = member
        self._steps: Callable[[], int | None] = lambda: None
        self._calls: list[Callable[[], int]] = []
        self._held: list[Callable[[], Sequence[Sequence[str]]]] = []
        self._told: list[list[str]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="keras-parallax-progress", daemon=True
        )
        self._thread.start()

    def follow(self, steps: Callable[[], int | None]) -> None:
        """Reads the number of steps from `steps` from now on.

        Args:
            steps: Returns how many steps have been done, None if it is unknown.
        """
        self._steps = steps

    def add_calls(self, calls: Callable[[], int]) -> None:
        """Adds to the calls that this process has come to.

        Args:
            calls: Returns how many calls it has come to that others take part in.
        """
        self._calls.append(calls)

    def add_held(self, held: Callable[[], Sequence[Sequence[str]]]) -> None:
        """Adds to what is known of the servers' contents.

        Args:
            held: Returns, for each server, what it holds: one phrase a table.
        """
        self._held.append(held)

    def stop(self) -> None:
        """Ends the thread: it must not be in TensorFlow when Python ends."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            try:
                self._look()
            except Exception:  # noqa: S112
                # A model that is being rebuilt, a table half made: the next look
                # finds it whole, and no training may fail for want of a report.
                continue

    def _look(self) -> None:
        calls = sum(read() for read in self._calls) if self._calls else None
        self._member.at(self._steps(), calls, place_in_program())
        found: list[list[str]] = []
        for held in list(self._held):
            for index, phrases in enumerate(held()):
                found.extend([] for _ in range(index + 1 - len(found)))
                found[index].extend(phrases)
        if found != self._told:
            self._told = found
            self._member.tell_held(found)
