"""In asynchronous training nobody waits for ever for who does something else."""

import pytest

from tests.multiprocess import models
from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess


def test_what_one_worker_does_alone_waits_for_nobody(tmp_path):
    results = run_job("apart", tmp_path, "works", workers=2, servers=1).check().results
    chief, other = results
    assert "tokens/s on this worker" in chief["summary"]
    assert other["summary"] == ""
    for result in results:
        assert result["predicted"] == models.BATCH * models.STEPS
        assert result["falls"]
        assert result["refused"].startswith("`strategy.reduce` inside of a")
        assert result["total"] == 2.0


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("asks", "Worker 0 waits for all workers for strategy.sparsity()"),
        ("fewer_steps", "worker 0 for ever, which `max_staleness` holds back"),
        ("predicts", "worker 1 for ever, which has left the job"),
    ],
)
def test_who_would_wait_for_ever_says_for_whom(what, said, tmp_path):
    job = run_job("apart", tmp_path, what, workers=2, servers=1)
    assert job.returncode != 0
    assert said in job.stderr
