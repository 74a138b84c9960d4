"""TF_CONFIG: what is read from it, and what is refused before TensorFlow starts."""

import json

import pytest

from keras_parallax.cluster import tf_config
from keras_parallax.errors import ConfigError


def _environ(cluster, task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def test_is_none_when_not_set():
    assert tf_config.read({}) is None
    assert tf_config.read({"TF_CONFIG": "  "}) is None


def test_reads_workers_and_servers():
    cluster = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    config = tf_config.read(_environ(cluster, {"type": "worker", "index": 1}))
    assert config == tf_config.TFConfig(("a:1", "b:1"), ("c:1",), "worker", 1)
    config = tf_config.read(_environ(cluster, {"type": "ps", "index": 0}))
    assert (config.task_type, config.task_index) == ("ps", 0)


def test_a_chief_is_worker_0():
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    config = tf_config.read(_environ(cluster, {"type": "chief", "index": 0}))
    assert config.workers == ("a:1", "b:1", "c:1")
    assert (config.task_type, config.task_index) == ("worker", 0)
    config = tf_config.read(_environ(cluster, {"type": "worker", "index": 1}))
    assert (config.task_type, config.task_index) == ("worker", 2)


WORKER_0 = {"type": "worker", "index": 0}
TWO = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ("{}", "no 'task'"),
        (json.dumps({"cluster": TWO}), "no 'task'"),
        (json.dumps({"task": WORKER_0}), "no 'cluster'"),
    ],
)
def test_refuses_what_has_no_cluster_and_task(text, expected):
    with pytest.raises(ValueError, match=expected) as raised:
        tf_config.read({"TF_CONFIG": text})
    assert f"Received: TF_CONFIG={text}" in str(raised.value)
    assert isinstance(raised.value, ConfigError)


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        ({"ps": ["a:1"]}, {"type": "ps", "index": 0}, "no worker"),
        ({**TWO, "evaluator": ["c:1"]}, WORKER_0, "evaluator.*not supported"),
        (TWO, {"type": "evaluator", "index": 0}, "evaluator.*not supported"),
        ({**TWO, "master": ["c:1"]}, WORKER_0, "Unknown job 'master'"),
        (TWO, {"type": "driver", "index": 0}, "Unknown job 'driver'"),
        (TWO, {"index": 0}, "'type' is None"),
        (TWO, {"type": ["worker"], "index": 0}, "'type' is"),
        (TWO, {"type": "worker", "index": 2}, "worker 2.*2 tasks"),
        (TWO, {"type": "worker", "index": -1}, "worker -1"),
        (TWO, {"type": "worker", "index": True}, "'index' is True"),
        (TWO, {"type": "worker"}, "'index' is None"),
        (TWO, {"type": "ps", "index": 0}, "ps 0.*0 tasks"),
        ({"chief": ["a:1", "b:1"]}, {"type": "chief", "index": 0}, "it has one"),
        ({"worker": ["a:1", "a:1"]}, WORKER_0, "'a:1' appears more than once"),
        ({"worker": ["a:1"], "ps": ["a:1"]}, WORKER_0, "more than once"),
        ({"worker": ["a"]}, WORKER_0, "'a', which is not 'host:port'"),
        ({"worker": ["a:0"]}, WORKER_0, "not 'host:port'"),
        ({"worker": [":1"]}, WORKER_0, "not 'host:port'"),
        ({"worker": "a:1"}, WORKER_0, "not a list"),
        ({"worker": {"1": "a:1"}}, WORKER_0, "lacks some"),
    ],
)
def test_refuses_a_malformed_cluster(cluster, task, expected):
    with pytest.raises(ConfigError, match=f"(?s){expected}.*Expected.*Received"):
        tf_config.read(_environ(cluster, task))
