"""ParallaxTensorBoard and FitSummary on one worker; event files are read back."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util.tensor_util import make_ndarray

import keras_parallax as kp
from keras_parallax.callbacks import charts, fit_summary, load_picture
from keras_parallax.callbacks.server_accounts import ServerAccount
from keras_parallax.callbacks.stopwatch import (
    PHASES,
    TableWindow,
    Window,
    _each_moment_once,
)
from keras_parallax.collectives.load import TableLoad
from keras_parallax.collectives.spans import Reading

LENGTH = 6


def build(strategy, **options):
    with strategy.scope():
        ids = keras.Input((LENGTH,), dtype="int32")
        x = keras.layers.Embedding(50, 4, name="words")(ids)
        model = keras.Model(
            ids, keras.layers.Dense(1, name="dense")(keras.layers.Flatten()(x))
        )
        model.compile("adagrad", "mse", **options)
    return model


def data(examples=80):
    random = np.random.default_rng(0)
    ids = random.integers(0, 50, (examples, LENGTH)).astype("int32")
    return ids, np.zeros((examples, 1), "float32")


def read(folder):
    """Events of worker 0: `{tag: [(step, value)]}`."""
    found = EventAccumulator(str(folder / "parallax" / "worker-0"), {"tensors": 0})
    found.Reload()
    return {
        tag: [(e.step, plain(make_ndarray(e.tensor_proto))) for e in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


def plain(array):
    """A number or text in place of an array without dimensions."""
    return array.item() if array.ndim == 0 else array


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Of two fits of 10 and 5 steps in batches of 8, written every 4 steps."""
    folder = tmp_path_factory.mktemp("logs")
    model = build(kp.ParallaxStrategy(partitions=3))
    board = kp.callbacks.ParallaxTensorBoard(
        folder, update_freq=4, hparams={"dropout": 0.5, "note": "try"}
    )
    model.fit(*data(), batch_size=8, verbose=0, callbacks=[board])
    model.fit(
        *data(40), batch_size=8, verbose=0, callbacks=[board], initial_epoch=1, epochs=2
    )
    return read(folder)


def test_numbers_are_written_at_steps_of_the_training(events):
    values = events["throughput/examples_per_second"]
    assert [step for step, _ in values] == [4, 8, 10, 14, 15]
    assert all(value > 0 for _, value in values)
    tokens = events["throughput/tokens_per_second"]
    for (_, examples), (_, words) in zip(values, tokens, strict=True):
        assert words == pytest.approx(LENGTH * examples, rel=1e-5)
    # One worker is all of them.
    alone = [value for _, value in values]
    everyone = [value for _, value in events["throughput/all_examples_per_second"]]
    assert everyone == pytest.approx(alone, rel=1e-5)


def test_phases_add_up_to_the_step(events):
    total = [value for _, value in events["step_ms/total"]]
    parts = [
        [value for _, value in events[f"step_ms/{phase}"]]
        for phase in PHASES
        if phase != "wait"
    ]
    assert np.sum(parts, 0) == pytest.approx(total, rel=1e-3)
    assert all(value == 0 for _, value in events["step_ms/wait"])
    assert all(value > 0 for _, value in events["step_ms/pull"])
    assert all(value > 0 for _, value in events["step_ms/push"])


def test_phases_that_overlap_count_each_moment_once():
    # The push ran beside the all-reduce, all but a second of it.
    reading = Reading(
        pull_seconds=2, push_seconds=3, allreduce_seconds=5, travel_seconds=8
    )
    assert _each_moment_once(reading) == {"allreduce": 3, "push": 3, "pull": 2}


def test_each_table_has_its_numbers(events):
    (alpha,) = (tag for tag in events if tag.startswith("alpha/"))
    name = alpha.removeprefix("alpha/")
    ids = [value for _, value in events[f"ids_pushed_a_step/{name}"]]
    assert all(10 < number <= 48 for number in ids)
    shares = [value for _, value in events[alpha]]
    assert shares == pytest.approx([number / 50 for number in ids], rel=1e-5)
    # One lookup of 8 x 6 ids a step.
    pulled = [value for _, value in events[f"ids_pulled_a_step/{name}"]]
    hits = [value for _, value in events[f"hit_share/{name}"]]
    assert hits == pytest.approx([1 - number / 48 for number in pulled], rel=1e-5)
    assert [value for _, value in events[f"partitions/{name}"]] == [3] * len(ids)
    assert all(1 <= v < 2 for _, v in events[f"imbalance/partitions/{name}"])
    width, height, picture = events[f"where_ids_fall/{name}"][-1][1]
    assert picture.startswith(b"\x89PNG") and min(int(width), int(height)) > 300


def test_the_layout_names_tags_that_are_there(events):
    (text,) = {value for _, value in events["custom_scalars__config__"]}
    layout = layout_pb2.Layout.FromString(text)
    assert layout.category[0].title == "Parallax"
    assert "Parallax: servers" not in {category.title for category in layout.category}
    for chart in (chart for category in layout.category for chart in category.chart):
        assert "(" in chart.title  # The unit.
        for pattern in chart.multiline.tag:
            assert any(re.search(pattern, tag) for tag in events), pattern


def test_every_number_is_described(events):
    tags = [tag for tag, values in events.items() if isinstance(values[0][1], float)]
    described = charts.described(tags)
    assert len(tags) > 20
    assert [tag for tag in tags if not described[tag]] == []


def test_the_plan_is_a_table_in_markdown(events):
    plan = events["plan"][0][1].item().decode()
    lines = plan.splitlines()
    assert lines[0].startswith("| variable | shape | gradient |")
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count(" | ") for line in table}) == 1
    reasons = lines[len(table) + 1 :]
    assert any("words/embeddings`: " in reason for reason in reasons)
    # Those that have the same reason share a line.
    (dense,) = (reason for reason in reasons if "dense/kernel`" in reason)
    assert "dense/bias`" in dense
    assert "words/embeddings` | 50 x 4 | sparse" in lines[2]


def test_settings_of_the_run_are_there(events):
    assert {"_hparams_/experiment", "_hparams_/session_start_info"} <= set(events)


def test_several_steps_a_call_and_writing_by_epoch(tmp_path):
    model = build(kp.ParallaxStrategy(), steps_per_execution=4)
    board = kp.callbacks.ParallaxTensorBoard(tmp_path, update_freq="epoch")
    model.fit(*data(), batch_size=8, verbose=0, callbacks=[board], epochs=2)
    events = read(tmp_path)
    assert [step for step, _ in events["step_ms/total"]] == [10, 20]
    for phase in PHASES:
        assert all(value >= 0 for _, value in events[f"step_ms/{phase}"])


def test_a_change_of_the_plan_is_told_once(tmp_path):
    strategy = kp.ParallaxStrategy()
    model = build(strategy)
    strategy.plan.note_change("words/embeddings: servers -> allgather (cheaper)")
    board = kp.callbacks.ParallaxTensorBoard(tmp_path)
    model.fit(*data(), batch_size=8, verbose=0, callbacks=[board], epochs=2)
    ((_, text),) = read(tmp_path)["plan_changes"]
    assert text.item().decode().splitlines() == [f"- {strategy.plan.changes[0]}"]


def test_a_model_that_was_trained_before_is_traced_anew(tmp_path):
    model = build(kp.ParallaxStrategy())
    model.fit(*data(), batch_size=8, verbose=0)
    board = kp.callbacks.ParallaxTensorBoard(tmp_path)
    model.fit(*data(), batch_size=8, verbose=0, callbacks=[board])
    assert [step for step, _ in read(tmp_path)["step_ms/total"]] == [20]


def test_one_step_gives_nothing_to_tell(tmp_path, capsys):
    model = build(kp.ParallaxStrategy())
    summary = kp.callbacks.FitSummary()
    board = kp.callbacks.ParallaxTensorBoard(tmp_path)
    model.fit(*data(8), batch_size=8, verbose=0, callbacks=[board, summary])
    assert summary.window is None
    assert capsys.readouterr().out == ""


def test_a_model_of_no_parallax_strategy_is_refused(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for callback in (
        kp.callbacks.ParallaxTensorBoard(tmp_path),
        kp.callbacks.FitSummary(),
    ):
        with pytest.raises(kp.errors.ConfigError, match="strategy.scope"):
            model.fit(tf.zeros((4, 2)), tf.zeros((4, 1)), callbacks=[callback])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("update_freq", [0, -1, 2.5, "batch", True])
def test_a_wrong_frequency_is_refused(update_freq):
    with pytest.raises(kp.errors.ConfigError, match="update_freq="):
        kp.callbacks.ParallaxTensorBoard("logs", update_freq)


def test_the_summary_is_printed_once(capsys):
    model = build(kp.ParallaxStrategy())
    summary = kp.callbacks.FitSummary()
    model.fit(*data(), batch_size=8, verbose=0, callbacks=[summary])
    printed = capsys.readouterr().out
    assert printed == summary.text + "\n"
    assert printed.startswith("keras-parallax: 9 steps of ")
    for word in ("throughput", "traffic", "time", "hint"):
        assert f"\n  {word} " in printed
    assert "tokens/s" in printed


def window(**phases):
    """100 ms a step, of which `phases` are so many."""
    spent = {name: phases.get(name, 0) / 1e3 for name in PHASES}
    table = TableWindow("words", 0.1, 10, 10, 5e5)
    return Window(100, 0.1, spent, 80, 0, 160, 0, 3e5, 3e5, 5e5, 1e6, (table,))


@pytest.mark.parametrize(
    ("phases", "servers", "uneven", "word"),
    [
        ({"data": 40}, 0, 1, "prefetch"),
        ({"callbacks": 40}, 0, 1, "steps_per_execution"),
        ({"push": 60, "wait": 40}, 0, 1, "slowest"),
        ({"push": 60}, 2, 1.9, "1.9 times the mean"),
        ({"pull": 60}, 2, 1, "more servers"),
        ({"pull": 60}, 0, 1, "wire"),
        ({"allreduce": 60}, 0, 1, "dense_wire"),
        ({"compute": 90}, 0, 1, "computing"),
    ],
)
def test_the_hint_is_for_what_takes_most(phases, servers, uneven, word):
    assert word in fit_summary.hint(window(**phases), 2, servers, uneven)


def test_an_optimizer_that_updates_all_rows_is_named():
    slow = window(allreduce=40, push=10)
    assert "sparse_update='lazy'" in fit_summary.hint(slow, 2, 0, 1, updates_all=True)
    quick = window(compute=90)
    assert "computing" in fit_summary.hint(quick, 2, 0, 1, updates_all=True)


def test_the_summary_says_how_far_bytes_are_from_the_least():
    text = fit_summary.summary_of(window(compute=90, wait=5), 2, 1, 1.0)
    assert "160 examples/s" in text
    assert "0.60 MB a step and worker for tables (1.20 times the least" in text
    assert "5% waiting for slower workers" in text


def test_what_the_plan_predicts_stands_beside_what_was_measured():
    plan = [
        {"variable": "words", "road": "servers", "home": "peers", "partitions": 4},
        {"variable": "films", "road": "allgather", "home": "workers", "partitions": 1},
        {"variable": "users", "road": "allgather", "home": "workers", "partitions": 1},
    ]
    for entry, number in zip(plan, (None, 2e6, 3e6), strict=True):
        entry["predicted_bytes"] = number
    found = charts.scalars(window(compute=90), [], plan, 1, is_chief=True)
    assert found["megabytes_predicted/films"] == 2
    assert found["megabytes_predicted_by_road/allgather"] == 5
    assert "megabytes_predicted/words" not in found
    assert found["partitions/words"] == 4 and "partitions/films" not in found
    others = charts.scalars(window(compute=90), [], plan, 1, is_chief=False)
    assert not [tag for tag in others if "predicted/" in tag or "partitions/" in tag]


def test_the_load_of_a_server_is_a_share_of_what_is_pushed_to_servers():
    plan = [
        {"variable": "words", "road": "servers", "home": "dedicated", "partitions": 2},
        {"variable": "films", "road": "allgather", "home": "workers", "partitions": 1},
    ]
    loads = [
        TableLoad("words", np.array([[3, 1]]), (1, 0)),
        TableLoad("films", np.array([[9]]), (0,)),
    ]
    servers = [ServerAccount(7_000_000, None), ServerAccount(8_000_000, 0.5)]
    found = charts.scalars(window(compute=90), loads, plan, 1, True, servers)
    assert found["server_load/server-0"] == 0.25
    assert found["server_load/server-1"] == 0.75
    assert found["server_memory_mb/server-0"] == 7
    assert found["server_busy_cores/server-1"] == 0.5
    assert "server_busy_cores/server-0" not in found


@pytest.mark.parametrize("partitions", [1, 2, 100])
def test_any_number_of_partitions_can_be_drawn(partitions):
    counts = np.zeros((32, partitions), np.int64)
    empty = load_picture.draw(TableLoad("words", counts, (0,) * partitions))
    counts[0, 0] = 5
    full = load_picture.draw(TableLoad("words", counts, (0,) * partitions))
    assert empty.size == full.size
    assert empty.tobytes() != full.tobytes()
