"""The lifeline: how a job notices the death of any of its processes.

A worker that trains is inside a call of TensorFlow's runtime almost always, and
stays there for ever when another worker has died in an all-reduce or a server
has frozen. So a thread of each process keeps a connection to the job's
`Coordinator`, and ends the process when there is no use in waiting.
"""

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from keras_parallax.cluster.addresses import split_address
from keras_parallax.cluster.coordinator import BEAT_SECONDS, Coordinator
from keras_parallax.cluster.excepthook import install_excepthook
from keras_parallax.cluster.failure import EXIT_LOST, Failure, process_name
from keras_parallax.cluster.membership import MemberState, seconds_of, silence_seconds
from keras_parallax.errors import ClusterError, ProcessLostError, ServerLostError

__all__ = [
    "EXIT_LOST",
    "Coordinator",
    "Failure",
    "Member",
    "MemberState",
    "grace_seconds",
    "install_excepthook",
]

_TEXT_CHARACTERS = 20_000
_RETRY_SECONDS = 0.2
_NOTED_SECONDS = 2.0
_FLUSH_SECONDS = 0.5


def grace_seconds() -> float:
    """How long a process may take to end by itself when another is lost.

    `KERAS_PARALLAX_GRACE_SECONDS` overrides the 5 seconds.
    """
    return seconds_of("KERAS_PARALLAX_GRACE_SECONDS", 5.0)


class Member:
    """A process's connection to its job's coordinator; make it with `join`.

    Attributes:
        role: `"worker"` or `"server"`.
        index: Which of them.
        welcome: What the coordinator tells everyone who joins.
        lost: The failure that ends the job, or None while there is none.
    """

    def __init__(
        self,
        connection: socket.socket,
        role: str,
        index: int,
        on_lost: Callable[[Failure], object] | None,
        silence_limit: float,
    ):
        self.role = role
        self.index = index
        self.welcome: dict[str, Any] = {}
        self.lost: Failure | None = None
        self._coordinator = "coordinator"
        self._connection = connection
        self._received = b""
        self._early: list[dict[str, Any]] = []
        self._on_lost = on_lost or self._end_process
        self._silence_seconds = silence_limit
        self._step: int | None = None
        self._calls: int | None = None
        self._place: str | None = None
        self._over = threading.Event()
        self._lost = threading.Event()
        self._ended = threading.Event()
        self._noted = threading.Event()
        self._left = False
        self._failed = False
        self._announced = False
        self._announcing = threading.Lock()
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name="keras-parallax-lifeline", daemon=True
        )

    @classmethod
    def join(
        cls,
        address: str,
        role: str,
        index: int,
        timeout_seconds: float = 60.0,
        info: dict[str, Any] | None = None,
        on_lost: Callable[[Failure], object] | None = None,
        silence_limit: float | None = None,
    ) -> "Member":
        """Joins the job, trying again until its coordinator is there.

        Args:
            address: `"host:port"` of the coordinator.
            role: `"worker"` or `"server"`.
            index: Which of them.
            timeout_seconds: How long to try.
            info: Facts for the coordinator to show, of types that JSON has. What is
                in `"alike"`, a dictionary, all of a role must have the same.
            on_lost: Called with a `Failure`, in the member's thread, when
                another process or the coordinator is lost. By default one line
                is printed, and the process is ended with status `EXIT_LOST`
                unless it ends by itself within `grace_seconds()`.
            silence_limit: Without a word from the coordinator for so many
                seconds, it is lost; `silence_seconds()` by default.

        Raises:
            ClusterError: Nobody answered in time, or the coordinator refused.
        """
        host, port = split_address(address)
        deadline = time.monotonic() + timeout_seconds
        problem: Exception | None = None
        while True:
            left_seconds = max(0.1, deadline - time.monotonic())
            try:
                connection = socket.create_connection((host, port), left_seconds)
                limit = silence_limit or silence_seconds()
                member = cls(connection, role, index, on_lost, limit)
                if member._introduce(left_seconds, info or {}):
                    return member
                problem = ClusterError("it closed the connection")
            except OSError as error:
                problem = error
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise ClusterError(
                    f"{process_name(role, index)} could not join its job: the "
                    f"coordinator at {address} did not answer within "
                    f"{timeout_seconds:g} s ({problem}). Check that the launcher, "
                    "or worker 0 of a TF_CONFIG cluster, runs there, and that the "
                    "port is reachable from this machine."
                ) from problem
            time.sleep(_RETRY_SECONDS)

    def at(
        self,
        step: int | None,
        calls: int | None = None,
        place: str | None = None,
    ) -> None:
        """Notes where training is; sent along with the next heartbeat.

        Args:
            step: Steps that are done.
            calls: Calls that this process has come to, which others take part in.
            place: Where in its program it is.
        """
        self._step, self._calls, self._place = step, calls, place

    def tell_held(self, held: Sequence[Sequence[str]]) -> None:
        """Tells what each server holds: who loses one wants to know.

        Args:
            held: For each server, one phrase a table.
        """
        self._send({"type": "held", "held": [list(phrases) for phrases in held]})

    def fail(
        self, summary: str, traceback_text: str = "", consequence: bool = False
    ) -> None:
        """Tells the job that this process cannot go on.

        Args:
            summary: The exception's type and message, in one line.
            traceback_text: Its traceback.
            consequence: Whether another process's end has probably caused it.
        """
        self._failed = True
        self._tell(
            {
                "type": "fail",
                "summary": summary[:_TEXT_CHARACTERS],
                "traceback": traceback_text[-_TEXT_CHARACTERS:],
                "consequence": consequence,
            }
        )

    @property
    def failed(self) -> bool:
        """Whether this process has told the job that it cannot go on."""
        return self._failed

    def leave(self, wait_for_end_seconds: float | None = None) -> bool:
        """Says goodbye; from then on this process's end is no failure.

        Args:
            wait_for_end_seconds: How long to wait until all workers have left.
                A process that has called `fail` does not wait: its end is what
                the others wait for.

        Returns:
            Whether the whole job is known to have ended.
        """
        if not self._left:
            self._left = True
            self._tell({"type": "bye"})
        if wait_for_end_seconds is None or self._failed:
            return self._ended.is_set()
        return self.wait_end(wait_for_end_seconds)

    def wait_end(self, timeout_seconds: float | None = None) -> bool:
        """Waits until the job has ended or failed; whether it ended well."""
        self._over.wait(timeout_seconds)
        return self._ended.is_set()

    def wait_lost(self, timeout_seconds: float | None = None) -> Failure | None:
        """Waits for the news that another process is lost, or that none is to blame
        but this one."""
        self._lost.wait(timeout_seconds)
        return self.lost

    def check(self) -> None:
        """Raises `ProcessLostError` when another process is lost."""
        if self.lost is None:
            return
        f = self.lost
        detail = ": ".join(part for part in (f.reason, f.summary) if part) or f.what
        if f.role == "server":
            raise ServerLostError(f.index, f.step, detail, f.address, f.held)
        raise ProcessLostError(f.role, f.index, f.step, detail)

    def announce(self, failure: Failure) -> None:
        """Prints, once in the life of the process, why it stops."""
        # Whoever comes second goes on when the line is there, and not before.
        with self._announcing:
            if self._announced:
                return
            self._announced = True
            name = process_name(self.role, self.index)
            # Whoever read the output may be gone as well.
            with contextlib.suppress(OSError, ValueError):
                # One write, so that the lines of several processes do not mix.
                sys.stderr.write(f"keras-parallax: {name} stops: {failure}\n")
                sys.stderr.flush()

    def _introduce(self, timeout_seconds: float, info: dict[str, Any]) -> bool:
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.settimeout(min(timeout_seconds, 10.0))
        self._send(
            {
                "type": "join",
                "role": self.role,
                "index": self.index,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "info": info,
            }
        )
        while True:
            messages = self._receive()
            if messages is None:
                self._connection.close()
                return False
            if messages:
                break
        first, *rest = messages
        if first.get("type") == "refused":
            self._connection.close()
            raise ClusterError(
                f"The coordinator has refused this process: {first['reason']}"
            )
        if first.get("type") != "welcome":
            self._connection.close()
            return False
        self.welcome = first["welcome"]
        self._coordinator = first["coordinator"]
        # Replies can wait: the thread reads them when it starts.
        self._early = rest
        self._thread.start()
        return True

    def _receive(self) -> list[dict[str, Any]] | None:
        try:
            chunk = self._connection.recv(1 << 16)
        except (TimeoutError, ConnectionError):
            return None
        if not chunk:
            return None
        *lines, self._received = (self._received + chunk).split(b"\n")
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return None

    def _tell(self, message: dict[str, Any]) -> None:
        """Sends, and waits until it was read: the process may end right after."""
        self._noted.clear()
        self._send(message)
        if not self._over.is_set() and threading.current_thread() != self._thread:
            self._noted.wait(_NOTED_SECONDS)

    def _send(self, message: dict[str, Any]) -> None:
        message.update(step=self._step, calls=self._calls, place=self._place)
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                self._connection.sendall(line)
            except OSError:
                # The thread finds the same, and knows what to do about it.
                pass

    def _run(self) -> None:
        failure = self._follow(self._early)
        self._connection.close()
        if failure is not None and not self._left:
            self.lost = failure
            self._lost.set()
            self._over.set()
            self._on_lost(failure)
        self._over.set()

    def _follow(self, messages: list[dict[str, Any]] | None) -> Failure | None:
        """Reads until the job is over; the failure that it is over by, if any."""
        heard = beat = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            while True:
                if messages is None:
                    return self._without_coordinator("its connection closed", "died")
                for message in messages:
                    if message["type"] == "lost":
                        return Failure.from_json(message)
                    if message["type"] == "noted":
                        self._noted.set()
                    if message["type"] == "blamed":
                        self._lost.set()
                    if message["type"] == "end":
                        self._ended.set()
                        return None
                messages = []
                now = time.monotonic()
                if now >= beat:
                    self._send({"type": "beat"})
                    beat = now + BEAT_SECONDS
                if selector.select(max(0.0, beat - now)):
                    messages = self._receive()
                    heard = time.monotonic()
                elif time.monotonic() - heard > self._silence_seconds:
                    reason = f"not answering for {self._silence_seconds:g} s"
                    return self._without_coordinator(reason, "is lost")

    def _without_coordinator(self, reason: str, what: str) -> Failure:
        return Failure(self._coordinator, None, what, reason)

    def _end_process(self, failure: Failure) -> None:
        # In threads: where the output is stuck, as with a frozen launcher, neither
        # may keep this process from its end.
        threading.Thread(target=self.announce, args=(failure,), daemon=True).start()
        time.sleep(grace_seconds())
        flush = threading.Thread(target=sys.stdout.flush, daemon=True)
        flush.start()
        flush.join(_FLUSH_SECONDS)
        # The main thread is in a call that does not return: nothing gentler
        # reaches it.
        os._exit(EXIT_LOST)
