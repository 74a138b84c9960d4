"""Buckets: the last gradients first, and no bucket is small but the last."""

import tensorflow as tf

from keras_parallax.collectives.buckets import in_buckets


def tensors(*lengths, dtype=tf.float32):
    return [tf.zeros((length,), dtype) for length in lengths]


def test_the_last_gradients_go_first():
    assert in_buckets(tensors(1, 10, 10, 1, 10), 2, 20) == [[4], [3, 2], [1], [0]]


def test_what_is_left_goes_last_and_by_itself():
    assert in_buckets(tensors(1, 1, 10), 4, 10) == [[2], [1, 0]]


def test_small_models_are_one_bucket():
    assert in_buckets(tensors(3, 100, 7), 2) == [[2, 1, 0]]
    assert in_buckets([], 2) == []


def test_more_workers_have_fewer_buckets():
    # Half a MiB each: a piece of 256 KiB for each of two workers.
    model = tensors(*[1 << 17] * 3)
    assert in_buckets(model, 2) == [[2], [1], [0]]
    assert in_buckets(model, 4) == [[2, 1], [0]]
    assert in_buckets(model, 8) == [[2, 1, 0]]


def test_large_models_have_few_buckets():
    assert len(in_buckets(tensors(*[1 << 18] * 80), 2)) == 8


def test_a_bucket_is_of_one_type():
    mixed = [*tensors(10, 1), *tensors(10, dtype=tf.float16), *tensors(10)]
    assert in_buckets(mixed, 1, 40) == [[3], [1, 0], [2]]


def test_what_has_no_known_length_counts_for_nothing():
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None,))])
    def step(x):
        found.append(in_buckets([x, *tensors(10), x], 1, 40))

    step.get_concrete_function()
    assert found == [[[2, 1], [0]]]
