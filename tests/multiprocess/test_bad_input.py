"""What users get wrong is a clear error, on every worker, and ends the job."""

import json
import os
import subprocess
import sys

import pytest

from tests.multiprocess.harness import run_job
from tests.multiprocess.marked import MARK, assert_none_left

pytestmark = pytest.mark.multiprocess


def _run(folder, mistake, servers=0):
    mark = str(folder)
    job = run_job(
        "fault_input", folder, mistake, workers=2, servers=servers, environ={MARK: mark}
    )
    assert_none_left(mark)
    return job


def _last(job):
    return job.stderr.splitlines()[-1]


@pytest.fixture(scope="module", params=[0, 1], ids=["peers", "dedicated"])
def mistakes(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    return _run(folder, "in_scope", request.param)


def test_an_id_beyond_the_table_names_table_bound_and_id(mistakes):
    assert mistakes.returncode == 1
    line = _last(mistakes)
    # With its exit status, or the step, where its end takes longer than its report.
    assert line.startswith("keras-parallax: worker 1 failed")
    assert line.endswith(
        ": InvalidArgumentError: An id looked up in words/embeddings is outside of the "
        "table. Expected ids in [0, 53). Received, among others: [60]"
    )
    first = next(line for line in mistakes.stderr.splitlines() if "Traceback" in line)
    assert first.startswith("[worker 1] ")


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("built outside, sgd", "Move the line that builds the model into"),
        ("built outside, adagrad", "Move the line that builds the model into"),
        ("compiled outside, sgd", "Move the line `model.compile(...)`"),
        ("compiled outside, adagrad", "Move the line `model.compile(...)`"),
        ("float ids", "lookup/table are looked up by integer ids. Received ids of"),
    ],
)
def test_a_mistake_is_an_error_on_every_worker(mistakes, mistake, expected):
    for result in mistakes.results:
        kind, _, text = result[mistake].partition(": ")
        assert kind == ("TableError" if mistake == "float ids" else "ScopeError")
        assert expected in text


def test_a_route_that_nothing_takes_is_warned_of(mistakes):
    for rank in (0, 1):
        line = next(
            line
            for line in mistakes.stderr.splitlines()
            if line.startswith(f"[worker {rank}]") and "'*typo*'" in line
        )
        assert "No variable's path matches" in line
        assert "lookup/table" not in line.partition("The paths are")[0]


def test_training_outside_of_the_scope_is_warned_of(tmp_path):
    job = _run(tmp_path, "out_of_scope").check()
    for rank in (0, 1):
        said = [s for s in job.stderr.splitlines() if s.startswith(f"[worker {rank}]")]
        assert any("No trainable variable was created in the scope" in s for s in said)


def test_a_strategy_made_too_late_says_which_line_to_move(tmp_path):
    job = _run(tmp_path, "too_late", servers=1)
    assert job.returncode == 1
    assert "ScopeError: ParallaxStrategy() was made after TensorFlow" in _last(job)
    assert "Move the line `strategy = " in _last(job)
    for rank in (0, 1):
        assert f"[worker {rank}] keras_parallax.errors.ScopeError: " in job.stderr


def test_horovod_missing_from_a_worker(tmp_path):
    job = _run(tmp_path, "without_horovod")
    assert job.returncode == 1
    for expected in ("needs Horovod built", "`keras-parallax build-horovod`"):
        assert expected in _last(job)


def test_horovod_missing_from_the_launcher(tmp_path):
    (tmp_path / "horovod.py").write_text("raise ImportError('broken')\n")
    paths = [str(tmp_path), *filter(None, sys.path)]
    command = [sys.executable, "-m", "keras_parallax.cli.main", "run", "-np", "2"]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", "print('started')"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "`keras-parallax build-horovod`" in done.stderr


WORKERS = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
MALFORMED = {
    "{worker: 1": "TF_CONFIG is not JSON",
    json.dumps({"cluster": WORKERS}): "no 'task' object",
    json.dumps({"cluster": {"ps": ["h:1"]}, "task": {"type": "ps", "index": 0}}): (
        "The cluster has no worker"
    ),
    json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 2}}): (
        "The task is worker 2, but the cluster has 2 tasks"
    ),
    json.dumps({"cluster": WORKERS, "task": {"type": "boss", "index": 0}}): (
        "Unknown job 'boss'"
    ),
    json.dumps(
        {"cluster": {"worker": ["h:1", "h:1"]}, "task": {"type": "worker", "index": 0}}
    ): "The address 'h:1' appears more than once",
}
TRY_EACH = """
import json, os, sys
import keras_parallax as kp
from tensorflow.python.eager import context

for text in json.loads(sys.argv[1]):
    os.environ["TF_CONFIG"] = text
    try:
        kp.ParallaxStrategy()
    except ValueError as error:
        assert not context.context()._context_handle
        print(json.dumps(str(error)))
"""


def test_a_malformed_tf_config_is_shown_before_tensorflow_starts():
    done = subprocess.run(
        [sys.executable, "-c", TRY_EACH, json.dumps(list(MALFORMED))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(messages) == len(MALFORMED)
    for message, (text, expected) in zip(messages, MALFORMED.items(), strict=True):
        assert expected in message
        assert message.endswith(f"Received: TF_CONFIG={text}")
