"""The user's folder for what is worth keeping from one run to the next."""

import os
import pathlib


def cache_dir() -> pathlib.Path:
    """Folder of what is kept (`KERAS_PARALLAX_CACHE` overrides)."""
    root = os.environ.get("KERAS_PARALLAX_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
        "keras_parallax",
    )
    return pathlib.Path(root)
