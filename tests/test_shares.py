"""Unequal shares of a batch: weighed, they add up to the mean over the batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from keras_parallax.shares import MeanVariable, ShareWeights, averages


class OtherWorkers:
    """Stands in for the dense road: adds what the other workers would contribute."""

    def __init__(self, examples):
        self.examples = examples

    def all_reduce(self, tensors, what="reduce"):
        if what == "examples":
            return [tensor + self.examples for tensor in tensors]
        return list(tensors)


def compiled(loss="mse"):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    return model


@pytest.fixture(scope="module")
def model():
    return compiled()


def unknown_length(tensor):
    """The tensor as `data.share_of` hands uneven shares out: of no known length."""
    return tf.raw_ops.PlaceholderWithDefault(
        input=tensor, shape=(None, *tensor.shape[1:])
    )


def weighed_gradients(model, counts, rank, gradients):
    shares = ShareWeights(OtherWorkers(sum(counts) - counts[rank]), len(counts))

    @tf.function
    def run():
        batch = unknown_length(tf.zeros((counts[rank], 2)))
        with shares.of_step(model, (batch,)):
            return shares.apply(gradients)

    return run()


def test_gradients_of_partly_unknown_shape_are_gradients(model):
    shares = ShareWeights(OtherWorkers(3), 2)

    @tf.function
    def run():
        batch = unknown_length(tf.zeros((1, 2)))
        gradients = [unknown_length(tf.ones((2, 1))), tf.ones((1,))]
        with shares.of_step(model, (batch,)):
            assert shares.are_gradients(gradients)
            assert not shares.are_gradients([*gradients, tf.ones((3,))])
            return shares.apply(gradients)

    # One of four examples, on two workers: each example counts half as much.
    kernel, bias = run()
    np.testing.assert_allclose(kernel, 0.5)
    np.testing.assert_allclose(bias, 0.5)


@pytest.mark.parametrize("counts", [[2, 3], [1, 1, 2], [0, 1, 1], [0, 0, 1]])
def test_sum_over_workers_is_the_mean_over_the_batch(model, counts):
    random = np.random.default_rng(0)
    of_examples = [random.normal(size=(n, 2, 1)).astype("float32") for n in counts]
    total = 0.0
    for rank, found in enumerate(of_examples):
        # The mean of nothing is NaN, as a share without examples gives it.
        mean = found.mean(0) if len(found) else np.full((2, 1), np.nan, "float32")
        local = tf.constant(mean / len(counts))
        kernel, bias = weighed_gradients(model, counts, rank, [local, local[0]])
        np.testing.assert_array_equal(kernel[0], bias)
        total += kernel
    expected = np.concatenate(of_examples).mean(0)
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_slices_are_weighed_by_their_values(model):
    slices = tf.IndexedSlices(tf.ones((1, 1)), tf.constant([1]), tf.constant([2, 1]))
    found, _ = weighed_gradients(model, [1, 3], 1, [slices, tf.ones((1,))])
    np.testing.assert_allclose(found.values, [[1.5]])
    np.testing.assert_array_equal(found.indices, [1])


def test_what_layers_sum_for_themselves_is_not_weighed(model):
    other = [tf.ones((5,)), tf.ones((5,))]
    for found in weighed_gradients(model, [1, 3], 1, other):
        np.testing.assert_array_equal(found, tf.ones((5,)))


@pytest.mark.parametrize("loss", ["sum", "custom loop", "fixed length", "one worker"])
def test_no_weights_where_shares_are_equal_or_nothing_is_averaged(loss):
    model = None if loss == "custom loop" else compiled()
    if loss == "sum":
        model = compiled(keras.losses.MeanSquaredError(reduction="sum"))
    shares = ShareWeights(OtherWorkers(3), 1 if loss == "one worker" else 2)

    @tf.function
    def run():
        batch = tf.zeros((1, 2))
        if loss != "fixed length":
            batch = unknown_length(batch)
        with shares.of_step(model, (batch,)):
            return shares.apply([tf.ones((2, 1)), tf.ones((1,))])

    np.testing.assert_array_equal(run()[0], tf.ones((2, 1)))


def test_a_worker_without_examples_keeps_what_it_has(model):
    shares = ShareWeights(OtherWorkers(4), 2)

    @tf.function
    def run(batch):
        with shares.of_step(model, (batch,)):
            return shares.keep_if_empty(tf.constant(1.0), tf.constant(5.0))

    spec = tf.TensorSpec((None, 2))
    function = run.get_concrete_function(spec)
    assert float(function(tf.zeros((0, 2)))) == 1.0
    assert float(function(tf.zeros((2, 2)))) == 5.0


def test_weights_end_with_the_step(model):
    shares = ShareWeights(OtherWorkers(3), 2)

    @tf.function
    def run():
        with shares.of_step(model, (unknown_length(tf.zeros((1, 2))),)):
            pass
        return shares.apply([tf.ones((2, 1)), tf.ones((1,))])

    np.testing.assert_array_equal(run()[0], tf.ones((2, 1)))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", True),
        (keras.losses.MeanSquaredError(), True),
        (keras.losses.MeanSquaredError(reduction="sum"), False),
        ([keras.losses.MeanSquaredError(reduction="sum")], False),
        ({"dense": keras.losses.MeanSquaredError(reduction="sum")}, False),
    ],
)
def test_averages(loss, expected):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")])
    model.compile("sgd", loss)
    assert averages(model) is expected


def test_what_workers_assign_is_averaged_and_what_an_optimizer_makes_is_not():
    # The other worker has nothing: the mean is half of this one's.
    shares = ShareWeights(OtherWorkers(3), 2)
    variable = MeanVariable(tf.distribute.get_strategy(), tf.Variable(4.0), shares)
    variable.assign(6.0)
    assert variable.numpy() == 3
    variable.assign_add(2.0)
    assert variable.numpy() == 4
    variable.assign_sub(6.0)
    assert variable.numpy() == 1
    with distribute_lib.UpdateContext(0):
        variable.assign(6.0)
        variable.assign_add(2.0)
        variable.assign_sub(1.0)
    assert variable.numpy() == 7


def test_within_a_step_means_come_along_with_the_gradients(model):
    sent = []

    class Road(OtherWorkers):
        def reduce_gradients(self, tensors, along=()):
            sent.append(len(along))
            return [*tensors, *along]

    shares = ShareWeights(Road(3), 2)
    variable = MeanVariable(tf.distribute.get_strategy(), tf.Variable(4.0), shares)

    @tf.function
    def run(batch):
        with shares.of_step(model, (batch,)):
            variable.assign(tf.reduce_sum(batch))
            return shares.reduce_gradients([batch])

    run(tf.ones((2, 2)))
    assert sent == [1]
    assert variable.numpy() == 2
