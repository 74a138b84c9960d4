"""The contract of homes, kept by the home in this process."""

import pytest

from keras_parallax.cluster.job import Job
from keras_parallax.cluster.topology import resolve
from keras_parallax.servers.in_process import InProcessHome
from tests.home_contract import CHECKS, Seat


@pytest.fixture(scope="module")
def seat():
    home = InProcessHome("/CPU:0")
    yield Seat(home, Job(resolve()))
    home.close()


@pytest.mark.parametrize("clause", CHECKS)
def test_in_process_home(seat, clause):
    CHECKS[clause](seat)


def test_partitions_live_on_the_device_of_the_home(seat):
    table = seat.table((3,), 7)
    assert {partition.device for partition in table.partitions} == {"/CPU:0"}
