"""Ways of training put together from the costs of roads."""

import dataclasses
import json

import pytest

from keras_parallax.plan.network import Cluster, Network
from keras_parallax.plan.prediction import (
    DENSIFY,
    GATHER,
    HYBRID,
    PS,
    SYSTEMS,
    grown_share,
    predict,
)
from keras_parallax.plan.use import Use
from keras_parallax.roads import ALLREDUCE, SERVERS

NETWORK = Network(1e9)
USES = [
    Use("table", 500_000, 1024, alpha=0.004, alpha_machine=0.01, alpha_all=0.05),
    Use("kernel", 1024, 4096, gradient="dense"),
]


def predicted(cluster, **changed):
    return predict(USES, cluster, **{"compute_s": 0.1, "examples": 32, **changed})


def test_all_ways_are_there_and_the_plan_is_the_best():
    found = predicted(Cluster(8, 4, NETWORK))
    assert [system.name for system in found.systems] == list(SYSTEMS)
    assert {path: c.road for path, c in found.choices.items()} == {
        "table": SERVERS,
        "kernel": ALLREDUCE,
    }
    seconds = [system.seconds for system in found.systems]
    assert min(seconds) == found[HYBRID].seconds
    assert found[DENSIFY].seconds == max(seconds)
    for system in found.systems:
        assert system.seconds == pytest.approx(0.1 + system.cost.seconds)
        assert system.examples_per_s == pytest.approx(8 * 32 / system.seconds)


def test_local_aggregation_has_to_be_worth_its_calls():
    slow = Cluster(8, 2, dataclasses.replace(NETWORK, bandwidth_bytes_per_s=1e7))
    quick = Cluster(
        8, 2, dataclasses.replace(NETWORK, bandwidth_bytes_per_s=1e12, call_s=0.1)
    )
    assert "local aggregation" in predicted(slow)[HYBRID].home
    assert "local aggregation" not in predicted(quick)[HYBRID].home
    assert predicted(slow)[PS].home == "dedicated"
    assert predicted(slow)[GATHER].home == ""


def test_what_does_not_fit_says_so():
    cluster = Cluster(8, 4, NETWORK, memory_limit_bytes=5e8)
    found = predicted(cluster)
    assert "1,032,388,608 bytes" in found[GATHER].obstacle
    assert not found[HYBRID].obstacle
    assert "obstacle" in json.loads(json.dumps(found[HYBRID].to_dict()))


def test_what_many_batches_touch_grows_as_in_the_few_seen():
    assert grown_share([0.1], 4) == pytest.approx(1 - 0.9**4)
    # Twice as many words for four times the text.
    assert grown_share([0.01, 0.014, 0.017, 0.02], 16) == pytest.approx(0.04)
    # Never more than independent draws of all rows.
    assert grown_share([0.5, 0.9], 2) == pytest.approx(0.75)
    assert grown_share([0.0, 0.0], 8) == 0
