"""What is noted while a graph is traced: of another graph it is of no use."""

from __future__ import annotations

from typing import Generic, TypeVar

import tensorflow as tf

T = TypeVar("T")


class Noted(Generic[T]):
    """Things that belong to the graph in which they were noted last.

    Outside of graphs, steps have no end: the last thing noted is the only one.
    """

    def __init__(self) -> None:
        self._graph: tf.Graph | None = None
        self._things: list[T] = []

    def note(self, *things: T) -> None:
        """Adds things; what was noted in another graph is forgotten."""
        graph = _graph()
        before = self._things if graph is not None and graph is self._graph else []
        self._graph, self._things = graph, [*before, *things]

    def here(self) -> list[T]:
        """What was noted in this graph, in order."""
        return list(self._things) if _graph() is self._graph else []


def _graph() -> tf.Graph | None:
    if tf.executing_eagerly():
        return None
    return tf.compat.v1.get_default_graph()
