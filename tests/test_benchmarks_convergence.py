"""Convergence over steps and time: what is compared, and what the models are."""

import math
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import convergence, report, systems
from benchmarks.models import real


def curve(task, system, values, seconds=1.0):
    return [
        {
            "task": task,
            "measure": "test perplexity",
            "system": system,
            "step": 10 * (index + 1),
            "seconds": seconds * (index + 1),
            "value": value,
        }
        for index, value in enumerate(values)
    ]


def test_curves_are_compared_step_by_step(tmp_path):
    results = report.Report("convergence")
    results.rows = [
        *curve("words", systems.ALONE, [100.0, 80.0]),
        *curve("words", "ours", [100.0, 80.4], 2.0),
        *curve("words", "horovod", [100.0, 88.0], 9.0),
        *curve("digits", "ours", [3.0, 2.0]),
    ]
    convergence.check(results)
    found = {name: check["value"] for name, check in results.checks.items()}
    assert found == {
        "words, ours: farthest from one process's curve": pytest.approx(0.005),
        "words, horovod: farthest from one process's curve": pytest.approx(0.1),
    }
    assert [check["holds"] for check in results.checks.values()] == [True, False]
    convergence.plot(results.rows, tmp_path / "made" / "curves.png")
    assert (tmp_path / "made" / "curves.png").stat().st_size > 10_000


def test_a_step_is_timed_from_the_end_of_the_one_before(monkeypatch):
    ends = iter([5.0, 6.0, 7.5, 8.5])
    monkeypatch.setattr(convergence.time, "perf_counter", lambda: next(ends))
    clock = convergence.StepClock()
    for step in range(4):
        clock.callback().on_train_batch_end(step, {})
    assert clock.median_seconds() == 1.0


@pytest.mark.parametrize("build", [real.language_model, real.digits])
def test_shares_of_a_batch_have_the_gradients_of_the_whole(build):
    batch = 64
    model, (x, y), _, _ = build(batch)

    def gradients(start, stop):
        inputs, targets = tf.nest.map_structure(lambda a: a[start:stop], (x, y))
        with tf.GradientTape() as tape:
            loss = model.compute_loss(
                x=inputs, y=targets, y_pred=model(inputs, training=True)
            )
        found = tape.gradient(loss, model.trainable_weights)
        return [tf.convert_to_tensor(gradient).numpy() for gradient in found]

    whole = gradients(0, batch)
    halves = zip(gradients(0, batch // 2), gradients(batch // 2, batch), strict=True)
    for all_, (first, second) in zip(whole, halves, strict=True):
        np.testing.assert_allclose(all_, (first + second) / 2, rtol=1e-3, atol=1e-6)


def test_the_language_model_is_tested_by_all_words():
    batch = 32
    model, _, test, as_measure = real.language_model(batch, test_batches=1)
    assert as_measure(2.0) == math.exp(2.0)
    loss = model.evaluate(*test, batch_size=batch, verbose=0)
    # It has learned nothing: to it, all words are about as likely.
    words = model.get_layer("softmax").vocabulary
    assert loss == pytest.approx(math.log(words), rel=0.05)


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_many_workers_learn_what_one_process_learns(monkeypatch):
    monkeypatch.setattr(convergence, "HOSTS", 2)
    task = convergence.Task("test accuracy", 64, 40, 20)
    curves = [
        convergence.measure("digits", system, task)
        for system in (systems.ALONE, "ours", "horovod")
    ]
    steps, values = (
        [[point[key] for point in points] for points in curves]
        for key in ("step", "value")
    )
    assert steps == [[20, 40]] * 3
    assert values[1] == pytest.approx(values[0], abs=0.01)
    assert values[2] == pytest.approx(values[0], abs=0.01)
