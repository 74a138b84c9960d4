"""One script, started in each of the ways there are, trains alike in all of them."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from keras_parallax.cluster.processes import free_ports
from tests.multiprocess.harness import PROGRAMS
from tests.multiprocess.marked import MARK, assert_none_left

pytestmark = pytest.mark.multiprocess

PYTHON = [sys.executable, str(PROGRAMS / "start.py")]
LAUNCHER = [sys.executable, "-m", "keras_parallax.cli.main", "run", "-np", "2"]
HOROVODRUN = [str(pathlib.Path(sys.executable).with_name("horovodrun")), "--gloo"]


def _cluster():
    """TF_CONFIG of two workers and a server."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    cluster = {"worker": addresses[:2], "ps": addresses[2:]}
    for kind, index in (("worker", 0), ("worker", 1), ("ps", 0)):
        task = {"type": kind, "index": index}
        yield {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


WAYS = {
    # Commands, with what each adds to the environment; workers, servers and home.
    "python": ([(PYTHON, {})], (1, 0, "in_process")),
    "launcher": ([([*LAUNCHER, "--", *PYTHON], {})], (2, 0, "peers")),
    "launcher-servers": (
        [([*LAUNCHER, "--servers", "1", "--", *PYTHON], {})],
        (2, 1, "dedicated"),
    ),
    "horovodrun": ([([*HOROVODRUN, "-np", "2", *PYTHON], {})], (2, 0, "peers")),
    "tf_config": ([(PYTHON, env) for env in _cluster()], (2, 1, "dedicated")),
}
# The first that ran: the others train to the same losses.
reference: dict[str, list] = {}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_script_trains_alike(way, tmp_path):
    commands, expected = WAYS[way]
    mark = str(tmp_path)
    running = [
        subprocess.Popen(
            [*command, str(tmp_path)],
            env={**os.environ, "PYTHONWARNINGS": "ignore", MARK: mark, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, env in commands
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * len(running), outputs
    assert_none_left(mark)
    for rank in range(expected[0]):
        result = json.loads((tmp_path / f"result-{rank}.json").read_text())
        assert (result["workers"], result["servers"], result["home"]) == expected
        losses = reference.setdefault("losses", result["losses"])
        np.testing.assert_allclose(result["losses"], losses, rtol=1e-4)
        np.testing.assert_allclose(*result["losses"], rtol=1e-4)
    assert losses[0][1] < losses[0][0]
    if way != "horovodrun":
        assert "result: {}" in outputs[0][0].splitlines()
    assert not any("Failed to" in err for _, err in outputs), outputs
