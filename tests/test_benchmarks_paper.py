"""The paper's benchmarks: what they ask for, and what they make of what was found."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import (
    ablation,
    comparison,
    image_classification,
    language_model,
    mirrored,
    report,
    scaling,
    sparsity,
    system_steps,
    systems,
    tensorflow_servers,
    translation,
)

BENCHMARKS = (
    language_model,
    translation,
    image_classification,
    sparsity,
    ablation,
    scaling,
)
TINY = {
    "language model": {"vocabulary": 50, "width": 4, "drawn": 5},
    "translator": {"source_words": 50, "target_words": 40, "width": 4},
    "resnet": {"size": 4, "widths": (4, 8)},
    "lookups": {"rows": 50, "words": 3, "width": 4},
}


def found_of(**milliseconds):
    return {
        name.replace("_", " "): {
            "ms": [ms, ms, 10 * ms],
            "mb": [1.1, 1.1, 1.1],
            "least_bytes": 1e6 if name == "ours" else None,
            "plan": {"embedding/embeddings": {"road": "servers", "alpha": 0.1}},
        }
        for name, ms in milliseconds.items()
    }


def rows_at(rate, hosts=8, **milliseconds):
    case = comparison.Case("language model", hosts, rate, (), batch=4)
    return comparison.rows_of(case, found_of(one_process=10.0, **milliseconds))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_cases_name_what_exists_and_are_told_apart(benchmark, quick):
    cases = benchmark.cases(quick)
    assert len({case.key for case in cases}) == len(cases)
    assert all(set(case.systems) <= set(systems.NAMES) for case in cases)
    assert {case.model for case in cases} <= set(system_steps.builders())
    assert all(case.turns >= 5 or quick for case in cases)


@pytest.mark.parametrize("name", TINY)
def test_models_train_on_as_many_steps_as_asked_for(name):
    model = systems.Model(system_steps.builders()[name], TINY[name], batch=4)
    made, dataset = model.make()
    (_, targets) = next(iter(dataset))
    assert targets.shape[0] == 4
    history = made.fit(dataset, steps_per_epoch=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_systems_with_servers_have_processes_of_their_own():
    names = ("ours", systems.TENSORFLOW, systems.MIRRORED, "naive ps", "horovod")
    assert comparison.jobs_of(names) == [
        ["ours", "horovod"],
        ["naive ps"],
        [systems.TENSORFLOW],
        [systems.MIRRORED],
    ]
    assert comparison.jobs_of(("ours",)) == [["ours"]]


@pytest.mark.parametrize(
    "road, expected",
    [
        ("servers", 2 * 10 * (4 + 2 * 8) * 0.5),
        ("allgather", 2 * 10 * (4 + 8) * 1),
        ("allreduce", 4 * 800 * 0.5),
        ("whole", 4 * 800 * 0.5),
    ],
)
def test_least_bytes_are_those_of_the_paper_and_the_ids(road, expected):
    found = system_steps.least_bytes(road, 800, 100, 0.1, None, 2, 2)
    assert found == pytest.approx(expected)
    assert system_steps.least_bytes(road, 800, 100, 0.1, None, 2, 1) == 0


def test_least_bytes_of_aggregating_machines_are_those_of_their_union():
    found = system_steps.least_bytes("servers", 800, 100, 0.1, 0.15, 4, 2)
    assert found == pytest.approx(2 * 15 * (4 + 2 * 8) * 0.5)


def test_rows_compare_with_computing_and_with_ours():
    rows = {row["system"]: row for row in rows_at(50, ours=20.0, horovod=180.0)}
    assert rows["horovod"]["of computing"] == pytest.approx(18)
    assert rows["horovod"]["of ours"] == pytest.approx(9)
    assert rows["ours"]["examples_per_s"] == pytest.approx(1e3 * 4 * 8 / 20)
    assert rows["ours"]["bytes / least"] == pytest.approx(1.1)
    assert rows["ours"]["roads"] == "embedding servers"


def test_the_papers_figures_are_asked_for_where_horovod_is_as_slow_as_there():
    results = report.Report("language_model")
    results.rows = [
        *rows_at(25, ours=40.0, horovod=400.0, naive_ps=200.0),
        *rows_at(50, ours=20.0, horovod=170.0, naive_ps=40.0),
        *rows_at(50, hosts=4, ours=20.0, horovod=180.0),
    ]
    language_model.check(results)
    checks = {name: check["holds"] for name, check in results.checks.items()}
    place = "8 hosts, 50 Mbit/s, batch 4 (horovod is 17 x computing)"
    assert checks[f"{place}: horovod / ours"]
    assert not checks[f"{place}: naive ps / ours"]
    assert checks["8 hosts, 25 Mbit/s, batch 4: ours / best other (naive ps)"]
    assert checks["8 hosts, 25 Mbit/s, batch 4: ours, bytes / least"]


def test_of_fewer_hosts_the_papers_figures_are_not_asked_for():
    results = report.Report("language_model")
    results.rows = rows_at(50, hosts=4, ours=20.0, horovod=180.0, naive_ps=40.0)
    language_model.check(results)
    place = "4 hosts, 50 Mbit/s, batch 4"
    assert set(results.checks) == {
        f"{place}: ours / best other (naive ps)",
        f"{place}: ours, bytes / least",
    }


def test_checks_tell_where_another_system_is_faster():
    results = report.Report("translation")
    results.rows = rows_at(50, ours=20.0, horovod=19.0)
    comparison.check_everywhere(results)
    check = results.checks["8 hosts, 50 Mbit/s, batch 4: ours / best other (horovod)"]
    assert check["value"] == pytest.approx(20 / 19)
    assert not check["holds"]


def test_rows_of_cases_that_are_not_measured_again_are_kept(tmp_path):
    path = tmp_path / "rows.json"
    assert comparison.kept_rows(path, []) == []
    rows = [*rows_at(25, ours=1.0), *rows_at(50, ours=2.0)]
    path.write_text(json.dumps({"rows": rows}))
    again = comparison.Case("language model", 8, 50, (), batch=4)
    assert comparison.kept_rows(path, [again]) == rows_at(25, ours=1.0)


@pytest.mark.parametrize("axis", ["hosts", "rate_mbit"])
def test_results_are_drawn(tmp_path, axis):
    rows = [
        row
        for hosts in (2, 8)
        for rate in (25, 50)
        for row in rows_at(rate, hosts, ours=20.0, horovod=hosts * 1000.0 / rate)
    ]
    comparison.plot(rows, tmp_path / "made" / "plot.png", axis)
    assert (tmp_path / "made" / "plot.png").stat().st_size > 10_000


def test_an_ablation_is_drawn_and_each_step_is_checked(tmp_path):
    results = report.Report("ablation")
    results.rows = rows_at(50, horovod=100.0, naive_ps=110.0, ours=20.0)
    ablation.check(results)
    held = {name: check["holds"] for name, check in results.checks.items()}
    assert held == {"8 hosts, 50 Mbit/s, batch 4: naive ps / horovod": False}
    ablation.plot(results.rows, tmp_path / "ablation.png")
    assert (tmp_path / "ablation.png").exists()


@pytest.mark.parametrize(
    ("seconds", "steps"), [(0.001, 6), (1.0, 4), (1.9, 2), (2.1, 1), (60.0, 1)]
)
def test_a_turn_of_a_slow_system_has_fewer_steps(seconds, steps):
    assert system_steps.steps_of_turn(6, seconds) == steps


def test_a_slow_link_has_time(tmp_path):
    told = comparison.environment(tmp_path)
    assert int(told["HOROVOD_GLOO_TIMEOUT_SECONDS"]) > 30
    assert told["KERAS_PARALLAX_CACHE"] == str(tmp_path)


def test_links_of_fewer_hosts_are_faster_as_these_compute_faster():
    rates = {case.hosts: case.rate_mbit for case in scaling.cases(quick=False)}
    assert rates == {8: 60, 4: 120, 2: 240, 1: None}


def test_throughput_is_told_in_hosts(tmp_path):
    rows = [*rows_at(60, ours=20.0, horovod=160.0), *rows_at(120, hosts=4, ours=20.0)]
    results = report.Report("scaling")
    results.rows = rows
    scaling.check(results)
    found = {(row["hosts"], row["system"]): row["speed-up"] for row in rows}
    assert found[8, "ours"] == pytest.approx(4)
    assert found[8, "horovod"] == pytest.approx(0.5)
    assert found[4, "ours"] == pytest.approx(2)
    scaling.plot(rows, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_tensorflows_servers_have_a_place_on_each_host():
    cluster = tensorflow_servers.cluster_of(["10.0.0.1", "10.0.0.2"], 3)
    ports = {name: [a.rsplit(":")[-1] for a in cluster[name]] for name in cluster}
    assert ports["worker"] == ["42000", "42001"] * 2
    assert ports["ps"] == ["42002"] * 2
    places = [tensorflow_servers.place_of(rank, 3) for rank in range(6)]
    assert places == [
        ("worker", 0), ("worker", 1), ("ps", 0), ("worker", 2), ("worker", 3), ("ps", 1)
    ]  # fmt: skip


def test_mirrored_workers_have_addresses_in_order_of_rank():
    found = mirrored.addresses(["10.0.0.1", "10.0.0.2"], 2)
    assert found[:2] == ["10.0.0.1:43000", "10.0.0.1:43001"]
    assert found[2:] == ["10.0.0.2:43000", "10.0.0.2:43001"]


def test_the_model_in_plain_tensorflow_learns():
    model = tensorflow_servers.LanguageModel(**TINY["language model"])
    batch = next(iter(model.batches(16)))
    step = tf.function(model.step)
    losses = [float(step(batch)) for _ in range(300)]
    assert losses[-1] < 0.99 * losses[0]


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_systems_are_measured_side_by_side():
    names = ("one process", "ours", "horovod", "horovod, dense", "naive ps")
    names += (systems.TENSORFLOW, systems.MIRRORED)
    case = comparison.Case(
        "language model", 2, None, names, 4, TINY["language model"], turns=2, steps=2
    )
    rows = comparison.measure(case)
    assert {row["system"] for row in rows} == set(names)
    assert all(row["step_ms"] > 0 for row in rows)
