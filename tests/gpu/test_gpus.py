"""On a machine with a GPU: who takes which, where tables are, and the same results.

Skipped elsewhere. One GPU suffices for most of it; the rest says what it needs:

    python -m pytest tests/gpu
"""

import os
import pathlib

import numpy as np
import pytest

from keras_parallax.versions import horovod_or_explain
from tests.multiprocess.harness import run_job
from tests.multiprocess.test_equality import oracle

GPUS = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(not GPUS, reason="this machine has no GPU"),
]


def has_nccl():
    """Whether Horovod was built with NCCL."""
    return bool(horovod_or_explain().nccl_built())


def job_on_gpus(folder, kind, workers=1, servers=0):
    """What each worker tells, and the weights and slots that training ends with."""
    # All other tests hide the GPUs, by the environment.
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(GPUS)))}
    job = run_job(
        "on_gpu", folder, kind, workers=workers, servers=servers, environ=visible
    ).check()
    with np.load(folder / "states.npz") as saved:
        return job.results, [saved[key] for key in saved.files]


def assert_same_as_one_process(states):
    """One process with the dense gradient, which computes on the processor."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    for state, wanted in zip(states, oracle("adagrad"), strict=True):
        np.testing.assert_allclose(state, wanted, rtol=1e-3, atol=1e-5)


def test_one_worker_has_its_table_and_its_weights_on_the_gpu(tmp_path):
    (told,), states = job_on_gpus(tmp_path, "in_process")
    assert told["gpus"] == ["/physical_device:GPU:0"]
    assert told["growth"] == [True]
    assert all(device.endswith("GPU:0") for device in told["rows_on"])
    assert told["kernel_on"].endswith("GPU:0")
    assert_same_as_one_process(states)


def test_an_id_outside_of_the_table_is_an_error_there_too(tmp_path):
    (told,), _ = job_on_gpus(tmp_path, "in_process")
    assert "outside of the table" in told["refused"]


def test_servers_keep_tables_in_the_memory_of_their_machine(tmp_path):
    (told,), states = job_on_gpus(tmp_path, "dedicated", servers=1)
    assert told["kernel_on"].endswith("GPU:0")
    assert all("/job:ps/" in device for device in told["rows_on"])
    assert all(device.endswith("CPU:0") for device in told["rows_on"])
    assert_same_as_one_process(states)


@pytest.mark.skipif(GPUS == 0 or (GPUS == 1 and has_nccl()), reason="NCCL, one GPU")
def test_two_workers_exchange_rows_that_are_on_gpus(tmp_path):
    # By NCCL, if Horovod has it; else by way of the machine's memory, where two
    # workers may share a GPU.
    told, states = job_on_gpus(tmp_path, "peers", workers=2)
    names = [worker["gpus"] for worker in told]
    assert names == [[f"/physical_device:GPU:{rank % GPUS}"] for rank in range(2)]
    for worker in told:
        assert all(device.endswith("GPU:0") for device in worker["rows_on"])
    assert_same_as_one_process(states)


@pytest.mark.skipif(GPUS < 2, reason="NCCL needs a GPU for each worker")
def test_horovod_has_nccl_where_workers_have_gpus():
    assert has_nccl(), "HOROVOD_GPU_OPERATIONS=NCCL keras-parallax build-horovod"
