"""Sums that come later: made together, and never too late."""

import numpy as np
import pytest
import tensorflow as tf

from keras_parallax.collectives.later import LaterSums


class Doubling:
    """Stands in for the dense road: two workers that have the same."""

    def __init__(self):
        self.calls = []

    def __call__(self, tensors):
        self.calls.append(len(tensors))
        return [2 * tensor for tensor in tensors]


@pytest.fixture
def double():
    return Doubling()


@pytest.fixture
def later(double):
    return LaterSums(double)


def variables(*values, dtype=tf.float32):
    return [tf.Variable(value, dtype=dtype) for value in values]


def test_the_sums_of_a_step_are_made_together(later, double):
    a, b = variables(1.0, 2.0)

    @tf.function
    def step(x):
        with later.step():
            a.assign(later.add(x))
            b.assign(later.add(3 * x))

    step(tf.constant(5.0))
    assert double.calls == [2]
    assert (a.numpy(), b.numpy()) == (10, 30)


def test_along_with_others(later, double):
    (a,) = variables(1.0)

    @tf.function
    def step(x):
        with later.step():
            a.assign(later.add(x))
            along = later.take([x * x])
            along.feed([10 * tensor for tensor in along.tensors])

    step(tf.constant(5.0))
    assert not double.calls
    assert a.numpy() == 50


def test_others_that_follow_from_a_sum_do_not_wait_for_themselves(later, double):
    (a,) = variables(1.0)

    @tf.function
    def step(x):
        with later.step():
            a.assign(later.add(x))
            gradient = a.read_value() * x
            assert not later.take([gradient]).tensors
            return gradient

    assert step(tf.constant(5.0)).numpy() == 50
    assert double.calls == [1]


def test_a_variable_that_is_assigned_twice(later, double):
    (a,) = variables(1.0)

    @tf.function
    def step(x):
        with later.step():
            for _ in range(2):
                a.assign(later.add(a.read_value() + x))

    step(tf.constant(5.0))
    assert double.calls == [1, 1]
    assert a.numpy() == 2 * (2 * (1 + 5) + 5)


def test_what_is_read_goes_into_another_sum(later, double):
    a, b, c = variables(1.0, 1.0, 1.0)

    @tf.function
    def step(x):
        with later.step():
            a.assign(later.add(x))
            b.assign(later.add(a.read_value()))
            c.assign(later.add(x))

    step(tf.constant(5.0))
    assert double.calls == [2, 1]
    assert [v.numpy() for v in (a, b, c)] == [10, 20, 10]


def test_by_way_of_another_variable_and_of_a_branch(later, double):
    a, b, between = variables(1.0, 1.0, 1.0)

    @tf.function
    def step(x):
        with later.step():
            a.assign(later.add(x))
            tf.cond(x > 0, lambda: between.assign(a * 3.0), lambda: between.assign(x))
            b.assign(later.add(between.read_value()))

    step(tf.constant(5.0))
    assert double.calls == [1, 1]
    assert b.numpy() == 60


def test_by_way_of_an_effect_that_has_to_come_first(later, double):
    a, b = variables(1.0, 1.0)
    seen = []

    def look(x):
        seen.append(float(x))
        return x

    @tf.function
    def step(x):
        with later.step():
            a.assign(later.add(x))
            tf.py_function(look, [a.read_value()], tf.float32)
            b.assign(later.add(tf.py_function(look, [x], tf.float32)))

    step(tf.constant(5.0))
    assert seen == [10, 5]
    assert double.calls == [1, 1]
    assert b.numpy() == 10


def test_what_only_looks_like_it_does_not_break_a_sum_up(later, double):
    a, b, other = variables(1.0, 1.0, 7.0)

    @tf.function
    def step(x):
        with later.step():
            a.assign(later.add(other * x))
            b.assign(later.add(other * x))

    step(tf.constant(5.0))
    assert double.calls == [2]


def test_in_a_branch_it_is_made_at_once(later, double):
    (a,) = variables(1.0)

    @tf.function
    def step(x):
        with later.step():
            tf.cond(x > 0, lambda: a.assign(later.add(x)), lambda: a.assign(x))

    step(tf.constant(5.0))
    assert double.calls == [1]
    assert a.numpy() == 10


@pytest.mark.parametrize("graph", [False, True])
def test_out_of_a_step_and_eagerly_it_is_made_at_once(later, double, graph):
    def twice(x):
        return later.add(x) + 0

    function = tf.function(twice) if graph else twice
    assert function(tf.constant(5.0)).numpy() == 10
    with later.step():
        assert function(tf.constant(6.0)).numpy() == 12
    assert len(double.calls) == (1 if graph else 2)


def test_steps_that_follow_in_one_graph(later, double):
    (a,) = variables(1.0)

    @tf.function
    def steps(x):
        for _ in range(3):
            with later.step():
                a.assign(later.add(a.read_value() + x))

    steps(tf.constant(1.0))
    assert double.calls == [1, 1, 1]
    assert a.numpy() == 2 * (2 * (2 * (1 + 1) + 1) + 1)


def test_each_type_by_itself(later, double):
    (a,) = variables(1.0)
    (b,) = variables(1.0, dtype=tf.float64)

    @tf.function
    def step(x):
        with later.step():
            a.assign(later.add(x))
            b.assign(later.add(tf.cast(x, tf.float64)))

    step(tf.constant(5.0))
    assert double.calls == [1, 1]
    np.testing.assert_array_equal([a.numpy(), b.numpy()], [10, 10])


def test_nothing_is_left_of_a_step_that_failed(later, double):
    @tf.function
    def step(x):
        with later.step():
            later.add(x)
            raise RuntimeError("no step")

    with pytest.raises(RuntimeError, match="no step"):
        step(tf.constant(5.0))
    with later.step():
        pass
    assert not double.calls
