"""What is said of a network, read and checked."""

import pytest

from keras_parallax.errors import ConfigError
from keras_parallax.plan.network import (
    Cluster,
    Network,
    parse_bandwidth,
    parse_duration,
    parse_network,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100Gbit", 12.5e9),
        ("200 Mbps", 25e6),
        ("1.2GB/s", 1.2e9),
        ("1Gb", 125e6),
        ("1e3MB", 1e9),
    ],
)
def test_bandwidth_in_bits_and_bytes(text, expected):
    assert parse_bandwidth(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("50us", 50e-6), ("0.1 ms", 1e-4), ("2s", 2.0), ("0s", 0)]
)
def test_duration(text, expected):
    assert parse_duration(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "fast", "100", "0Gbit", "-1Gbit", "1..2Gbit"])
def test_a_bandwidth_without_unit_or_value_is_refused(text):
    with pytest.raises(ConfigError, match="such as 100Gbit"):
        parse_bandwidth(text)


@pytest.mark.parametrize("text", ["", "1", "1min", "-1s", "."])
def test_a_duration_without_unit_or_value_is_refused(text):
    with pytest.raises(ConfigError, match="such as 50us"):
        parse_duration(text)


def test_a_network_is_changed_in_what_is_named():
    network = Network(1e9).changed("bandwidth=1Gbit, latency=0.1ms, memory=2GB/s")
    assert network.bandwidth_bytes_per_s == 125e6
    assert network.latency_s == pytest.approx(1e-4)
    assert network.memory_bytes_per_s == 2e9
    assert network.call_s == Network(1e9).call_s
    assert parse_network("") == {}


def test_an_unknown_figure_is_refused():
    with pytest.raises(ConfigError, match="Received: 'speed=1Gbit'"):
        parse_network("speed=1Gbit")


@pytest.mark.parametrize(
    "figures", [{"bandwidth_bytes_per_s": 0}, {"latency_s": -1.0}, {"call_s": 1e999}]
)
def test_figures_that_cannot_be(figures):
    with pytest.raises(ConfigError, match=next(iter(figures))):
        Network(**{"bandwidth_bytes_per_s": 1e9, **figures})


def test_figures_round_trip_and_ignore_strangers():
    network = Network(1e9, latency_s=1e-3)
    assert Network.of({**network.to_dict(), "from_later": 1.0}) == network


@pytest.mark.parametrize(("workers", "machines"), [(0, 1), (3, 2), (2, 0)])
def test_machines_share_workers_evenly(workers, machines):
    with pytest.raises(ConfigError, match="equally many"):
        Cluster(workers, machines, Network(1e9))


def test_aggregation_needs_several_machines_of_several_workers():
    network = Network(1e9)
    assert Cluster(4, 2, network).aggregates
    assert not Cluster(4, 2, network, local_aggregation=False).aggregates
    assert not Cluster(4, 4, network).aggregates
    assert not Cluster(4, 1, network).aggregates
