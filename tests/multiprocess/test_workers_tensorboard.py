"""ParallaxTensorBoard on two workers: a file each, with numbers that fit together."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from tests.multiprocess.harness import run_job
from tests.multiprocess.models import BATCH, LENGTH, STEPS

pytestmark = pytest.mark.multiprocess


def last(folder, rank):
    """Last value of each tag that worker `rank` has written."""
    found = EventAccumulator(str(folder / "logs" / "parallax" / f"worker-{rank}"))
    found.Reload()
    return {
        tag: (
            found.Tensors(tag)[-1].step,
            make_ndarray(found.Tensors(tag)[-1].tensor_proto),
        )
        for tag in found.Tags()["tensors"]
    }


def check_servers(values, servers, is_chief):
    """Worker 0 tells what each server takes; each worker, what it has sent there."""
    taken = [tag for tag in values if tag.startswith("server_memory_mb/")]
    assert len(taken) == (servers if is_chief else 0)
    for tag in taken:
        assert float(values[tag][1]) > 50
        assert float(values[tag.replace("memory_mb", "busy_cores")][1]) >= 0
    kind = "server" if servers else "worker"
    shares = [float(values[f"server_load/{kind}-{n}"][1]) for n in range(2)]
    assert sum(shares) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("servers", [0, 2], ids=["peers", "2-servers"])
def test_each_worker_writes_what_it_has_measured(tmp_path, servers):
    job = run_job("watching", tmp_path, "all", workers=2, servers=servers).check()
    for rank, result in enumerate(job.results):
        reading, traffic = result["reading"], result["traffic"]
        assert reading["steps"] == reading["told_steps"] == STEPS
        assert reading["examples"] == BATCH / 2 * STEPS
        assert reading["tokens"] == LENGTH * reading["examples"]
        # The others' numbers come a step late.
        assert reading["all_examples"] == BATCH * (STEPS - 1)
        assert 0 < reading["wait_seconds"] < reading["travel_seconds"]
        assert reading["travel_seconds"] < reading["step_seconds"]
        values = last(tmp_path, rank)
        step, sent = values["megabytes_a_step/tables"]
        assert step == STEPS
        whole = (traffic["sent_bytes"] + traffic["received_bytes"]) / STEPS / 1e6
        assert float(sent) == pytest.approx(whole, rel=0.3)
        for table in traffic["tables"]:
            _, alpha = values[f"alpha/{table['variable']}"]
            assert float(alpha) == pytest.approx(table["alpha"], rel=0.3)
        assert all(f"step_ms/{phase}" in values for phase in ("data", "push", "wait"))
        # Only worker 0 tells of all, and of the plan.
        assert ("plan" in values) == (rank == 0)
        assert ("throughput/all_examples_per_second" in values) == (rank == 0)
        check_servers(values, servers, is_chief=rank == 0)
    assert job.stdout.count("keras-parallax: ") == 1
    assert "tokens/s" in job.stdout
    first, second = (result["rate"] for result in job.results)
    assert first == pytest.approx(second, rel=0.5)


def test_callbacks_on_one_worker_alone_are_refused(tmp_path):
    job = run_job("watching", tmp_path, "one", workers=2)
    assert job.returncode != 0
    assert "the same callbacks on every worker" in job.stderr
