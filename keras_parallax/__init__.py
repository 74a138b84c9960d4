"""Distributed training of Keras 3 models with large embeddings, on TensorFlow.

The public names are loaded when they are first used: the launcher and the servers
import parts of this package and have no need of Keras.
"""

import importlib
from typing import TYPE_CHECKING, Any

from keras_parallax.versions import __version__ as __version__
from keras_parallax.versions import check_versions

if TYPE_CHECKING:
    from keras_parallax import callbacks as callbacks
    from keras_parallax import errors as errors
    from keras_parallax.strategy import ParallaxStrategy as ParallaxStrategy

check_versions()

_HOMES = {
    "ParallaxStrategy": ("keras_parallax.strategy", "ParallaxStrategy"),
    "callbacks": ("keras_parallax.callbacks", None),
    "errors": ("keras_parallax.errors", None),
}

__all__ = ["ParallaxStrategy", "callbacks", "errors"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found = importlib.import_module(module)
    return found if attribute is None else getattr(found, attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
