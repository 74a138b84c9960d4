"""Who a process takes itself to be, by what has started it."""

import json

import pytest

from keras_parallax.cluster.topology import assign_slots, resolve
from keras_parallax.errors import ConfigError

HOROVOD = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_HOSTNAME": "b",
}
CLUSTER = {"worker": ["a:1", "b:1", "a:2"], "ps": ["b:2"]}


def _tf_config(kind, index):
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": task})}


class Resolver:
    """What is read of a `tf.distribute` cluster resolver."""

    def __init__(self, cluster, task_type=None, task_id=None):
        self._cluster = cluster
        self.task_type = task_type
        self.task_id = task_id

    def cluster_spec(self):
        return self

    def as_dict(self):
        return self._cluster


def test_is_alone_where_nothing_says_otherwise():
    me = resolve({})
    assert (me.rank, me.size, me.source, me.task) == (0, 1, "alone", "worker")
    assert me.servers == me.workers == ()
    assert me.lifeline is None


def test_horovod_comes_before_tf_config():
    environ = {
        **HOROVOD,
        **_tf_config("worker", 0),
        "KERAS_PARALLAX_SERVERS": "127.0.0.1:5, 127.0.0.1:6",
        "KERAS_PARALLAX_LIFELINE": "127.0.0.1:7",
    }
    me = resolve(environ)
    assert (me.rank, me.size, me.source, me.index) == (3, 4, "horovod", 3)
    assert (me.local_rank, me.local_size) == (1, 2)
    assert (me.cross_rank, me.cross_size, me.host) == (1, 2, "b")
    assert me.servers == ("127.0.0.1:5", "127.0.0.1:6")
    assert me.lifeline == "127.0.0.1:7"


@pytest.mark.parametrize(
    "change",
    [
        {"HOROVOD_RANK": "4"},
        {"HOROVOD_RANK": "x"},
        {"HOROVOD_SIZE": ""},
        {"HOROVOD_LOCAL_RANK": "2"},
    ],
)
def test_refuses_a_place_that_cannot_be(change):
    (name,) = change
    with pytest.raises(ConfigError, match=f"{name} is a whole number.*Received"):
        resolve({**HOROVOD, **change})


def test_refuses_half_of_a_place():
    with pytest.raises(ConfigError, match="HOROVOD_SIZE"):
        resolve({"HOROVOD_RANK": "0"})
    with pytest.raises(ConfigError, match="KERAS_PARALLAX_SERVERS.*'nowhere'"):
        resolve({"KERAS_PARALLAX_SERVERS": "nowhere"})


def test_tf_config_gives_workers_and_servers():
    me = resolve(_tf_config("worker", 2))
    assert (me.rank, me.size, me.source) == (2, 3, "tf_config")
    assert (me.local_rank, me.local_size, me.host) == (1, 2, "a")
    assert me.workers == ("a:1", "b:1", "a:2")
    assert me.servers == ("b:2",)
    assert me.lifeline == "a:1"
    server = resolve(_tf_config("ps", 0))
    assert (server.task, server.index, server.rank, server.host) == ("ps", 0, -1, "b")


def test_a_cluster_resolver_comes_first():
    me = resolve(HOROVOD, Resolver(CLUSTER, "worker", 1))
    assert (me.rank, me.size, me.source) == (1, 3, "tf_config")
    assert resolve({}, Resolver({})).source == "alone"


@pytest.mark.parametrize("task", [("", 0), ("worker", None)])
def test_a_cluster_resolver_must_know_its_task(task):
    with pytest.raises(ConfigError, match="task_type='worker', task_id=0"):
        resolve({}, Resolver(CLUSTER, *task))


def test_slots_follow_the_order_of_ranks_where_hosts_alternate():
    slots = assign_slots(["a", "b", "a"])
    assert [s.rank for s in slots] == [0, 1, 2]
    assert [(s.local_rank, s.local_size) for s in slots] == [(0, 2), (0, 1), (1, 2)]
    assert [(s.cross_rank, s.cross_size) for s in slots] == [(0, 2), (1, 2), (0, 1)]
