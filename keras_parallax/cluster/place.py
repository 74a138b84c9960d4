"""Where in the user's program this process is."""

from __future__ import annotations

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
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    place = f"at {pathlib.Path(code.co_filename).name}:{frame.f_lineno}"
    return place if code.co_name == "<module>" else f"{place}, in {code.co_name}"


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
