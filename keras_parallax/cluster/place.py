"""Where in the user's program this process is."""

from __future__ import annotations

import contextlib
import gc
import itertools
import operator
import pathlib
import sys
import sysconfig
import threading
from types import FrameType

_PACKAGE = pathlib.Path(__file__).parents[1]


def place_in_program() -> str | None:
    """Where the main thread is: `"at train.py:20, in load"`, or None if unknown.

    The innermost call of what is neither installed nor this package: a worker is inside
    of `model.fit` almost always, and what matters is from where.
    """
    frame = next(filter(_is_users, _frames_of_main_thread()), None)
    if frame is None:
        return None
    code = frame.f_code
    place = f"at {pathlib.Path(code.co_filename).name}:{frame.f_lineno}"
    return place if code.co_name == "<module>" else f"{place}, in {code.co_name}"


def _frames_of_main_thread() -> list[FrameType]:
    """Its frames, innermost first, all of one moment.

    The main thread runs on whenever this one executes Python. Where frames are followed
    one by one, a generator's, once left, has none behind it. So one call in C collects
    them. It makes a frame object of each, at which the garbage collector may run; a
    finalizer lets the main thread run on, too, and CPython (3.11) then writes into a
    frame that is gone. So nothing is collected meanwhile.
    """
    ident = threading.main_thread().ident or 0
    now = itertools.islice(iter(sys._current_frames, None), 1)
    innermost = map(operator.itemgetter(ident), now)
    steps = itertools.chain(innermost, itertools.repeat("f_back"))
    frames: list[FrameType] = []
    collects = gc.isenabled()
    gc.disable()
    try:
        # Ends where there is no such thread, and after the outermost frame.
        with contextlib.suppress(KeyError, AttributeError):
            frames.extend(itertools.accumulate(steps, getattr))
    finally:
        if collects:
            gc.enable()
    return [frame for frame in frames if frame is not None]


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return not name.startswith(("<", *_LIBRARIES))


_LIBRARIES = tuple(
    f"{folder}/"
    for folder in (
        *(sysconfig.get_path(key) for key in ("stdlib", "purelib", "platlib")),
        _PACKAGE,
    )
)
