"""Shares of a global batch: together they are the batch, each example once."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_parallax.data import OFF, share_of

SIZES = [1, 2, 3, 5]
# Divides by all of them, by none of them, and fewer examples than workers.
BATCHES = [30, 7, 2]


def shares(dataset, size):
    """Per batch, what each of `size` workers gets."""
    return zip(*(share_of(dataset, rank, size) for rank in range(size)), strict=True)


def joined(parts):
    if isinstance(parts[0], tf.SparseTensor):
        parts = [tf.sparse.to_dense(part) for part in parts]
    return tf.concat(parts, 0)


def plain(value):
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy()


def examples(n=31):
    x = np.arange(n * 2).reshape(n, 2).astype("float32")
    return x, np.arange(n)


def structures():
    x, y = examples()
    ragged = tf.RaggedTensor.from_row_lengths(
        tf.range(sum(i % 4 for i in range(31))), [i % 4 for i in range(31)]
    )
    return {
        "tensor": x,
        "one-tuple": (x,),
        "pair": (x, y),
        "triple": (x, y, y.astype("float32")),
        "dict": {"a": x, "b": y},
        "nested": ({"a": x, "b": (y, x)}, y),
        "sparse": (tf.sparse.from_dense(x * (x % 3 == 0)), y),
        "ragged": (ragged, y),
        "ragged alone": ragged,
    }


@pytest.mark.parametrize(
    ("name", "size"),
    [
        (name, size)
        for name, size in itertools.product(structures(), SIZES)
        if size == 3 or name in ("pair", "sparse", "ragged")
    ],
)
@pytest.mark.parametrize("batch", BATCHES)
def test_shares_together_are_the_batch(name, batch, size):
    dataset = tf.data.Dataset.from_tensor_slices(structures()[name]).batch(batch)
    seen = 0
    for whole, parts in zip(dataset, shares(dataset, size), strict=True):
        seen += 1
        for part in parts:
            tf.nest.assert_same_structure(whole, part)
        flat = zip(*(tf.nest.flatten(part) for part in parts), strict=True)
        for expected, pieces in zip(tf.nest.flatten(whole), flat, strict=True):
            np.testing.assert_equal(plain(joined(pieces)), plain(expected))
    assert seen == -(-31 // batch)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("batch", [1, 2, 7, 30])
def test_shares_differ_by_one_example_at_most(batch, size):
    dataset = tf.data.Dataset.range(31).batch(batch)
    for parts in shares(dataset, size):
        lengths = [len(part) for part in parts]
        assert max(lengths) - min(lengths) <= 1


def test_what_has_no_examples_goes_to_every_worker():
    dataset = tf.data.Dataset.from_tensors((tf.range(6), 2.5))
    parts = next(iter(shares(dataset, 3)))
    assert [part[1].numpy() for part in parts] == [2.5] * 3
    assert [part[0].numpy().tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("name", ["pair", "one-tuple", "tensor", "dict"])
def test_element_structure_is_kept(name):
    dataset = tf.data.Dataset.from_tensor_slices(structures()[name]).batch(4)
    tf.nest.assert_same_structure(
        share_of(dataset, 0, 3).element_spec, dataset.element_spec
    )


def test_length_is_fixed_only_where_all_workers_have_it():
    x, _ = examples(12)
    even = tf.data.Dataset.from_tensor_slices(x).batch(6, drop_remainder=True)
    assert share_of(even, 0, 3).element_spec.shape == (2, 2)
    assert share_of(even, 0, 4).element_spec.shape.as_list() == [None, 2]
    uneven = tf.data.Dataset.from_tensor_slices(x).batch(6)
    assert share_of(uneven, 0, 3).element_spec.shape.as_list() == [None, 2]


def test_auto_shard_policy_off_leaves_the_dataset_to_its_user():
    dataset = tf.data.Dataset.range(8).batch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = OFF
    off = dataset.with_options(options)
    assert share_of(off, 1, 2) is off
    assert [len(batch) for batch in share_of(dataset, 1, 2)] == [2, 2]


def test_one_worker_gets_the_dataset_itself():
    dataset = tf.data.Dataset.range(8).batch(4)
    assert share_of(dataset, 0, 1) is dataset
