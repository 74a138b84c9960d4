"""What one step wants of its tables, collected so that it can travel together.

Lookups are met one by one while a step is traced. Each gets a placeholder for its
rows at once; when the backward pass begins, or the step ends, all of them are pulled,
and the placeholders are fed from the answer. Together go those that are needed at the
same time (`stages.py`), and those that are not worth a message of their own. In the
same way the updates of the tables are pushed when the last of them has come, those
together whose rows came together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import tensorflow as tf

from keras_parallax.collectives.noted import Noted
from keras_parallax.collectives.operations import in_no_order
from keras_parallax.collectives.spans import HOLD, PULL, PUSH, Spans
from keras_parallax.servers.home import Home, Pull, Push
from keras_parallax.servers.storage import Storage
from keras_parallax.servers.sums import Sums
from keras_parallax.tables.stages import stages

T = TypeVar("T")


class ServerVariable(Protocol):
    """What is to be read from servers when a step begins."""

    def request(self) -> Pull:
        """What to pull."""

    def refresh(self, rows: tf.Tensor) -> None:
        """Takes what was pulled."""


# From the squares of tables' summed gradients to what to multiply the sums by; `(n,)`
# each, see `Sums`.
Factors = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    pull: Pull
    placeholder: tf.Tensor


@dataclasses.dataclass(eq=False)
class _Collection:
    """What has been asked for while a step is traced."""

    graph: tf.Graph
    waiting: list[_Waiting] = dataclasses.field(default_factory=list)
    # Pulls on their way, together with which others.
    stages: list[list[Pull]] = dataclasses.field(default_factory=list)
    pushes: list[Push] = dataclasses.field(default_factory=list)
    expected_pushes: int = 0

    def stage_of(self, push: Push) -> int:
        """In which stage the rows of a push came; 0 if in none as they are."""
        for index, pulls in enumerate(self.stages):
            if any(p.storage is push.storage and p.ids is push.ids for p in pulls):
                return index
        return 0


class StepTraffic:
    """Collects pulls and pushes of the step that is being traced.

    Args:
        home: Where the rows live.
        spans: Times pulls and pushes where that is asked for.

    Attributes:
        needed_later: Tables whose rows a step needs when it has computed for a while.
        travels_apart: Whether such tables are worth messages of their own. All workers
            have to say the same.
    """

    def __init__(self, home: Home, spans: Spans | None = None):
        self._home = home
        self._spans = spans or Spans()
        self._spans.pulls_meet = home.name == "peers"
        self.needed_later: weakref.WeakSet[Storage] = weakref.WeakSet()
        self.travels_apart: Callable[[Sequence[Storage]], bool] = lambda _: False
        self._collection: _Collection | None = None
        # Pushes that are to be made together.
        self._held: list[Push] | None = None
        self._pulled: Noted[tf.Tensor] = Noted()
        # The last of them is what the next pull comes after.
        self._pushes: Noted[tf.Operation] = Noted()

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
            self._pushes.note(begun)

    @contextlib.contextmanager
    def _collecting(self) -> Iterator[None]:
        if tf.executing_eagerly() or not self._home.sends_messages:
            yield
            return
        before, self._collection = self._collection, _Collection(_graph())
        try:
            yield
            self.send_pulls()
            self._send_pushes()
        finally:
            self._collection = before

    def pull(self, request: Pull) -> tf.Tensor:
        """Rows of a table, `(n, *row_shape)`; perhaps they come later."""
        collected = self._collected()
        if collected is None:
            return self._pull([request])[0]
        spec = request.storage.spec
        nothing = tf.zeros((tf.size(request.ids), *spec.row_shape), spec.dtype)
        placeholder = tf.identity(nothing, name="rows_to_come")
        collected.waiting.append(_Waiting(request, placeholder))
        return placeholder

    def send_pulls(self) -> None:
        """Pulls all that has been asked for."""
        collected = self._collected()
        while collected is not None and collected.waiting:
            ready = _independent(collected.waiting)
            collected.waiting = [w for w in collected.waiting if w not in ready]
            # What is needed sooner has the network to itself.
            arrived: list[tf.Tensor] = []
            for stage in self._messages(ready):
                pulls = [waiting.pull for waiting in stage]
                # It is made after what needs it.
                with in_no_order(), tf.control_dependencies(arrived):
                    arrived = self._pull(pulls)
                for waiting, rows in zip(stage, arrived, strict=True):
                    waiting.placeholder.op._update_input(0, rows)
                collected.stages.append(pulls)

    def _messages(self, ready: list[_Waiting]) -> list[list[_Waiting]]:
        """What travels together of what is asked for, in the order of being needed."""
        messages: list[list[_Waiting]] = []
        for positions in stages([waiting.placeholder for waiting in ready]):
            stage = [ready[position] for position in positions]
            if not messages:
                messages.append(stage)
                continue
            storages = [waiting.pull.storage for waiting in stage]
            self.needed_later.update(storages)
            if self.travels_apart(storages):
                messages.append(stage)
            else:
                messages[-1] += stage
        return messages

    def expect(self, updates: int) -> None:
        """Announces how many updates with sparse gradients are about to come."""
        collected = self._collected()
        if collected is not None:
            collected.expected_pushes = updates

    def passed(self) -> None:
        """One of the expected updates was none of a table."""
        collected = self._collected()
        if collected is None:
            return
        collected.expected_pushes -= 1
        if collected.expected_pushes <= 0:
            self._send_pushes()

    def push(self, contribution: Push) -> None:
        """Updates a table; perhaps together with others that follow."""
        if self._held is not None:
            self._held.append(contribution)
            return
        collected = self._collected()
        if collected is None:
            self._push([[contribution]])
            return
        collected.pushes.append(contribution)
        self.passed()

    @contextlib.contextmanager
    def together(self, factors: Factors) -> Iterator[None]:
        """What is pushed within the block is summed first; then the sums are multiplied
        by factors, which may follow from all of them, and the rows are updated."""
        before, self._held = self._held, []
        try:
            yield
            pushes = self._held
        finally:
            self._held = before
        if pushes:
            self.send_pulls()
            self._push(self._by_stage(pushes), factors)

    def _send_pushes(self) -> None:
        collected = self._collected()
        if collected is None or not collected.pushes:
            return
        self.send_pulls()
        pushes, collected.pushes = collected.pushes, []
        self._push(self._by_stage(pushes))

    def _by_stage(self, pushes: list[Push]) -> list[list[Push]]:
        """Those together whose rows came together, the last of them first."""
        collected = self._collected()
        if collected is None:
            return [pushes]
        stages: dict[int, list[Push]] = {}
        for push in pushes:
            stages.setdefault(collected.stage_of(push), []).append(push)
        return [stages[stage] for stage in sorted(stages, reverse=True)]

    def _pull(self, requests: list[Pull]) -> list[tf.Tensor]:
        with tf.control_dependencies(self._earlier()):
            rows = self._spans.timed(
                PULL,
                [request.ids for request in requests],
                lambda: self._home.pull(requests),
            )
        if not tf.executing_eagerly():
            self._pulled.note(*rows)
        return rows

    def _push(self, groups: list[list[Push]], factors: Factors | None = None) -> None:
        """Pushes what travels together, group by group; no group waits for others."""
        # A gradient need not depend on the rows. The push has to come after them all
        # the same: once it is seen, another worker's update may follow.
        eager = tf.executing_eagerly()
        before = [] if eager else [*self._earlier(), *self._pulled.here()]
        with tf.control_dependencies(before):
            groups = [self._counted(group) for group in groups]
            if factors is None:
                done = [self._timed(group, self._home.push) for group in groups]
            else:
                done = self._push_multiplied(groups, factors)
        if not eager:
            self._pushes.note(tf.group(*done))

    def _counted(self, contributions: list[Push]) -> list[Push]:
        contributions = [
            dataclasses.replace(push, gradients=tf.identity(push.gradients))
            for push in contributions
        ]
        if self._spans.is_timing:
            self._count_load(contributions)
        return contributions

    def _timed(self, group: list[Push], work: Callable[[list[Push]], T]) -> T:
        inputs = [part for push in group for part in (push.ids, push.gradients)]
        return self._spans.timed(PUSH, inputs, lambda: work(group))

    def _push_multiplied(
        self, groups: list[list[Push]], factors: Factors
    ) -> list[tf.Operation]:
        sums: list[Sums] = []

        def squares_of(group: list[Push]) -> tf.Tensor:
            sums.append(self._home.sum(group))
            return sums[-1].squares()

        squares = [self._timed(group, squares_of) for group in groups]
        found = tf.split(factors(tf.concat(squares, 0)), [len(g) for g in groups])
        return [
            self._spans.timed(PUSH, [mine], functools.partial(total.update, mine))
            for total, mine in zip(sums, found, strict=True)
        ]

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
        return self._pushes.here()[-1:]

    def _collected(self) -> _Collection | None:
        """What is collected here; None where nothing is."""
        # A lookup inside a loop or a branch belongs to a graph of its own.
        if self._collection is None or tf.executing_eagerly():
            return None
        return self._collection if _graph() is self._collection.graph else None


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
