"""Which versions of what the package works with, and the check of them.

Only the standard library is imported here: setup.py runs this file to read the
version and the requirements, and the check has to come before TensorFlow and
Keras are imported, which takes seconds and may fail for the very reason that
the check would have named.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# The strategy leans on how these two meet (how the tape finds a variable's
# gradient, how an optimizer reaches a strategy), which no public contract fixes.
TENSORFLOW_SERIES = "2.21"
KERAS_SERIES = "3.15"
BACKEND = "tensorflow"

# TensorFlow is published under more than one name; each installs `tensorflow`.
TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")


def installed_version(*distributions: str) -> str | None:
    """Version of the first of these distributions that is installed.

    Args:
        *distributions: Names as pip knows them, in order of preference.

    Returns:
        The version, or `None` where none of them is installed. Nothing is
        imported to find it.
    """
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def keras_backend() -> tuple[str, str]:
    """The backend that Keras uses or will use, and where that was read.

    Returns:
        The backend's name, and the place that decides it, in words: Keras
        itself where it is imported already, else the environment variable
        KERAS_BACKEND, else Keras's configuration file, else its default.
    """
    keras: Any = sys.modules.get("keras")
    # A Keras that is still being imported has no backend to ask yet.
    if hasattr(getattr(keras, "backend", None), "backend"):
        return keras.backend.backend(), "Keras, which is imported already"
    if os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"], "the environment variable KERAS_BACKEND"
    home = pathlib.Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    path = home / "keras.json"
    try:
        settings = json.loads(path.read_text())
    except (OSError, ValueError):  # Keras too goes on with its defaults.
        settings = None
    if isinstance(settings, dict) and "backend" in settings:
        return str(settings["backend"]), str(path)
    return "tensorflow", "Keras's default"


def check_versions() -> None:
    """Raises unless the installed TensorFlow and Keras are ones we know.

    Called when the package is imported, before TensorFlow is.

    Raises:
        ImportError: TensorFlow or Keras is missing or of another series, or
            Keras's backend is not TensorFlow. The message lists all that was
            found, what was expected, and how to mend it.
    """
    problems = []
    wanted = (
        ("TensorFlow", TENSORFLOW_SERIES, TENSORFLOW_DISTRIBUTIONS),
        ("Keras", KERAS_SERIES, ("keras",)),
    )
    for title, series, distributions in wanted:
        found = installed_version(*distributions)
        if found is None or found.split(".")[:2] != series.split("."):
            problems.append(
                f"{title}: found {found or 'none'}, expected {series}.*. Mend it "
                f"with `pip install '{distributions[0]}=={series}.*'`."
            )
    backend, decided_by = keras_backend()
    if backend != BACKEND:
        problems.append(
            f"Keras backend: found {backend!r} (set by {decided_by}), expected "
            f"{BACKEND!r}. Mend it by setting KERAS_BACKEND={BACKEND} in the "
            "environment before Keras is imported."
        )
    if problems:
        raise ImportError(
            f"keras_parallax {__version__} cannot work with what is installed "
            f"in {sys.executable}:\n" + "\n".join(f"  - {line}" for line in problems)
        )


def horovod_or_explain() -> ModuleType:
    """Imports and returns `horovod.tensorflow`.

    Raises:
        ImportError: Horovod is not installed, or was built for another
            TensorFlow than the one installed now.
    """
    try:
        return importlib.import_module("horovod.tensorflow")
    # A library compiled for another TensorFlow fails with an error of
    # TensorFlow's own, which cannot be named here without importing it.
    except Exception as error:
        found = installed_version("horovod")
        state = (
            f"horovod {found} is installed but cannot be imported"
            if found
            else "it is not installed"
        )
        raise ImportError(
            "Training with more than one worker needs Horovod built for the "
            f"installed TensorFlow ({installed_version(*TENSORFLOW_DISTRIBUTIONS)}); "
            f"{state} ({type(error).__name__}: {error}). Mend it with "
            "`keras-parallax build-horovod`, which builds it once and takes a "
            "few minutes."
        ) from error


def takes_expected_splits() -> bool:
    """Whether the installed Horovod may be told what an all-to-all will receive.

    That which `keras-parallax build-horovod` builds may.
    """
    return _horovod_edition() is not None


def of_exchange() -> dict[str, str]:
    """What workers that exchange with each other must have alike.

    Horovod's workers do not say what they send each other by: of two that differ, one
    may wait for what the other never sends.
    """
    edition = _horovod_edition()
    built = "" if edition is None else f", edition {edition} of `build-horovod`"
    return {
        "keras-parallax": __version__,
        "horovod": f"{installed_version('horovod')}{built}",
    }


def _horovod_edition() -> int | None:
    """What `keras-parallax build-horovod` has left in its wheel; None elsewhere."""
    if importlib.util.find_spec("horovod") is None:
        return None
    return getattr(importlib.import_module("horovod"), "keras_parallax_edition", None)
