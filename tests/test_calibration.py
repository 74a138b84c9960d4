"""The network's figures: where they come from, and what measured times mean."""

import json

import pytest

from keras_parallax.cluster.job import Job
from keras_parallax.cluster.topology import resolve
from keras_parallax.errors import ConfigError
from keras_parallax.plan import calibration
from keras_parallax.plan.calibration import ALONE, network_of
from keras_parallax.plan.network import NETWORK_VARIABLE, Network


class TwoAlike(Job):
    """Worker 0 of two that say the same."""

    def __init__(self):
        super().__init__(resolve({}))
        self.size = 2

    def share(self, value):
        return value

    def gather(self, value):
        return [value, value]


class Seat:
    machines = None
    connection = None

    def __init__(self, job):
        self.job = job


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_PARALLAX_CACHE", str(tmp_path))
    monkeypatch.delenv(NETWORK_VARIABLE, raising=False)


@pytest.fixture
def measured(monkeypatch):
    """Counts how often the network was measured."""
    calls = []

    def measure(session, servers):
        calls.append(session)
        return Network(1e8 + len(calls), latency_s=1e-3)

    monkeypatch.setattr(calibration, "measure", measure)
    return calls


def test_one_worker_measures_nothing(measured):
    assert network_of(Seat(Job(resolve({})))) == ALONE
    assert not measured


def test_measured_once_and_kept(measured, tmp_path):
    first = network_of(Seat(TwoAlike()))
    assert network_of(Seat(TwoAlike())) == first
    assert len(measured) == 1
    (path,) = (tmp_path / "networks").iterdir()
    assert Network.of(json.loads(path.read_text())) == first


@pytest.mark.parametrize("broken", ["", "{}", "[]", '{"bandwidth_bytes_per_s": -1}'])
def test_what_cannot_be_read_is_measured_again(measured, tmp_path, broken):
    network_of(Seat(TwoAlike()))
    (path,) = (tmp_path / "networks").iterdir()
    path.write_text(broken)
    assert network_of(Seat(TwoAlike())).bandwidth_bytes_per_s == 1e8 + 2


def test_measured_anew_if_asked_to(measured, monkeypatch):
    network_of(Seat(TwoAlike()))
    monkeypatch.setenv(NETWORK_VARIABLE, "measure")
    assert network_of(Seat(TwoAlike())).bandwidth_bytes_per_s == 1e8 + 2


def test_a_cache_that_cannot_be_written_is_no_failure(measured, tmp_path):
    (tmp_path / "networks").write_text("in the way")
    network_of(Seat(TwoAlike()))
    assert len(measured) == 1


def test_given_figures_are_taken(measured, monkeypatch):
    network = network_of(Seat(TwoAlike()), "bandwidth=1Gbit,latency=2ms")
    assert (network.bandwidth_bytes_per_s, network.latency_s) == (125e6, 2e-3)
    assert network_of(Seat(TwoAlike()), Network(7.0)) == Network(7.0)
    monkeypatch.setenv(NETWORK_VARIABLE, "bandwidth=8Gbit,latency=1us")
    assert network_of(Seat(TwoAlike())).bandwidth_bytes_per_s == 1e9
    assert not measured


def test_some_given_the_rest_measured(measured):
    network = network_of(Seat(TwoAlike()), "bandwidth=1Gbit")
    assert (network.bandwidth_bytes_per_s, network.latency_s) == (125e6, 1e-3)
    # What was given is not kept as though it had been measured.
    assert network_of(Seat(TwoAlike())).bandwidth_bytes_per_s == 1e8 + 1


def test_what_cannot_be_read_is_refused(measured):
    with pytest.raises(ConfigError, match="bandwidth=1Gbit"):
        network_of(Seat(TwoAlike()), "fast")


FOUND = {"small": 2e-3, "ring": 2.6e-3, "large": 1e8, "memory": 3e9}


def test_times_of_workers_each_on_a_machine_of_its_own():
    network = calibration._network_from(FOUND, workers=4, machines=4, each=1)
    # A ring of four takes six messages, an all-to-all one.
    assert network.latency_s == pytest.approx(0.6e-3 / 5)
    assert network.call_s + network.latency_s == pytest.approx(2e-3)
    assert network.bandwidth_bytes_per_s == pytest.approx(1e8)
    assert network.memory_bytes_per_s == 3e9


def test_times_of_workers_of_one_machine():
    network = calibration._network_from(FOUND, workers=4, machines=1, each=4)
    assert network.local_bandwidth_bytes_per_s == pytest.approx(4e8)
    assert network.local_latency_s == network.latency_s


def test_workers_of_a_machine_share_its_link():
    found = {**FOUND, "near_small": 2e-3, "near_large": 1e9}
    network = calibration._network_from(found, workers=4, machines=2, each=2)
    # Of three pieces that a worker sends two leave the machine; it has two workers.
    assert network.bandwidth_bytes_per_s == pytest.approx(1e8 * 2 * 2 / 3)
    assert network.local_bandwidth_bytes_per_s == pytest.approx(2e9)
    assert network.local_latency_s <= network.latency_s


def test_a_trip_to_servers_is_counted_without_the_way():
    def trip(seconds):
        found = {**FOUND, "server_trip": seconds}
        return calibration._network_from(found, 4, 4, 1).server_trip_s

    latency = 0.6e-3 / 5
    assert trip(5e-3) == pytest.approx(5e-3 - 2 * latency)
    assert trip(0.3e-3) == pytest.approx(0.15e-3)  # Never nothing.


def test_a_ring_that_was_quicker_means_no_latency():
    found = {**FOUND, "ring": 1e-3}
    network = calibration._network_from(found, workers=4, machines=4, each=1)
    assert network.latency_s == 0
    assert network.call_s == pytest.approx(2e-3)
