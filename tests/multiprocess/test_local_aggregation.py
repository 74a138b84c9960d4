"""Workers of two machines, which stand side by side at two loopback addresses."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from keras_parallax.cluster.addresses import free_ports
from tests.multiprocess import models
from tests.multiprocess.harness import PROGRAMS
from tests.multiprocess.marked import MARK, assert_none_left

pytestmark = pytest.mark.multiprocess

MACHINES = ("127.0.0.1", "127.0.0.2")
WORKERS = 4
STEPS = 8


def environments(servers):
    """TF_CONFIG of each task; the workers alternate between the machines."""
    ports = free_ports(WORKERS + servers)
    addresses = [f"{MACHINES[n % 2]}:{port}" for n, port in enumerate(ports)]
    cluster = {"worker": addresses[:WORKERS]}
    if servers:
        cluster["ps"] = addresses[WORKERS:]
    for kind, tasks in cluster.items():
        for index in range(len(tasks)):
            task = {"type": kind, "index": index}
            yield {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


@pytest.fixture(scope="module")
def twin():
    """Weights and slots of the dense twin in one process."""
    model = models.build_deep(dense=True)
    optimizer = models.OPTIMIZERS["global_clipnorm"]()
    model.compile(optimizer, "mse", jit_compile=False)
    model.set_weights(models.start_weights(model))
    x, y = (array[: STEPS * models.BATCH] for array in models.data())
    model.fit(x, y, batch_size=models.BATCH, shuffle=False, verbose=0)
    return [np.asarray(v) for v in (*model.weights, *optimizer.variables[2:])]


@pytest.mark.parametrize(
    ("home", "servers"), [("peers", 0), ("dedicated", 2)], ids=["peers", "dedicated"]
)
def test_a_row_leaves_its_machine_once(home, servers, twin, tmp_path):
    program = [sys.executable, str(PROGRAMS / "local_aggregation.py")]
    mark = str(tmp_path)
    running = [
        subprocess.Popen(
            [*program, str(tmp_path), home, str(STEPS)],
            env={**os.environ, "PYTHONWARNINGS": "ignore", MARK: mark, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for env in environments(servers)
    ]
    try:
        outputs = [process.communicate(timeout=280)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * len(running), outputs
    assert_none_left(mark)

    crossed = {"True": 0, "False": 0}
    for rank in range(WORKERS):
        result = json.loads((tmp_path / f"result-{rank}.json").read_text())
        assert result["servers"] == servers
        for aggregation, total in crossed.items():
            found = result[aggregation]
            assert found["home"] == home
            assert found["aggregates"] == (aggregation == "True")
            crossed[aggregation] = total + found["sent"] + found["received"]
    assert 0 < crossed["True"] < crossed["False"]

    for aggregation in crossed:
        with np.load(tmp_path / f"{aggregation}.npz") as saved:
            states = [saved[key] for key in saved.files]
        for state, expected in zip(states, twin, strict=True):
            np.testing.assert_allclose(state, expected, rtol=1e-4, atol=1e-6)
