"""Bounds on gradients that an optimizer asks for, kept for the whole batch's.

Keras clips what one worker has, and of a table the gradient of each lookup, before
anything is summed: what comes out depends on the number of workers. Clipping by value
looks at one element at a time, so it can come after the sum, wherever that is made: the
optimizer's update, which gets the sum, clips it first. Clipping by norm looks at all of
a variable, or of all variables, parts of which are in many places. There, the updates
of a step are held until the last has come; rows are summed where they live, the squares
of the sums are added up, and what is updated then gets its gradient times a factor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from keras_parallax.errors import ConfigError
from keras_parallax.servers.sums import sum_of_squares, times
from keras_parallax.tables.traffic import StepTraffic

VALUE, NORM, GLOBAL_NORM = "clipvalue", "clipnorm", "global_clipnorm"


@dataclasses.dataclass(frozen=True)
class Bound:
    """What an optimizer bounds gradients by.

    Attributes:
        optimizer: The optimizer.
        name: Which argument of the optimizer's it is.
        limit: The argument's value.
    """

    optimizer: keras.optimizers.Optimizer
    name: str
    limit: float

    def factors(self, squares: tf.Tensor) -> tf.Tensor:
        """What to multiply gradients by whose L2 norms have these squares."""
        if self.name == NORM:
            return self.limit / tf.maximum(tf.sqrt(squares), self.limit)
        norm = tf.sqrt(tf.reduce_sum(squares))
        # As in Keras, NaN where the norm is no number.
        factor = self.limit / tf.maximum(norm, self.limit) + (norm - norm)
        return tf.fill(tf.shape(squares), factor)


class Held:
    """Updates of a step that wait until all of its gradients are known.

    Args:
        bound: What the gradients are bounded by.
        traffic: Sends what steps want of tables.
        last_squares: Notes the square of the norm of everything. Without a use of it
            TensorFlow would not add it up on a worker that updates nothing, and the
            others would wait.
    """

    def __init__(self, bound: Bound, traffic: StepTraffic, last_squares: tf.Variable):
        self._bound = bound
        self._traffic = traffic
        self._last_squares = last_squares
        self.expected = 0
        self._tables: list[Callable[[], None]] = []
        self._dense: list[tuple[tf.Tensor, Callable[[tf.Tensor], None]]] = []

    def add_table(self, update: Callable[[], None]) -> None:
        """Holds an update that pushes a table's gradient."""
        self._tables.append(update)
        self._go_on()

    def add(self, gradient: tf.Tensor, update: Callable[[tf.Tensor], None]) -> None:
        """Holds an update with a gradient that all workers have alike."""
        self._dense.append((gradient, update))
        self._go_on()

    def _go_on(self) -> None:
        """Makes the updates, if all have come."""
        if len(self._tables) + len(self._dense) < self.expected:
            return
        tables, self._tables = self._tables, []
        dense, self._dense = self._dense, []
        squares = [sum_of_squares(gradient) for gradient, _ in dense]
        found: list[tf.Tensor] = []

        def factors(squares_of_tables: tf.Tensor) -> tf.Tensor:
            everything = tf.concat([squares_of_tables, *(s[None] for s in squares)], 0)
            self._last_squares.assign(tf.reduce_sum(everything))
            of_all = self._bound.factors(everything)
            found.extend(tf.unstack(of_all[len(tables) :], len(dense)))
            return of_all[: len(tables)]

        if tables:
            with self._traffic.together(factors):
                for push in tables:
                    push()
        else:
            factors(tf.zeros([0], tf.float64))
        for (gradient, update), factor in zip(dense, found, strict=True):
            update(times(gradient, factor))

    def check_none_is_left(self) -> None:
        """Raises where fewer have come than were announced."""
        left = len(self._tables) + len(self._dense)
        if left:
            raise ConfigError(
                f"`{self._bound.name}` bounds the gradients of a step together, but "
                f"only {left} of the {self.expected} gradients that the workers have "
                "summed have come to be applied. Expected a step that applies all of "
                "them, once. Clip the gradients in the step yourself, and remove the "
                f"optimizer's `{self._bound.name}`."
            )


class Clipping:
    """Takes clipping over from a model's optimizer, while a step is traced or run.

    Args:
        traffic: Sends what steps want of tables.
    """

    def __init__(self, traffic: StepTraffic):
        self._traffic = traffic
        self._bound: Bound | None = None
        self._held: Held | None = None
        with tf.init_scope():
            self._last_squares = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    @contextlib.contextmanager
    def of_step(self, model: keras.Model | None) -> Iterator[None]:
        """Within the block, the model's optimizer does not clip by itself."""
        bound = _bound_of(model)
        if bound is None:
            yield
            return
        before = self._bound, self._held
        self._bound = bound
        self._held = Held(bound, self._traffic, self._last_squares)
        setattr(bound.optimizer, bound.name, None)
        try:
            yield
            self._held.check_none_is_left()
        finally:
            setattr(bound.optimizer, bound.name, bound.limit)
            self._bound, self._held = before

    def expect(self, updates: int) -> None:
        """Announces how many updates with gradients are about to come."""
        if self._held is not None:
            self._held.expected = updates

    def by_value(self, update: Callable, args: tuple) -> Callable:
        """The update, of a gradient clipped by value; else the same update.

        Args:
            update: Called as `update(variable, gradient, ...)`.
            args: Its arguments after the variable.
        """
        bound = self._bound_of_update(update, args)
        if bound is None or bound.name != VALUE:
            return update
        limit = bound.limit

        @functools.wraps(update)
        def clipped(variable, total, *others, **kwargs):
            total = tf.clip_by_value(total, -limit, limit)
            return update(variable, total, *others, **kwargs)

        return clipped

    def by_norm(self, update: Callable, args: tuple) -> Held | None:
        """Whom to give an update that has to wait for others; see `by_value`."""
        bound = self._bound_of_update(update, args)
        return None if bound is None or bound.name == VALUE else self._held

    def _bound_of_update(self, update: Callable, args: tuple) -> Bound | None:
        has_gradient = args and isinstance(args[0], tf.Tensor | tf.IndexedSlices)
        if self._bound is None or not has_gradient:
            return None
        maker = optimizer_of(update)
        # A model may have other optimizers, which clip for themselves.
        is_other = maker not in (None, self._bound.optimizer)
        return None if is_other else self._bound


def _bound_of(model: keras.Model | None) -> Bound | None:
    optimizer = getattr(model, "optimizer", None)
    # A wrapper, such as that which scales losses, leaves clipping to the other.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is None or optimizer.gradient_accumulation_steps:
        return None
    for name in (NORM, GLOBAL_NORM, VALUE):
        limit = getattr(optimizer, name, None)
        if limit and limit > 0:
            return Bound(optimizer, name, float(limit))
    return None


def optimizer_of(update: Callable) -> keras.optimizers.Optimizer | None:
    """The optimizer that made an update function; None if none can be seen."""
    function = inspect.unwrap(update)
    if not inspect.isfunction(function):
        return None
    maker = inspect.getclosurevars(function).nonlocals.get("self")
    return maker if isinstance(maker, keras.optimizers.Optimizer) else None
