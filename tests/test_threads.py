"""A worker computes with its share of the cores."""

import os

import pytest

from keras_parallax.cluster.threads import share_of_cores


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(8, 1, 8), (8, 4, 2), (8, 3, 2), (2, 4, 1)]
)
def test_no_more_threads_than_cores(monkeypatch, cores, workers, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert share_of_cores(workers) == threads


def test_a_system_without_affinity_has_all_cores(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert share_of_cores(2) == 3
