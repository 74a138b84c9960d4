"""`clipvalue`, of the gradient of the whole batch.

Keras clips what one worker has, and of a table the gradient of each lookup, before
anything is summed. Clipping by value looks at one element at a time, so it can come
after the sum as well, wherever that is made: the optimizer's update, which gets the
sum, clips it first. (Clipping by norm needs the norm of what is in many places.)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf


class ValueClipping:
    """Takes `clipvalue` over from the optimizer, while a step is traced or run."""

    def __init__(self) -> None:
        self._limit: float | None = None

    @contextlib.contextmanager
    def of_step(self, model: keras.Model | None) -> Iterator[None]:
        """Within the block, the model's optimizer does not clip by value itself."""
        optimizer = getattr(model, "optimizer", None)
        # A wrapper, such as that which scales losses, leaves clipping to the other.
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        limit = getattr(optimizer, "clipvalue", None)
        if optimizer is None or not limit or optimizer.gradient_accumulation_steps:
            yield
            return
        before, self._limit = self._limit, float(limit)
        optimizer.clipvalue = None
        try:
            yield
        finally:
            optimizer.clipvalue = limit
            self._limit = before

    def first(self, update: Callable, args: tuple) -> Callable:
        """The update, of the clipped gradient; the same update where nothing clips.

        Args:
            update: Called as `update(variable, gradient, ...)`.
            args: Its arguments after the variable.
        """
        limit = self._limit
        gradient = args[0] if args else None
        if limit is None or not isinstance(gradient, tf.Tensor | tf.IndexedSlices):
            return update

        @functools.wraps(update)
        def clipped(variable, total, *others, **kwargs):
            total = tf.clip_by_value(total, -limit, limit)
            return update(variable, total, *others, **kwargs)

        return clipped
