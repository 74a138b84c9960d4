"""The time of a phase, shared by bytes among what travels in it."""

import keras
import pytest

import keras_parallax as kp
from keras_parallax.plan.shared_time import Phases, shared
from tests.multiprocess import models
from tests.twins import data, parallax, prepared


def test_each_phase_is_shared_by_its_own_bytes():
    found = shared(
        Phases(pull=4.0, push=2.0, allreduce=1.0),
        {
            "a": Phases(pull=30, push=10),
            "b": Phases(pull=10, push=30),
            "c": Phases(allreduce=7),
        },
    )
    assert found == {"a": 3.5, "b": 2.5, "c": 1.0}


def test_a_phase_in_which_nothing_travels_is_nobodys():
    assert shared(Phases(1.0, 1.0, 1.0), {"a": Phases(pull=1)}) == {"a": 1.0}
    assert shared(Phases(1.0, 1.0, 1.0), {}) == {}


def test_the_plan_has_the_time_measured_where_spans_are_on():
    strategy = parallax()
    model = prepared(models.build, lambda: keras.optimizers.SGD(0.1), strategy)
    x, y = data()
    model.fit(x, y, batch_size=models.BATCH, verbose=0)
    assert all(entry.measured_seconds is None for entry in strategy.plan)
    model.fit(x, y, batch_size=models.BATCH, verbose=0, callbacks=[summary()])
    reading = strategy.spans.read()
    tables = [e for e in strategy.plan if e.road == "servers"]
    took = sum(entry.measured_seconds for entry in tables)
    whole = (reading.pull_seconds + reading.push_seconds) / reading.steps
    assert took == pytest.approx(whole)
    assert all(e.measured_seconds > 0 and e.measured_bytes > 0 for e in tables)
    # One worker reduces nothing.
    dense = [e for e in strategy.plan if e.gradient == "dense"]
    assert {entry.measured_seconds for entry in dense} == {0.0}
    assert "took" in str(strategy.plan)


def summary():
    return kp.callbacks.FitSummary()
