"""Tensors that keep their size from step to step."""

import pytest
import tensorflow as tf

from keras_parallax.collectives.steady import padded, rounded_up


@pytest.mark.parametrize(
    ("rows", "size"),
    [(0, 4), (1, 4), (4, 4), (5, 5), (8, 8), (9, 10), (1000, 1024), (1025, 1280)],
)
def test_sizes_are_few(rows, size):
    assert int(rounded_up(tf.constant(rows))) == size


def test_the_size_is_the_largest_yet():
    @tf.function(input_signature=[tf.TensorSpec((None, 2))])
    def step(values):
        return padded(values)

    def size_of(rows):
        values = tf.random.uniform((rows, 2))
        found = step(values)
        tf.debugging.assert_equal(found[:rows], values)
        tf.debugging.assert_equal(found[rows:], tf.zeros_like(found[rows:]))
        return found.shape[0]

    sizes = [size_of(rows) for rows in (17, 19, 0, 40, 39, 20)]
    assert sizes == [20, 20, 20, 40, 40, 40]


def test_each_place_in_a_step_has_its_own_size():
    @tf.function
    def step(few, many):
        return padded(few), padded(many), padded(few)

    few, many, again = step(tf.zeros([3]), tf.zeros([100]))
    assert [x.shape[0] for x in (few, many, again)] == [4, 112, 4]


def test_types_and_outer_shapes_stay():
    @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.uint16)])
    def step(values):
        found = padded(values)
        assert found.shape.as_list() == [None, 3]
        return found

    assert step(tf.ones((2, 3), tf.uint16)).dtype == tf.uint16


def test_outside_of_a_graph_nothing_is_padded():
    assert padded(tf.zeros([3])).shape == (3,)
