"""Spans: what is timed adds up, and costs nothing until it is asked for."""

import time

import numpy as np
import pytest
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.collectives import spans as spans_module
from keras_parallax.collectives.load import Load, imbalance
from keras_parallax.collectives.spans import ALLREDUCE, PULL, PUSH, Spans


class TwoWorkers:
    """A job of two, of which this is worker 0."""

    rank, size = 0, 2

    def __init__(self, other_is_on=True):
        self.other_is_on = other_is_on
        self.gathered = 0

    def gather(self, value):
        self.gathered += 1
        return [value, self.other_is_on]


def slow(tensor, seconds):
    """`tensor`, some time later."""

    def wait(x):
        time.sleep(seconds)
        return x

    return tf.ensure_shape(
        tf.numpy_function(wait, [tensor], tensor.dtype), tensor.shape
    )


def test_off_it_is_not_in_the_graph():
    spans = Spans()

    @tf.function
    def step(x):
        with spans.step([x]):
            return spans.timed(PULL, [x], lambda: x + 1)

    step(tf.constant(1.0))
    operations = step.get_concrete_function(tf.constant(1.0)).graph.get_operations()
    assert not any(op.type == "Timestamp" for op in operations)
    assert any(op.name.startswith("parallax/pull/") for op in operations)
    assert spans.read() == spans_module.Reading()


def test_phases_are_timed_and_overlaps_count_once():
    spans = Spans()
    assert spans.switch_on()
    assert not spans.switch_on()

    @tf.function
    def step(x):
        with spans.step([(x, x)]):
            rows = spans.timed(PULL, [x], lambda: slow(x, 0.02))
            rows = slow(rows, 0.06)
            a = spans.timed(PUSH, [rows], lambda: slow(rows, 0.04))
            b = spans.timed(ALLREDUCE, [rows], lambda: slow(rows, 0.01))
            return a + b

    ids = tf.zeros((8, 3), tf.int32)
    for _ in range(2):
        step(ids)
    read = spans.read()
    assert read.steps == read.told_steps == 2
    assert read.pull_seconds >= 0.04
    assert read.push_seconds >= 0.08
    assert read.allreduce_seconds >= 0.02
    parts = read.pull_seconds + read.push_seconds + read.allreduce_seconds
    assert read.pull_seconds + read.push_seconds < read.travel_seconds * 1.001
    assert read.travel_seconds <= parts * 1.001
    # The time between pull and push is in the step and in none of its spans. (On a
    # busy machine a span's end is noted late: it lasts twice as long.)
    assert read.step_seconds - read.travel_seconds >= 0.06
    assert (read.examples, read.tokens) == (16, 48)
    assert (read.all_examples, read.all_tokens) == (16, 48)
    later = spans.read() - read
    assert later == spans_module.Reading()


def test_what_is_timed_does_not_wait_for_what_was_timed_before():
    spans = Spans()
    spans.switch_on()

    @tf.function
    def step(x):
        with spans.step([x]):
            reduced = spans.timed(ALLREDUCE, [x], lambda: x + 1)
            return spans.timed(PUSH, [x], lambda: x + 2), reduced

    graph = step.get_concrete_function(tf.constant(1.0)).graph
    moments = [op for op in graph.get_operations() if op.type == "Timestamp"]
    begin_of_push = next(op for op in moments if "/push/" in op.name)
    assert not any("/allreduce/" in op.name for op in begin_of_push.control_inputs)


def test_without_a_graph_too():
    spans = Spans()
    spans.switch_on()
    x = tf.zeros((4,))
    with spans.step([x]):
        spans.timed(PULL, [x], lambda: slow(x, 0.01))
    assert spans.read().pull_seconds >= 0.01
    assert spans.read().examples == 4


@pytest.mark.parametrize(
    ("intervals", "covered"),
    [
        ([], 0),
        ([(1, 3)], 2),
        ([(1, 3), (2, 5)], 4),
        ([(1, 2), (4, 5)], 2),
        ([(1, 9), (2, 3), (8, 10)], 9),
        ([(1, 2), (1, 2)], 1),
    ],
)
def test_the_union_of_spans(intervals, covered):
    spans = [tuple(tf.constant(float(x), tf.float64) for x in i) for i in intervals]
    assert spans_module._union(spans).numpy() == covered


def test_who_spends_longer_than_the_last_to_come_has_waited():
    spans = Spans(TwoWorkers())
    spans.switch_on()
    # Worker 1 came late: of the last step it spent less in both spans.
    notes = np.zeros((2, 5), np.float32)
    notes[0] = [0.5, 0.4, 10, 60, 0.3]
    notes[1] = [0.4, 0.1, 6, 36, 0.2]

    @tf.function
    def step(x):
        with spans.step([x]):
            assert spans.note().shape == (2, 5)
            spans.hear(tf.constant(notes))
            assert spans.note() is None

    step(tf.zeros((10, 6), tf.int32))
    read = spans.read()
    assert read.wait_seconds == pytest.approx(0.3)
    assert (read.all_examples, read.all_tokens) == (16, 96)
    spans.pulls_meet = True
    spans.hear(None)
    assert spans._waited(tf.constant(notes)).numpy() == pytest.approx(0.4)


def test_what_is_told_is_the_step_before():
    spans = Spans(TwoWorkers())
    spans.switch_on()
    told = []

    @tf.function
    def step(x):
        with spans.step([x]):
            note = spans.note()
            spans.hear(note)
            return note

    for size in (3, 5):
        told.append(step(tf.zeros((size, 2), tf.int32)).numpy())
    assert told[0].tolist() == np.zeros((2, 5)).tolist()
    assert told[1][0, 2:4].tolist() == [3, 6]
    assert not told[1][1].any()


def test_all_workers_are_timed_or_none():
    job = TwoWorkers(other_is_on=False)
    spans = Spans(job)
    spans.agree()
    spans.agree()
    assert job.gathered == 1
    spans.switch_on()
    with pytest.raises(errors.ConfigError, match=r"worker\(s\) 0 use .* worker\(s\) 1"):
        spans.agree()


def test_loads_fall_on_partitions_and_servers():
    load = Load("/device:CPU:0")

    @tf.function
    def push(ids):
        load.count("table", ids, 100, servers=[0, 1, 0])

    push(tf.constant([0, 1, 2, 3, 99], tf.int32))
    push(tf.constant([0, 3], tf.int32))
    (found,) = load.read()
    assert found.by_partition.tolist() == [5, 1, 1]
    assert found.by_server.tolist() == [6, 1]
    assert found.counts.shape == (32, 3)
    assert found.counts[0].tolist() == [4, 1, 1]
    assert found.counts[31].tolist() == [1, 0, 0]
    assert imbalance(found.by_partition) == pytest.approx(15 / 7)
    assert imbalance(np.zeros(3)) == 1
