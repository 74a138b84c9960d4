"""Which rows a step needs first, told from its graph."""

import keras
import pytest
import tensorflow as tf

from keras_parallax.tables.stages import stages

WIDTH = 4


def _stages(make, count):
    """Stages of `count` lookups of 3 rows for each of 2 examples."""
    found = []

    @tf.function
    def step():
        rows = [tf.identity(tf.zeros((2, 3, WIDTH))) for _ in range(count)]
        made = make(*rows)
        found[:] = stages(rows)  # Keras traces twice, to make its variables.
        return made

    step.get_concrete_function()
    return found


def _mlp(layers):
    return keras.Sequential([keras.layers.Dense(WIDTH) for _ in range(layers)])


def test_what_the_softmax_looks_up_comes_after_the_layers_before_it():
    lstm = keras.layers.LSTM(WIDTH, return_sequences=True)

    def make(softmax, words):
        return tf.reduce_sum(lstm(words) * softmax)

    assert _stages(make, 2) == [[1], [0]]


def test_a_translator_has_three_stages():
    encoder = keras.layers.LSTM(WIDTH, return_state=True)
    decoder = keras.layers.LSTM(WIDTH, return_sequences=True)

    def make(source, target, softmax):
        _, *state = encoder(source)
        decoded = decoder(tf.tanh(target), initial_state=state)
        return tf.matmul(decoded, softmax, transpose_b=True)

    assert _stages(make, 3) == [[0], [1], [2]]


def test_tables_that_meet_at_once_travel_together():
    mlp = _mlp(8)

    def make(*tables):
        return mlp(tf.concat([tf.reduce_sum(rows, 1) for rows in tables], 1))

    assert _stages(make, 5) == [[0, 1, 2, 3, 4]]


def test_towers_side_by_side_need_their_rows_together():
    users, items = _mlp(8), _mlp(8)

    def make(user, item):
        return tf.reduce_sum(users(user) * items(item))

    assert _stages(make, 2) == [[0, 1]]


@pytest.mark.parametrize(("layers", "expected"), [(2, [[0, 1]]), (8, [[0], [1]])])
def test_a_little_computing_is_not_worth_a_message(layers, expected):
    mlp = _mlp(layers)

    def make(deep, wide):
        return mlp(deep) + wide

    assert _stages(make, 2) == expected


def test_rows_that_nothing_is_computed_with_are_needed_at_once():
    assert _stages(lambda user, item: tf.reduce_sum(user * item), 2) == [[0, 1]]
