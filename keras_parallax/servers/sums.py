"""A push in two halves: gradients summed where the rows live, then the update.

Between the two stands what needs to know the sums of all tables before any row is
changed, such as a bound on the gradient's norm: the sums are multiplied by factors.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_parallax.servers.requests import Push


class Sums(abc.ABC):
    """What the workers' contributions to tables have summed up to."""

    @abc.abstractmethod
    def squares(self) -> tf.Tensor:
        """Sum of the squares of each table's summed gradient, in the graph.

        All workers ask for it, or none.

        Returns:
            In the order of the contributions, `(n,)`, float64; all workers get the
            same.
        """

    @abc.abstractmethod
    def update(self, factors: tf.Tensor | None = None) -> tf.Operation:
        """Updates each row once; called once.

        Args:
            factors: What to multiply each table's sums by, `(n,)`; None for 1.

        Returns:
            An operation that ends when the rows are updated: a pull after it, by
            any worker, gets the new ones.
        """


class SumsHere(Sums):
    """Sums that this worker has, of the rows that it answers for.

    Args:
        pushes: The sums, an entry for each table.
        update: Updates rows with them.
        add: Adds up what the workers have; nothing to do where each has all rows.
    """

    def __init__(
        self,
        pushes: Sequence[Push],
        update: Callable[[Sequence[Push]], tf.Operation],
        add: Callable[[tf.Tensor], tf.Tensor] = lambda squares: squares,
    ):
        self._pushes = list(pushes)
        self._update = update
        self._add = add

    def squares(self) -> tf.Tensor:
        """See `Sums.squares`."""
        return self._add(
            tf.stack([sum_of_squares(push.gradients) for push in self._pushes])
        )

    def update(self, factors: tf.Tensor | None = None) -> tf.Operation:
        """See `Sums.update`."""
        if factors is None:
            return self._update(self._pushes)
        return self._update(
            [
                dataclasses.replace(push, gradients=times(push.gradients, factor))
                for push, factor in zip(
                    self._pushes, tf.unstack(factors, len(self._pushes)), strict=True
                )
            ]
        )


class JoinedSums(Sums):
    """Sums of several homes, or of several servers of one.

    Args:
        parts: Sums, and of each to which contributions its entries belong. Where
            several have entries of one contribution, each has some of its rows.
        count: Number of contributions.
    """

    def __init__(self, parts: Sequence[tuple[Sums, Sequence[int]]], count: int):
        self._parts = list(parts)
        self._count = count

    def squares(self) -> tf.Tensor:
        """See `Sums.squares`."""
        indices = [index for _, mine in self._parts for index in mine]
        squares = tf.concat([sums.squares() for sums, _ in self._parts], 0)
        return tf.math.unsorted_segment_sum(squares, indices, self._count)

    def update(self, factors: tf.Tensor | None = None) -> tf.Operation:
        """See `Sums.update`."""
        return tf.group(
            *(
                sums.update(None if factors is None else tf.gather(factors, mine))
                for sums, mine in self._parts
            )
        )


def sum_of_squares(gradients: tf.Tensor) -> tf.Tensor:
    """The square of the gradients' L2 norm, float64."""
    if gradients.dtype.size < 4:
        gradients = tf.cast(gradients, tf.float32)
    return tf.cast(tf.reduce_sum(tf.square(gradients)), tf.float64)


def times(gradients: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """The gradients times a number of another type."""
    return gradients * tf.cast(factor, gradients.dtype)
