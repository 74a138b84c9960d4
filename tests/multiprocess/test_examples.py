"""The examples run, alone and as a job, and end with what they promise."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.multiprocess.harness import left_running

pytestmark = pytest.mark.multiprocess

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
# One epoch of so small a model takes seconds, and learns more than word counts.
SMALL = ["--epochs", "1", "--embedding", "64", "--units", "64"]


def run(*command):
    """Output of a command that ends well."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=200,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def result_of(output):
    """The result that an example's last line tells."""
    last = output.splitlines()[-1]
    assert last.startswith("result: "), output
    return json.loads(last.removeprefix("result: "))


@pytest.mark.parametrize(
    ("workers", "servers", "home"),
    [
        pytest.param(1, 0, "in_process", id="alone"),
        pytest.param(2, 1, "dedicated", id="2-workers-1-server"),
    ],
)
def test_the_language_model_ends_with_its_result(workers, servers, home):
    script = EXAMPLES / "language_model.py"
    launcher = []
    if workers > 1:
        launcher = ["-m", "keras_parallax.cli.main", "run", "-np", workers]
        launcher += ["--servers", servers, "--", sys.executable]
    result = result_of(run(*launcher, script, *SMALL))
    assert (result["workers"], result["servers"]) == (workers, servers)
    assert result["words_per_second"] > 0
    assert 1 < result["test_perplexity"] < result["unigram_perplexity"]
    plan = {entry["variable"]: entry for entry in result["plan"]}
    for table in ("embedding/embeddings", "softmax/kernel", "softmax/bias"):
        assert (plan[table]["gradient"], plan[table]["home"]) == ("sparse", home)
    assert {plan[v]["road"] for v in plan if v.startswith("lstm/")} == {"allreduce"}
    assert not left_running(str(script))
