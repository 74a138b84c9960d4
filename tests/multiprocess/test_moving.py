"""Tables that move between two steps take all they have with them."""

import json

import numpy as np
import pytest

from tests.multiprocess.harness import run_job
from tests.multiprocess.test_equality import oracle

pytestmark = pytest.mark.multiprocess

JOBS = [
    pytest.param(2, 0, "peers", ["allgather", "allreduce", "servers", 7], id="peers"),
    pytest.param(
        2, 2, "dedicated", [7, 1, "allreduce", "allgather", "servers"], id="dedicated"
    ),
    pytest.param(1, 0, "in_process", [1, 7], id="in-process"),
]


@pytest.mark.parametrize(("workers", "servers", "kind", "moves"), JOBS)
def test_training_goes_on_as_if_nothing_had_moved(
    workers, servers, kind, moves, tmp_path
):
    name = "ftrl"  # Two slots, which tell more than one.
    job = run_job(
        "moving",
        tmp_path,
        kind,
        name,
        json.dumps(moves),
        workers=workers,
        servers=servers,
    ).check()
    with np.load(tmp_path / "states.npz") as saved:
        found = [saved[key] for key in saved.files]
    for state, wanted in zip(found, oracle(name), strict=True):
        np.testing.assert_allclose(state, wanted, rtol=1e-4, atol=1e-6)
    for place, move in zip(job.results[0]["places"], ["servers", *moves], strict=True):
        count = move if isinstance(move, int) else 3
        on_servers = f"servers ({kind}, {count} partitions)"
        wanted = on_servers if move in ("servers", count) else move
        assert set(place) == {wanted}
    assert len(job.results[0]["changes"]) == 2 * len(moves)
    assert all(result == job.results[0] for result in job.results)
