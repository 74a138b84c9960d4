"""Keras callbacks; give `fit` the same list of them on every worker.

A callback's module is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_parallax.callbacks.fit_summary import FitSummary as FitSummary
    from keras_parallax.callbacks.partition_search import (
        PartitionSearch as PartitionSearch,
    )
    from keras_parallax.callbacks.tensorboard import (
        ParallaxTensorBoard as ParallaxTensorBoard,
    )

_HOMES = {
    "FitSummary": "keras_parallax.callbacks.fit_summary",
    "ParallaxTensorBoard": "keras_parallax.callbacks.tensorboard",
    "PartitionSearch": "keras_parallax.callbacks.partition_search",
}

__all__ = ["FitSummary", "ParallaxTensorBoard", "PartitionSearch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
