"""Traces a step without running it, to learn what gradients tables get."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import tensorflow as tf


class Watched(Protocol):
    """What the probe wants of a table."""

    gradients_seen: set[str]


T = TypeVar("T", bound=Watched)


def probe(
    function: Callable, args: tuple, kwargs: dict, tables: Iterable[T]
) -> dict[T, set[str]]:
    """Kinds of gradient that each table gets in `function(*args, **kwargs)`.

    The operations go into a graph of their own, which is then dropped: nothing is
    run, sent or changed.

    Returns:
        For each table a set of "sparse" and "dense"; empty when the function takes
        no gradient for it.
    """
    tables = list(tables)
    for table in tables:
        table.gradients_seen = set()
    with tf.__internal__.FuncGraph("keras_parallax_probe").as_default():
        function(*args, **kwargs)
    return {table: table.gradients_seen for table in tables}
