"""Buckets: the last gradients first, and no bucket is small but the last."""

import tensorflow as tf

from keras_parallax.collectives.buckets import in_buckets


def tensors(*lengths, dtype=tf.float32):
    return [tf.zeros((length,), dtype) for length in lengths]


def test_the_last_gradients_go_first():
    assert in_buckets(tensors(1, 10, 10, 1, 10), 40) == [[4], [3, 2], [1], [0]]


def test_what_is_left_goes_last_and_by_itself():
    assert in_buckets(tensors(1, 1, 10), 40) == [[2], [1, 0]]


def test_small_models_are_one_bucket():
    assert in_buckets(tensors(3, 100, 7)) == [[2, 1, 0]]
    assert in_buckets([]) == []


def test_large_models_have_few_buckets():
    assert len(in_buckets(tensors(*[1 << 18] * 80))) == 8


def test_a_bucket_is_of_one_type():
    mixed = [*tensors(10, 1), *tensors(10, dtype=tf.float16), *tensors(10)]
    assert in_buckets(mixed, 40) == [[3], [1, 0], [2]]


def test_what_has_no_known_length_counts_for_nothing():
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None,))])
    def step(x):
        found.append(in_buckets([x, *tensors(10), x], 40))

    step.get_concrete_function()
    assert found == [[[2, 1], [0]]]
