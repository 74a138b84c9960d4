"""What is noted while a graph is traced."""

import tensorflow as tf

from keras_parallax.collectives.noted import Noted


def test_things_belong_to_the_graph_that_is_being_traced():
    noted, seen = Noted(), []

    @tf.function
    def inner():
        seen.append(("inner", noted.here()))
        noted.note("c")
        seen.append(("inner", noted.here()))

    @tf.function
    def outer():
        noted.note("a")
        noted.note("b")
        seen.append(("outer", noted.here()))
        inner()
        seen.append(("outer", noted.here()))

    outer()
    assert seen == [
        ("outer", ["a", "b"]),
        ("inner", []),
        ("inner", ["c"]),
        ("outer", []),
    ]


def test_outside_of_graphs_the_last_is_the_only_one():
    noted = Noted()
    assert noted.here() == []
    noted.note("a", "b")
    noted.note("c")
    assert noted.here() == ["c"]
    with tf.Graph().as_default():
        assert noted.here() == []
