"""Who would wait for ever is told so; who will be joined waits."""

import concurrent.futures
import itertools

import pytest
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.servers.asynchronous import Clock
from keras_parallax.servers.roll_call import RollCall

names = itertools.count()


class Worker:
    """A place in a job of two whose processes are threads of this one."""

    size = 2

    def __init__(self, rank):
        self.rank = rank

    def barrier(self):
        pass


@pytest.fixture
def workers():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def calls():
    return [RollCall(Worker(rank), "/CPU:0") for rank in range(2)]


def test_who_comes_for_the_same_is_joined(workers, calls):
    for what in ("the first", "the second"):
        list(workers.map(lambda call, what=what: call(what), calls))


def test_who_comes_for_something_else_is_named_by_both(workers, calls):
    first = workers.submit(calls[0], "strategy.sparsity()")
    second = workers.submit(calls[1], "an epoch's end")
    with pytest.raises(errors.ClusterError) as caught:
        first.result(30)
    assert "Worker 0 waits for all workers for strategy.sparsity()" in str(caught.value)
    assert "worker 1 for ever, which waits for all workers for an epoch's end" in str(
        caught.value
    )
    with pytest.raises(errors.ClusterError, match="worker 0 for ever"):
        second.result(30)


def test_nobody_waits_for_who_has_left(workers, calls):
    waiting = workers.submit(calls[0], "an epoch's end")
    calls[1].leave()
    with pytest.raises(errors.ClusterError, match="worker 1 for ever, which has left"):
        waiting.result(30)


@pytest.fixture
def clocks(workers, monkeypatch):
    made = 1000 * next(names)
    found = []
    for rank in range(2):
        monkeypatch.setattr(Clock, "_made", made)
        found.append(Clock(Worker(rank), "/CPU:0", 1))
    yield found
    # A step that is still held back ends.
    for clock in found:
        clock.leave()


def stepping(clock):
    @tf.function
    def step():
        with tf.control_dependencies([clock.begin()]):
            done = tf.no_op()
        clock.end([done])

    return step


def test_nobody_waits_for_who_is_held_back_meanwhile(workers, clocks):
    step = stepping(clocks[0])
    step()
    RollCall(Worker(0), "/CPU:0")
    call = RollCall(Worker(1), "/CPU:0", clocks[1].is_held)
    waiting = workers.submit(call, "an epoch's end")
    held = workers.submit(step)
    with pytest.raises(errors.ClusterError, match="`max_staleness` holds back"):
        waiting.result(30)
    assert not held.done()
    # Whoever has left holds nobody back.
    clocks[1].leave()
    held.result(30)
    for _ in range(3):
        step()
    assert clocks[0].max_lead_steps <= 1
