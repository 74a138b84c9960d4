"""Shows the output of several processes on one terminal, a line at a time."""

import contextlib
import fcntl
import os
import select
import sys
import termios
import threading
import time
from collections import deque
from typing import IO

_CHUNK_BYTES = 1 << 16
_TAIL_LINES = 40
# Progress bars are redrawn many times a second. On a terminal each is redrawn
# in place; in a file only so often is it worth a line.
_REDRAW_SECONDS = 10.0


class _State:
    """What is on a terminal's last line, and whose turn it is to write."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.drawn = False


class Screen:
    """One output stream of this process, shared by the relays of its children.

    Args:
        stream: Binary stream to write to, such as `sys.stdout.buffer`.
        beside: The screen of another stream. Where both are a terminal it is the
            same one, and a line of either wipes out what the other has drawn.
    """

    def __init__(self, stream: IO[bytes], beside: "Screen | None" = None):
        self._stream = stream
        self._terminal = stream.isatty()
        shared = beside is not None and self._terminal and beside._terminal
        self._state: _State = beside._state if shared and beside else _State()
        self._redrawn_at: dict[bytes, float] = {}

    def line(self, prefix: bytes, text: bytes) -> None:
        """Writes a whole line."""
        self._write(self._clear() + prefix + text + b"\n", drawn=False)

    def redraw(self, prefix: bytes, text: bytes) -> None:
        """Shows a line that will be drawn again, such as a progress bar's."""
        now = time.monotonic()
        if self._terminal:
            self._write(b"\r" + prefix + text + b"\x1b[K", drawn=True)
        elif now - self._redrawn_at.get(prefix, now) >= _REDRAW_SECONDS:
            self._redrawn_at[prefix] = now
            self.line(prefix, text)
        else:
            self._redrawn_at.setdefault(prefix, now)

    def raw(self, data: bytes) -> None:
        """Writes bytes as they are."""
        self._write(data, drawn=False)

    def _clear(self) -> bytes:
        return b"\r\x1b[K" if self._state.drawn else b""

    def _write(self, data: bytes, drawn: bool) -> None:
        with self._state.lock:
            self._state.drawn = drawn
            # The reader of our output may be gone; the job goes on.
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(data)
                self._stream.flush()


class Relay:
    """A thread that reads a child's output to its end, and shows it.

    Args:
        source: Read end of the child's pipe.
        screen: Where to show it; None shows it only when `show_tail` is called.
        prefix: Put before each line; None to pass the bytes as they are.
        log: A file that receives the bytes as they are.
    """

    def __init__(
        self,
        source: IO[bytes],
        screen: Screen | None,
        prefix: str | None = None,
        log: IO[bytes] | None = None,
    ):
        self._source = source
        self._screen = screen
        self._raw = prefix is None
        self._prefix = (prefix or "").encode()
        self._log = log
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        # Held while what has left the pipe is not shown yet.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def show_tail(self, screen: Screen) -> None:
        """Shows the last lines of what has not been shown."""
        if self._screen is None:
            for line in list(self._tail):
                screen.line(self._prefix, line)

    def join(self, timeout_seconds: float) -> None:
        """Waits until the child's output has ended."""
        self._thread.join(timeout_seconds)

    def catch_up(self, timeout_seconds: float) -> None:
        """Waits until the lines that the child has written by now are shown."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            with self._lock:
                if self._source.closed or not _unread_bytes(self._source):
                    return
            time.sleep(0.001)

    def _run(self) -> None:
        partial: bytes | None = b""
        readable = select.poll()
        readable.register(self._source, select.POLLIN)
        while partial is not None:
            readable.poll()
            with self._lock:
                partial = self._pass_on(partial)

    def _pass_on(self, partial: bytes) -> bytes | None:
        """Shows what is there; what may become a line, or None at the end."""
        chunk = os.read(self._source.fileno(), _CHUNK_BYTES)
        if not chunk:
            self._source.close()
            if partial:
                self._show(partial)
            return None
        if self._log is not None:
            self._log.write(chunk)
        if self._screen is not None and self._raw:
            self._screen.raw(chunk)
        *lines, partial = (partial + chunk).split(b"\n")
        for line in lines:
            self._show(line)
        return self._draw(partial) if b"\r" in partial else partial

    def _show(self, line: bytes) -> None:
        text = _last_drawn(line)
        self._tail.append(text)
        if self._screen is not None and not self._raw:
            self._screen.line(self._prefix, text)

    def _draw(self, partial: bytes) -> bytes:
        """Shows the state of a line that is being redrawn, and forgets the rest."""
        text = _last_drawn(partial)
        if text and self._screen is not None and not self._raw:
            self._screen.redraw(self._prefix, text)
        return b"\r" + text if text else b"\r"


def _last_drawn(line: bytes) -> bytes:
    """What a terminal would show of a line that was drawn over and over."""
    drawn = [part.strip(b"\b") for part in line.split(b"\r")]
    return next((part for part in reversed(drawn) if part), b"")


def _unread_bytes(pipe: IO[bytes]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
