"""The coordinator: knows which processes of a job live, and tells the others.

Each member keeps one connection open and sends a JSON object a line. A process
that dies closes its connection at once, whatever it died of; a machine that
vanishes does not, and is found by its missing heartbeats.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import errno
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from keras_parallax.cluster.addresses import join_address, port_error, reach
from keras_parallax.cluster.admission import why_not
from keras_parallax.cluster.failure import STUCK, Failure
from keras_parallax.cluster.membership import MemberState, silence_seconds
from keras_parallax.cluster.verdict import Verdict
from keras_parallax.cluster.waiting import Patience, Wait, stall_seconds

logger = logging.getLogger("keras_parallax")

BEAT_SECONDS = 1.0
_JOIN_SECONDS = 10.0
_TICK_SECONDS = 0.1
_LINE_BYTES = 1 << 20
_CLOSED = "its connection closed"


class Coordinator:
    """Keeps a connection to each process of a job, in a thread of its own.

    Args:
        host: Under which the members reach it. It listens there alone, unless
            the name belongs to no interface of this machine.
        port: To listen on; 0 for any that is free.
        expected_workers: How many workers must say goodbye before the job has
            ended; None for those that have joined.
        name: What members call it when they lose it, such as `"worker 0"`.
        welcome: Sent to each member that joins.
        silence_limit: Without a heartbeat for so many seconds, a member is
            lost; `silence_seconds()` by default.
        stall_limit: A worker that the others have waited for so many seconds is
            stuck; 0 for never, `stall_seconds()` by default.
        explain_seconds: How long the end of a connection waits for
            `report_exit` to say what the process has ended with; 0 where
            nobody watches the processes themselves.
        on_event: Called, in the coordinator's thread (by default the last of these is
            logged), with
            `{"event": "joined" | "left" | "failed" | "lost" | "end", ...}`, and
            `{"event": "waiting", "news": ...}` when workers wait for one of them.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        expected_workers: int | None = None,
        *,
        name: str = "launcher",
        welcome: dict[str, Any] | None = None,
        silence_limit: float | None = None,
        stall_limit: float | None = None,
        explain_seconds: float = 0.0,
        on_event: Callable[[dict[str, Any]], object] | None = None,
    ):
        self.host = host
        self.port = port
        self.expected_workers = expected_workers
        self.name = name
        self.welcome = dict(welcome or {})
        self._silence_seconds = silence_limit or silence_seconds()
        self._explain_seconds = explain_seconds
        self._patience = Patience(
            stall_seconds() if stall_limit is None else stall_limit
        )
        self._on_event = on_event or _log
        self._members: dict[tuple[str, int], MemberState] = {}
        self._writers: dict[tuple[str, int], asyncio.StreamWriter] = {}
        self._verdict = Verdict(self._members, self._announce)
        self._ended = threading.Event()
        self._at_stop = contextlib.ExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever,
            name="keras-parallax-coordinator",
            daemon=True,
        )
        self._watch: concurrent.futures.Future | None = None
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """`"host:port"`, once started."""
        return join_address(self.host, self.port)

    def start(self) -> "Coordinator":
        """Listens, and returns itself.

        Raises:
            ClusterError: The port is in use, or may not be opened.
        """
        self._thread.start()
        try:
            self._server = self._call(self._listen())
        except OSError as error:
            self.stop()
            raise port_error(self.port, error) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._watch = asyncio.run_coroutine_threadsafe(self._tick(), self._loop)
        return self

    def stop(self) -> None:
        """Closes every connection and ends the thread; may be called twice."""
        if not self._loop.is_closed():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._at_stop.close()

    def at_stop(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the coordinator has stopped."""
        self._at_stop.callback(callback)

    def members(self) -> list[MemberState]:
        """A copy of what is known of each process that has joined."""
        return [dataclasses.replace(m) for m in list(self._members.values())]

    def first_failure(self) -> Failure | None:
        """The failure to blame: the first that is not a consequence, if any."""
        return self._verdict.first()

    def announced(self) -> Failure | None:
        """The failure that the members have been told of, if any."""
        return self._verdict.announced

    def wait_end(self, timeout_seconds: float | None = None) -> bool:
        """Waits until all workers have said goodbye; whether they have."""
        return self._ended.wait(timeout_seconds)

    def end(self) -> None:
        """Tells every member that the job has ended, whoever said goodbye."""
        self._call(self._end())

    def report_exit(self, role: str, index: int, returncode: int) -> None:
        """Tells what a process has ended with; its parent calls this.

        Args:
            role: `"worker"` or `"server"`.
            index: Which of them.
            returncode: As `subprocess` gives it: negative for a signal.
        """
        self._call(self._exited((role, index), returncode))

    def _call(self, coroutine) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _listen(self) -> asyncio.Server:
        host: str | None = self.host
        try:
            return await self._listen_on(host)
        except OSError as error:
            # A name may stand for an address outside this machine that is
            # forwarded to it, as in a container.
            known = error.errno in (errno.EADDRNOTAVAIL, None)
            if not known or reach(self.host) == "loopback":
                raise
            return await self._listen_on(None)

    async def _listen_on(self, host: str | None) -> asyncio.Server:
        return await asyncio.start_server(
            self._serve, host, self.port, limit=_LINE_BYTES, backlog=512
        )

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for writer in self._writers.values():
            writer.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader, writer) -> None:
        key = None
        stranger = self._loop.call_later(_JOIN_SECONDS, writer.close)
        try:
            key = self._admit(await _receive(reader), writer)
            stranger.cancel()
            while key is not None:
                message = await _receive(reader)
                if message is None:
                    break
                self._heard(key, message)
        except (OSError, ValueError, KeyError, TypeError):
            # A stranger, or a connection that was reset: the end of this
            # connection says all there is to say.
            pass
        except asyncio.CancelledError:
            # Returns instead: the tasks of a server that is closed are not
            # awaited by anyone who would want to know.
            key = None
        finally:
            stranger.cancel()
            writer.close()
        if key is not None:
            self._writers.pop(key, None)
            self._closed(key)

    def _admit(self, message: dict[str, Any] | None, writer) -> tuple | None:
        if message is None or message.get("type") != "join":
            return None
        key = (str(message["role"]), int(message["index"]))
        member = MemberState(
            role=key[0],
            index=key[1],
            pid=int(message["pid"]),
            host=str(message["host"]),
            info=dict(message["info"]),
            last_seen=time.monotonic(),
        )
        reason = why_not(member, self._members)
        if reason is not None:
            _send(writer, {"type": "refused", "reason": reason})
            if key not in self._members:
                # The others wait for it, and it will not come.
                self._verdict.add(Failure(*key, what="failed", summary=reason))
            return None
        self._members[key] = member
        self._writers[key] = writer
        _send(
            writer,
            {"type": "welcome", "welcome": self.welcome, "coordinator": self.name},
        )
        self._event("joined", member)
        failure = self._verdict.announced
        if failure is not None:
            _send(writer, {"type": "lost", **failure.to_json()})
        return key

    def _heard(self, key: tuple[str, int], message: dict[str, Any]) -> None:
        member = self._members[key]
        member.last_seen = time.monotonic()
        if message.get("step") is not None:
            member.step = int(message["step"])
        if message.get("calls") not in (None, member.calls):
            member.calls, member.calls_at = int(message["calls"]), member.last_seen
        member.place = message.get("place")
        kind = message.get("type")
        if kind == "beat":
            _send(self._writers[key], {"type": "beat"})
            return
        if kind == "held":
            held = [tuple(map(str, phrases)) for phrases in message["held"]]
            self._verdict.held = held
            return
        # The process may end as soon as it knows that this was read.
        _send(self._writers[key], {"type": "noted"})
        if kind == "bye" and member.state == "running":
            member.state, member.left_at = "left", time.monotonic()
            self._event("left", member)
            self._verdict.hurry()
            self._end_when_all_left()
        elif kind == "fail" and member.state == "running":
            member.state = "failed"
            failure = Failure(
                *key,
                what="failed",
                step=member.step,
                summary=str(message["summary"]),
                traceback=str(message["traceback"]),
                consequence=bool(message["consequence"]),
            )
            self._verdict.add_told(failure)

    def _closed(self, key: tuple[str, int]) -> None:
        member = self._members[key]
        if member.state != "running" or self._ended.is_set():
            return
        member.state = "lost"
        failure = Failure(*key, what="died", reason=_CLOSED, step=member.step)
        self._verdict.add(failure, self._explain_seconds)

    async def _exited(self, key: tuple[str, int], returncode: int) -> None:
        member = self._members.get(key)
        if returncode == 0 and key[0] == "worker":
            self._verdict.forget(key)
            if member is not None and member.state != "failed":
                member.state = "left"
                member.left_at = member.left_at or time.monotonic()
                self._end_when_all_left()
        elif not self._ended.is_set():
            if self._verdict.add_exit(key, returncode) and member is not None:
                member.state = "failed"

    def _announce(self, failure: Failure) -> None:
        """Tells everyone of the failure that ends the job."""
        self._event("failed" if failure.what == "failed" else "lost", failure)
        culprit, leaver = (failure.role, failure.index), self._verdict.leaver()
        # One that has left may be waiting for the others, and one that is stuck has to
        # be ended as they are: these are told, too.
        told = failure.what == STUCK or (
            leaver is not None and culprit == (leaver.role, leaver.index)
        )
        for key, writer in self._writers.items():
            if key != culprit or told:
                _send(writer, {"type": "lost", **failure.to_json()})
            else:
                # It need not wait for another cause.
                _send(writer, {"type": "blamed"})

    async def _tick(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            if now - before > BEAT_SECONDS + _TICK_SECONDS:
                # This process itself was stopped for a while: what the members
                # have sent meanwhile has not been read yet.
                for member in self._members.values():
                    member.last_seen += now - before
                    member.calls_at += now - before
            before = now
            self._verdict.look(now)
            for key, member in self._members.items():
                self._judge_silence(key, member, now)
            self._judge_wait(now)

    def _judge_silence(
        self, key: tuple[str, int], member: MemberState, now: float
    ) -> None:
        if member.state == "running" and key in self._writers:
            if now - member.last_seen > self._silence_seconds:
                member.state = "lost"
                reason = f"not answering for {self._silence_seconds:g} s"
                failure = Failure(*key, "is lost", reason, member.step)
                self._verdict.add(failure)

    def _judge_wait(self, now: float) -> None:
        if self._verdict.announced is not None:
            return
        wait = Wait.among(self._members.values(), now)
        news, failure = self._patience.news(wait), self._patience.failure(wait)
        if news is not None:
            self._on_event({"event": "waiting", "news": news})
        if wait is not None and failure is not None:
            wait.late.state = "lost"
            self._verdict.add(failure)

    def _end_when_all_left(self) -> None:
        workers = [m for m in self._members.values() if m.role == "worker"]
        left = [m for m in workers if m.state == "left"]
        expected = self.expected_workers or len(workers)
        if len(left) >= expected and self._verdict.first() is None:
            self._tell_end()

    async def _end(self) -> None:
        self._tell_end()

    def _tell_end(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._on_event({"event": "end"})
            for writer in self._writers.values():
                _send(writer, {"type": "end"})

    def _event(self, event: str, about: MemberState | Failure) -> None:
        fields: dict[str, Any] = {"event": event}
        fields.update(role=about.role, index=about.index)
        if isinstance(about, Failure):
            fields["failure"] = about
        self._on_event(fields)


def _log(event: dict[str, Any]) -> None:
    if event["event"] == "waiting":
        logger.warning("%s", event["news"])


async def _receive(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        return None
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"Expected a JSON object. Received: {message!r}")
    return message


def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(json.dumps(message).encode() + b"\n")
