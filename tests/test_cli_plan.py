"""`keras-parallax plan`: a model file in, a plan for a cluster out."""

import json
import subprocess
import sys

import pytest

from keras_parallax.cli.main import build_parser, main

MODEL = """
import keras
import numpy as np

random = np.random.default_rng(0)


def build_model():
    # 4 GB, and twice that with the optimizer's slot.
    model = keras.Sequential(
        [
            keras.Input((8,), dtype="int32"),
            keras.layers.Embedding(10_000_000, 100, name="words"),
            keras.layers.Flatten(),
            keras.layers.Dense(1, name="top"),
        ],
        name="model",
    )
    model.compile("adagrad", "mse")
    return model


def sample_batch():
    ids = random.integers(0, 10_000_000, (64, 8)).astype("int32")
    return ids, np.zeros((64, 1), "float32")


if __name__ == "__main__":
    raise SystemExit("trained")
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def arguments(model, *more):
    return ["plan", "--workers", "8", "--bandwidth", "1Gbit", *more, str(model)]


def test_a_plan_for_a_cluster_that_is_not_there(model):
    """In a process of its own, whose memory is looked at."""
    program = (
        "import resource, sys; from keras_parallax.cli.main import main; "
        "status = main(sys.argv[1:]); "
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "print('peak', peak, file=sys.stderr); sys.exit(status)"
    )
    more = ["--machines", "4", "--latency", "50us", "--samples", "3", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments(model, *more)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["workers"], found["machines"]) == (8, 4)
    assert found["network"]["latency_s"] == pytest.approx(50e-6)
    table, *dense = found["variables"]
    assert table["variable"] == "model/words/embeddings"
    assert (table["gradient"], table["road"]) == ("sparse", "servers")
    # 512 ids of ten million, hardly any of them twice.
    assert table["alpha"] == pytest.approx(5.12e-5, rel=0.01)
    assert table["alpha_all"] == pytest.approx(8 * table["alpha"], rel=0.05)
    assert {entry["road"] for entry in dense} == {"allreduce"}
    seconds = {system["name"]: system["seconds"] for system in found["systems"]}
    assert seconds["hybrid"] < seconds["allreduce"]
    peak_kib = int(done.stderr.split("peak ")[-1])
    assert peak_kib < 2_000_000


def test_printed_for_people(model, capsys):
    assert main(arguments(model, "--compute-seconds", "0.25", "--samples", "1")) == 0
    printed = capsys.readouterr().out
    assert "8 workers on 8 machines, 1 Gbit/s, 100 us latency" in printed
    assert "a step computes 250 ms" in printed
    assert "model/words/embeddings: a worker touches" in printed
    assert "hybrid" in printed and "sparse gradients made dense" in printed


def test_ids_that_never_change_are_pointed_out(model, capsys):
    text = MODEL.replace("random.integers", "np.random.default_rng(0).integers")
    model.write_text(text)
    assert main(arguments(model)) == 0
    assert "gave the same ids each time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "Missing: build_model, sample_batch"),
        (MODEL.replace("return model", "return 3"), "Received: 3"),
        (
            MODEL.replace('model.compile("adagrad", "mse")', ""),
            "a compiled Keras model",
        ),
        (MODEL.replace("return ids,", "return 1, 2, 3, ids,"), "Received: tuple of 5"),
    ],
)
def test_what_is_no_model_file_is_explained(model, capsys, text, message):
    model.write_text(text)
    assert main(arguments(model)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--machines", "3"], "equally many"),
        (["--bandwidth", "fast"], "such as 100Gbit"),
        (["--latency", "1"], "such as 50us"),
        (["--network", "speed=1"], "Received: 'speed=1'"),
        (["--samples", "0"], "--samples 0"),
    ],
)
def test_wrong_arguments(tmp_path, capsys, more, message):
    assert main(arguments(tmp_path / "none.py", *more)) == 2
    assert message in capsys.readouterr().err


def test_a_missing_file(tmp_path, capsys):
    assert main(arguments(tmp_path / "none.py")) == 2
    assert "There is no file" in capsys.readouterr().err


def test_help_tells_what_a_model_file_is(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["plan", "--help"])
    printed = capsys.readouterr().out
    assert "build_model()" in printed and "sample_batch()" in printed
