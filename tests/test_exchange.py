import pytest
import tensorflow as tf

from keras_parallax.collectives import exchange
from keras_parallax.collectives.meter import Meter


@pytest.fixture
def splits(monkeypatch):
    """What Horovod is told of an exchange that one worker has with itself."""
    horovod = pytest.importorskip("horovod.tensorflow")
    told = []

    def alltoall(tensor, splits, **options):
        told.append(splits.numpy().tolist())
        return tensor[: splits[0]], splits[:1]

    monkeypatch.setattr(horovod, "alltoall", alltoall)
    return told


@pytest.mark.parametrize(("ours", "answer"), [(True, [3, 3]), (False, [3])])
def test_what_is_expected_is_said_to_a_horovod_that_takes_it(
    splits, monkeypatch, ours, answer
):
    monkeypatch.setattr(exchange, "takes_expected_splits", lambda: ours)
    group = exchange.Group("all", 1, 0, (True,), Meter("/cpu:0"))
    route, keys = exchange.Route.of(
        group, tf.constant([7, 8, 9]), tf.zeros(3, tf.int32)
    )
    assert splits == [[3]]
    assert keys.numpy().tolist() == [7, 8, 9]
    rows = tf.constant([[1.0], [2.0], [3.0]])
    for travelled in (route.deliver(rows), route.reply(rows)):
        assert travelled.numpy().tolist() == rows.numpy().tolist()
    assert splits[1:] == [answer, answer]
