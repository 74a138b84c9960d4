"""One line on standard error about work that takes long."""

from __future__ import annotations

import sys
import threading
import time

# Work that is done sooner says nothing.
QUIET_SECONDS = 3.0
# Between two lines; a terminal has one line, that is written anew.
_LINE_SECONDS, _REWRITE_SECONDS = 10.0, 0.5


class ProgressLine:
    """Tells how far work has come, once it has taken a few seconds.

    To be used as a context; `add` may be called from several threads.

    Args:
        what: What is being done, such as `"initialising embeddings (8.0 GiB)"`.
        total: Amount of work, in any unit.
        shown: Whether to say anything: one worker speaks for all.
    """

    def __init__(self, what: str, total: int, shown: bool = True):
        self._what = what
        self._total = max(1, total)
        self._shown = shown
        self._done = 0
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._next = self._began + QUIET_SECONDS
        self._has_written = False

    def add(self, amount: int) -> None:
        """Notes that so much more is done."""
        with self._lock:
            self._done += amount
            if self._shown and time.monotonic() >= self._next:
                self._write(f"{100 * self._done // self._total}%")

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind, *exception) -> None:
        if self._has_written:
            seconds = time.monotonic() - self._began
            word = "done" if kind is None else "stopped"
            self._write(f"{word} after {seconds:.0f} s", last=True)

    def _write(self, state: str, last: bool = False) -> None:
        terminal = sys.stderr.isatty()
        begin, end = ("\r", "\n" if last else "") if terminal else ("", "\n")
        # Padded, to cover what the line has said before.
        sys.stderr.write(f"{begin}{f'keras_parallax: {self._what}: {state}':<79}{end}")
        sys.stderr.flush()
        self._has_written = True
        self._next = time.monotonic() + (
            _REWRITE_SECONDS if terminal else _LINE_SECONDS
        )


def in_words(size_bytes: float) -> str:
    """Bytes as people say them: `"8.0 GiB"`."""
    for unit in ("bytes", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} GiB"
