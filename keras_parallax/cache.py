"""The user's folder for what is worth keeping from one run to the next."""

import json
import logging
import os
import pathlib
from typing import Any

logger = logging.getLogger("keras_parallax")


def cache_dir() -> pathlib.Path:
    """Folder of what is kept (`KERAS_PARALLAX_CACHE` overrides)."""
    root = os.environ.get("KERAS_PARALLAX_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
        "keras_parallax",
    )
    return pathlib.Path(root)


def kept(path: pathlib.Path) -> Any:
    """What `keep` has written; None if there is nothing that can be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def keep(path: pathlib.Path, what: str, value: Any) -> None:
    """Writes plain data for a later run; where it cannot, it says so and goes on.

    Args:
        path: Where to.
        what: What it is, for people.
        value: The data.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its place and renamed: never half a file, nor two at once.
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(value) + "\n", "utf-8")
        partial.replace(path)
    except OSError as error:
        logger.info("%s are not kept: %s", what, error)
