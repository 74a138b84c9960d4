"""What one step wants of its tables, collected so that it can travel together.

Lookups are met one by one while a step is traced. Each gets a placeholder for its
rows at once; when the backward pass begins, or the step ends, all of them are
pulled in one go, and the placeholders are fed from the answer. In the same way the
updates of the tables are pushed when the last of them has come.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import tensorflow as tf

from keras_parallax.collectives.spans import HOLD, PULL, PUSH, Spans
from keras_parallax.servers.home import Home, Pull, Push


class ServerVariable(Protocol):
    """What is to be read from servers when a step begins."""

    def request(self) -> Pull:
        """What to pull."""

    def refresh(self, rows: tf.Tensor) -> None:
        """Takes what was pulled."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    pull: Pull
    placeholder: tf.Tensor


class StepTraffic:
    """Collects pulls and pushes of the step that is being traced.

    Args:
        home: Where the rows live.
        spans: Times pulls and pushes where that is asked for.
    """

    def __init__(self, home: Home, spans: Spans | None = None):
        self._home = home
        self._spans = spans or Spans()
        self._spans.pulls_meet = home.name == "peers"
        self._graph: tf.Graph | None = None
        self._waiting: list[_Waiting] = []
        self._pushes: list[Push] = []
        self._expected = 0
        self._last_push: tuple[tf.Graph, tf.Operation] | None = None
        self._pulled: list[tuple[tf.Graph, tf.Tensor]] = []

    @contextlib.contextmanager
    def step(
        self,
        variables: Sequence[ServerVariable] = (),
        trains: bool = True,
        inputs: Sequence = (),
    ) -> Iterator[None]:
        """Within the block, what the step wants is collected.

        Args:
            variables: What to read from servers before anything else.
            trains: Whether the step pushes anything.
            inputs: The step's data.
        """
        if trains and self._home.is_synchronous:
            self._spans.agree()
        with self._spans.step(inputs) if trains else contextlib.nullcontext():
            if trains:
                self._begin()
            if variables:
                rows = self._pull([variable.request() for variable in variables])
                for variable, row in zip(variables, rows, strict=True):
                    variable.refresh(row)
            with self._collecting():
                yield
            if trains:
                self._home.end_step(self._earlier())

    def _begin(self) -> None:
        # Where nothing holds a step back, there is nothing to time.
        begun = self._spans.timed(HOLD, [], self._home.begin_step)
        if begun is not None and not tf.executing_eagerly():
            self._last_push = (_graph(), begun)

    @contextlib.contextmanager
    def _collecting(self) -> Iterator[None]:
        if tf.executing_eagerly() or not self._home.sends_messages:
            yield
            return
        before = self._graph, self._waiting, self._pushes, self._expected
        self._graph, self._waiting, self._pushes = _graph(), [], []
        self._expected = 0
        try:
            yield
            self.send_pulls()
            self._send_pushes()
        finally:
            self._graph, self._waiting, self._pushes, self._expected = before

    def pull(self, request: Pull) -> tf.Tensor:
        """Rows of a table, `(n, *row_shape)`; perhaps they come later."""
        if not self._collects():
            return self._pull([request])[0]
        spec = request.storage.spec
        nothing = tf.zeros((tf.size(request.ids), *spec.row_shape), spec.dtype)
        placeholder = tf.identity(nothing, name="rows_to_come")
        self._waiting.append(_Waiting(request, placeholder))
        return placeholder

    def send_pulls(self) -> None:
        """Pulls all that has been asked for."""
        if not self._collects():
            return
        while self._waiting:
            ready = _independent(self._waiting)
            self._waiting = [w for w in self._waiting if w not in ready]
            answers = self._pull([w.pull for w in ready])
            for waiting, rows in zip(ready, answers, strict=True):
                waiting.placeholder.op._update_input(0, rows)

    def expect(self, updates: int) -> None:
        """Announces how many updates with sparse gradients are about to come."""
        self._expected = updates if self._collects() else 0

    def passed(self) -> None:
        """One of the expected updates was none of a table."""
        self._expected -= 1
        if self._expected <= 0:
            self._send_pushes()

    def push(self, contribution: Push) -> None:
        """Updates a table; perhaps together with others that follow."""
        if not self._collects():
            self._push([contribution])
            return
        self._pushes.append(contribution)
        self.passed()

    def _send_pushes(self) -> None:
        if self._pushes:
            self.send_pulls()
            pushes, self._pushes = self._pushes, []
            self._push(pushes)

    def _pull(self, requests: list[Pull]) -> list[tf.Tensor]:
        with tf.control_dependencies(self._earlier()):
            rows = self._spans.timed(
                PULL,
                [request.ids for request in requests],
                lambda: self._home.pull(requests),
            )
        if not tf.executing_eagerly():
            self._pulled = [(_graph(), found) for found in rows] + [
                (graph, found) for graph, found in self._pulled if graph is _graph()
            ]
        return rows

    def _push(self, contributions: list[Push]) -> None:
        # A gradient need not depend on the rows. The push has to come after them all
        # the same: once it is seen, another worker's update may follow.
        pulled = [found for graph, found in self._pulled if graph is _graph()]
        eager = tf.executing_eagerly()
        with tf.control_dependencies([] if eager else [*self._earlier(), *pulled]):
            contributions = [
                dataclasses.replace(push, gradients=tf.identity(push.gradients))
                for push in contributions
            ]
            operation = self._spans.timed(
                PUSH,
                [part for push in contributions for part in (push.ids, push.gradients)],
                lambda: self._home.push(contributions),
            )
        if self._spans.is_timing:
            self._count_load(contributions)
        if not eager:
            self._last_push = (_graph(), operation)

    def _count_load(self, contributions: list[Push]) -> None:
        for push in contributions:
            spec = push.storage.spec
            servers = [
                self._home.server_of(partition, spec)
                for partition in range(spec.num_partitions)
            ]
            self._spans.load.count(
                spec.path or spec.name, push.ids, spec.num_rows, servers
            )

    def _earlier(self) -> list[tf.Operation]:
        """What pulls in this graph come after: the last push, or what let it begin."""
        if self._last_push is None or tf.executing_eagerly():
            return []
        graph, operation = self._last_push
        return [operation] if graph is _graph() else []

    def _collects(self) -> bool:
        # A lookup inside a loop or a branch belongs to a graph of its own.
        return (
            self._graph is not None
            and not tf.executing_eagerly()
            and _graph() is self._graph
        )


def _graph() -> tf.Graph:
    return tf.compat.v1.get_default_graph()


def _independent(waiting: list[_Waiting]) -> list[_Waiting]:
    """Those whose ids do not come out of rows that are still to come."""
    to_come = {w.placeholder.op for w in waiting}
    known: set[tf.Operation] = set()
    return [w for w in waiting if not _comes_out_of(w.pull.ids.op, to_come, known)]


def _comes_out_of(
    operation: tf.Operation, sources: set[tf.Operation], known: set[tf.Operation]
) -> bool:
    """Whether `operation` needs one of `sources`; `known` collects those before it."""
    found = set()
    stack = [operation]
    while stack:
        current = stack.pop()
        if current in sources:
            return True
        if current in known or current in found:
            continue
        found.add(current)
        stack += [tensor.op for tensor in current.inputs]
        stack += current.control_inputs
    known |= found
    return False
