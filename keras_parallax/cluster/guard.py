"""A guard: ends the processes that a parent has started when the parent dies.

The parent starts this file as a program of its own, and keeps the write end of
its standard input. A line `+12` puts process group 12 under guard, `-12`
releases it. When the parent is gone, however it died, every group still under
guard is killed, with whatever its processes have started in turn.

A plain file that imports next to nothing: it starts in the time of a bare Python.
"""

import os
import select
import signal
import sys

_POLL_SECONDS = 1.0


def guard(parent_pid: int) -> None:
    """Follows the orders on standard input until `parent_pid` is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    pending = b""
    # A child that the parent has forked holds the pipe open beyond the parent's
    # death: so its death is looked for as well.
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
        if not readable:
            continue
        chunk = os.read(0, 1 << 16)
        if not chunk:
            break
        *orders, pending = (pending + chunk).split(b"\n")
        for order in orders:
            change = groups.add if order.startswith(b"+") else groups.discard
            change(int(order[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


if __name__ == "__main__":
    guard(int(sys.argv[1]))
