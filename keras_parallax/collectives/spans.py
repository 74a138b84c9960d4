"""How long a step pulls, pushes and reduces, measured in the graph.

A span begins when all that it needs is there and ends when all that it gives is
there: two timestamps, held in their places by control dependencies. What a step has
measured is added to one small variable, so that reading it costs one copy and
disturbs no step. Nothing of this is in a graph that was traced before spans were
switched on.

How long a worker waits for slower ones cannot be seen by itself: its all-reduce
just takes longer. But all workers leave an all-reduce together, so whoever spends
least in it came last, and what another spends beyond that it has waited. For that
each worker sends, along with its gradients, how long its last step's spans were.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.cluster.job import Job
from keras_parallax.collectives.load import Load
from keras_parallax.collectives.operations import in_no_order

PULL, PUSH, ALLREDUCE, HOLD = "pull", "push", "allreduce", "hold"

# What a worker tells the others of its last step, before how long each of its
# all-reduces took.
_TOLD = (PULL, PUSH, "examples", "tokens")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Reading:
    """Sums over the training steps since spans were switched on.

    Attributes:
        steps: Steps.
        step_seconds: From the moment that a step's data is there until its
            variables are updated.
        pull_seconds: Rows being pulled.
        push_seconds: Gradients of rows being pushed, until the rows are updated.
        allreduce_seconds: Dense gradients being all-reduced.
        hold_seconds: Held back by `max_staleness`, before the first pull.
        travel_seconds: At least one of these four. They overlap, so this is less
            than their sum.
        wait_seconds: Of these, the time in which the last worker had not come yet.
        examples: Examples of this worker.
        tokens: Elements of its integer sequences; 0 where inputs are none.
        all_examples: Examples of all workers, as far as they are told of; those of
            the last step are not yet.
        all_tokens: The same of tokens.
        told_steps: Steps in which the workers told each other.
    """

    steps: float = 0
    step_seconds: float = 0
    pull_seconds: float = 0
    push_seconds: float = 0
    allreduce_seconds: float = 0
    hold_seconds: float = 0
    travel_seconds: float = 0
    wait_seconds: float = 0
    examples: float = 0
    tokens: float = 0
    all_examples: float = 0
    all_tokens: float = 0
    told_steps: float = 0

    def __sub__(self, earlier: Reading) -> Reading:
        pairs = zip(
            dataclasses.astuple(self), dataclasses.astuple(earlier), strict=True
        )
        return Reading(*(now - then for now, then in pairs))


@dataclasses.dataclass
class _Step:
    """The spans of the step that is being traced."""

    graph: Any
    begin: tf.Tensor
    first_operation: int
    spans: list[tuple[str, tf.Tensor, tf.Tensor]]
    examples: tf.Tensor
    tokens: tf.Tensor
    heard: tf.Tensor | None = None
    reductions: int = 1


class Spans:
    """Times the phases of this worker's training steps, once it is switched on.

    Args:
        job: This worker's place in the job; None for a worker by itself.
        device: Device of this worker.

    Attributes:
        load: Counts where pushed rows fall, in the steps that are timed.
        pulls_meet: Whether a pull waits for every worker's, as among peers.
    """

    def __init__(self, job: Job | None = None, device: str = ""):
        spec = tf.DeviceSpec.from_string(device)
        self._device = spec.replace(device_type="CPU", device_index=0).to_string()
        self.load = Load(self._device)
        self.pulls_meet = False
        self._job = job
        self._rank = 0 if job is None else job.rank
        self._size = 1 if job is None else job.size
        self._totals: tf.Variable | None = None
        self._last: tf.Variable | None = None
        self._step: _Step | None = None
        self._agreed: bool | None = None

    @property
    def is_on(self) -> bool:
        """Whether steps that are traced from now on are timed."""
        return self._totals is not None

    def switch_on(self) -> bool:
        """Times steps that are traced from now on, on every worker.

        Returns:
            Whether it was off: what was traced before is then to be traced anew.
        """
        if self.is_on:
            return False
        with tf.init_scope(), tf.device(self._device):
            count = len(dataclasses.fields(Reading))
            self._totals = tf.Variable(np.zeros(count), trainable=False)
            # How many all-reduces a step has is not known before it is traced.
            self._last = tf.Variable(
                np.zeros(len(_TOLD) + 1, np.float32), trainable=False, shape=(None,)
            )
        return True

    def read(self) -> Reading:
        """Sums since it was switched on; zeros when it is off."""
        if self._totals is None:
            return Reading()
        return Reading(*self._totals.numpy().tolist())

    def agree(self) -> None:
        """Sees to it, once, that all workers are timed or none is.

        Raises:
            ConfigError: Spans are on at some workers and off at others, whose
                all-reduces do not fit together.
        """
        if self._job is None or self._agreed == self.is_on:
            return
        with tf.init_scope():
            states = self._job.gather(self.is_on)
        if len(set(states)) > 1:
            on = [rank for rank, state in enumerate(states) if state]
            off = [rank for rank, state in enumerate(states) if not state]
            raise errors.ConfigError(
                "The steps of some workers are timed and those of others are not: "
                f"worker(s) {_listed(on)} use ParallaxTensorBoard or FitSummary (or "
                f"`strategy.spans.switch_on()`), worker(s) {_listed(off)} do not. "
                "Give `fit` the same callbacks on every worker; they know by "
                "themselves which of them prints."
            )
        self._agreed = self.is_on

    @property
    def is_timing(self) -> bool:
        """Whether what is traced now belongs to a step that is timed."""
        return self._step is not None and self._step.graph is _graph()

    @contextlib.contextmanager
    def step(self, inputs: Sequence) -> Iterator[None]:
        """Within the block, a training step is traced.

        Args:
            inputs: The step's data; it begins when all of that is there.
        """
        if not self.is_on or self._step is not None:
            yield
            return
        leaves = [x for x in tf.nest.flatten(inputs) if isinstance(x, tf.Tensor)]
        with tf.name_scope("parallax/step/"), tf.device(self._device):
            self._step = _Step(
                graph=_graph(),
                begin=_moment(leaves),
                first_operation=_operations(),
                spans=[],
                **_sizes(inputs),
            )
        try:
            yield
            with tf.name_scope("parallax/step/"), tf.device(self._device):
                self._add_up(self._step)
        finally:
            self._step = None

    def timed(self, phase: str, inputs: Sequence, work: Callable[[], T]) -> T:
        """What `work` returns, timed as a part of `phase`.

        Args:
            phase: Names the operations, too: `parallax/<phase>/…` in a profile.
            inputs: Tensors that the work needs.
            work: Makes operations and returns tensors or an operation.
        """
        with tf.name_scope(f"parallax/{phase}/"):
            if self._step is None or not self.is_timing:
                return work()
            with tf.device(self._device):
                # Nothing else makes the step's own beginning come first.
                begin = _moment([*inputs, self._step.begin])
            with _after([begin]):
                result = work()
            if result is None:
                return result
            with tf.device(self._device):
                end = _moment(tf.nest.flatten(result))
        self._step.spans.append((phase, begin, end))
        return result

    def note(self, reductions: int = 1) -> tf.Tensor | None:
        """What to sum over all workers, along with the gradients; None for nothing.

        Args:
            reductions: In how many all-reduces the gradients go.
        """
        if not self.is_timing or self._step is None or self._last is None:
            return None
        if self._step.heard is not None:
            return None
        self._step.reductions = reductions
        length = len(_TOLD) + reductions
        # The step before may have been another function's, with fewer or more.
        last = tf.pad(self._last.read_value(), [[0, length]])[:length]
        mine = tf.one_hot(self._rank, self._size)[:, None]
        return mine * tf.ensure_shape(last, (length,))[None]

    def hear(self, notes: tf.Tensor) -> None:
        """Takes the sum of all workers' notes."""
        if self._step is not None:
            self._step.heard = notes

    def _add_up(self, step: _Step) -> None:
        # `_totals` and `_last` are there: the step was begun with spans on.
        if self._totals is None or self._last is None:
            return
        ends = [end for _, _, end in step.spans]
        end = _moment([step.begin, *ends, *_written(step)])
        spent = {
            name: _union([(begin, end) for n, begin, end in step.spans if n == name])
            for name in (PULL, PUSH, ALLREDUCE, HOLD)
        }
        wait = tf.constant(0.0, tf.float64)
        everyone = [step.examples, step.tokens]
        told = tf.constant(1.0 if self._size == 1 else 0.0, tf.float64)
        if step.heard is not None:
            notes = tf.cast(step.heard, tf.float64)
            wait, told = self._waited(notes), tf.constant(1.0, tf.float64)
            everyone = tf.unstack(tf.reduce_sum(notes[:, 2 : len(_TOLD)], 0))
        elif self._size > 1:
            everyone = [tf.zeros((), tf.float64)] * 2
        self._totals.assign_add(
            tf.stack(
                [
                    tf.constant(1.0, tf.float64),
                    end - step.begin,
                    *spent.values(),
                    _union([(begin, end) for _, begin, end in step.spans]),
                    wait,
                    step.examples,
                    step.tokens,
                    *everyone,
                    told,
                ]
            )
        )
        mine = [spent[PULL], spent[PUSH], step.examples, step.tokens]
        mine += _apart(step)
        self._last.assign(tf.cast(tf.stack(mine), tf.float32))

    def _waited(self, notes: tf.Tensor) -> tf.Tensor:
        """Seconds that this worker waited in the step before this one."""
        longer = notes[self._rank] - tf.reduce_min(notes, 0)
        pull, push, allreduce = longer[0], longer[1], longer[len(_TOLD) :]
        # Who comes late to one all-reduce comes late to the others and to the push
        # beside them, too; the longest of the waits is the time lost.
        wait = tf.maximum(push, tf.reduce_max(allreduce))
        return wait + pull if self.pulls_meet else wait


def _graph() -> Any:
    return tf.compat.v1.get_default_graph()


def _operations() -> int:
    return 0 if tf.executing_eagerly() else len(_graph().get_operations())


def _after(inputs: Sequence) -> contextlib.AbstractContextManager:
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.control_dependencies(list(inputs))


def _moment(inputs: Sequence) -> tf.Tensor:
    """Seconds on the clock when all of `inputs` are there."""
    with in_no_order(), _after(inputs):
        return tf.timestamp()


def _written(step: _Step) -> list[tf.Operation]:
    """The step's writes to variables of this process."""
    if tf.executing_eagerly():
        return []
    writes = ("AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp")
    here = tf.DeviceSpec.from_string
    return [
        op
        for op in step.graph.get_operations()[step.first_operation :]
        if op.type in writes and here(op.device).job == here(step.begin.device).job
    ]


def _sizes(inputs: Sequence) -> dict[str, tf.Tensor]:
    """Examples and tokens of a step's data, float64."""
    data = inputs[0] if len(inputs) == 1 else inputs
    features = data[0] if isinstance(data, tuple | list) and data else data
    leaves = [x for x in tf.nest.flatten(features) if isinstance(x, tf.Tensor)]
    ranked = [x for x in leaves if x.shape.rank]
    sequences = [x for x in ranked if x.dtype.is_integer and x.shape.rank == 2]
    examples = tf.shape(ranked[0])[0] if ranked else tf.constant(0)
    tokens = [tf.size(x) for x in sequences] or [tf.constant(0)]
    return {
        "examples": tf.cast(examples, tf.float64),
        "tokens": tf.cast(tf.reduce_max(tf.stack(tokens)), tf.float64),
    }


def _total(seconds: list[tf.Tensor]) -> tf.Tensor:
    return tf.add_n(seconds) if seconds else tf.constant(0.0, tf.float64)


def _apart(step: _Step) -> list[tf.Tensor]:
    """Seconds of each of a step's all-reduces: another worker may have been the last
    to come to each. What more there are than was announced count with the last."""
    seconds = [end - begin for name, begin, end in step.spans if name == ALLREDUCE]
    last = step.reductions - 1
    seconds += [tf.constant(0.0, tf.float64)] * (last - len(seconds))
    return [*seconds[:last], _total(seconds[last:])]


def _union(spans: list[tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
    """Seconds covered by at least one of the spans."""
    if len(spans) < 3:
        total = _total([end - begin for begin, end in spans])
        if len(spans) < 2:
            return total
        (first, first_end), (second, second_end) = spans
        both = tf.minimum(first_end, second_end) - tf.maximum(first, second)
        return total - tf.maximum(both, 0.0)
    begins, ends = (tf.stack(side) for side in zip(*spans, strict=True))
    points = tf.sort(tf.concat([begins, ends], 0))
    middles = (points[1:] + points[:-1]) / 2
    inside = (begins <= middles[:, None]) & (middles[:, None] < ends)
    lengths = points[1:] - points[:-1]
    return tf.reduce_sum(tf.where(tf.reduce_any(inside, 1), lengths, 0.0))


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
