"""The contract of homes, kept by those that several workers share."""

import pytest

from tests.home_contract import CHECKS
from tests.multiprocess.harness import run_job

pytestmark = pytest.mark.multiprocess

# Home, workers, servers, devices that hold partitions.
HOMES = [
    pytest.param("dedicated", 2, 2, 2, id="dedicated"),
    pytest.param("dedicated", 2, 1, 1, id="dedicated-shared"),
    pytest.param("dedicated", 1, 1, 1, id="dedicated-alone"),
    pytest.param("peers", 2, 0, 2, id="peers"),
    pytest.param("copies", 2, 0, 1, id="copies"),
]


@pytest.mark.parametrize(("home", "workers", "servers", "devices"), HOMES)
def test_every_clause_is_kept_on_every_worker(
    home, workers, servers, devices, tmp_path
):
    job = run_job(
        "homes_on_servers", tmp_path, home, workers=workers, servers=servers
    ).check()
    for result in job.results:
        assert result.pop("home") == {"copies": "workers"}.get(home, home)
        assert result.pop("devices") == devices
        assert result == dict.fromkeys(CHECKS, "kept")
