"""What a server refuses before it starts TensorFlow."""

import socket

import pytest

from keras_parallax.cluster.addresses import free_port, reach, split_address
from keras_parallax.errors import ClusterError, ConfigError
from keras_parallax.servers import serve


def test_a_port_in_use_is_refused_with_its_holder():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ClusterError, match=f"Port {port} is in use by process"):
            serve.serve([f"127.0.0.1:{port}"], 0)


def test_a_public_address_is_refused(monkeypatch):
    monkeypatch.delenv(serve.ALLOW_PUBLIC_VARIABLE, raising=False)
    with pytest.raises(ClusterError, match="public address 8.8.8.8:2222"):
        serve.serve(["8.8.8.8:2222"], 0)


def test_a_private_address_is_warned_of(capsys):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        with pytest.raises(ClusterError, match="in use"):
            serve.serve([f"10.0.0.7:{holder.getsockname()[1]}"], 0)
    assert "WARNING: it listens on 10.0.0.7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "A server needs its address"),
        (["--port", "0"], "An address is written"),
        (["--addresses", "a:1,b"], "Received: 'b'"),
        (["--addresses", "a:1", "--index", "1"], "index=1"),
        (["--addresses", "a:1", "--port", "1"], "not both"),
    ],
)
def test_bad_arguments_get_status_2(arguments, expected, capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert serve.main(arguments) == 2
    assert expected in capsys.readouterr().err


def test_reach_tells_loopback_private_and_public_apart():
    assert reach("127.0.0.1") == reach("::1") == "loopback"
    assert reach("10.0.0.7") == "private"
    assert reach("8.8.8.8") == "public"


@pytest.mark.parametrize("address", ["a", "a:", ":1", "a:0", "a:65536", "a/b:1", None])
def test_addresses_need_a_host_and_a_port(address):
    with pytest.raises(ConfigError, match="Received"):
        split_address(address)
    assert split_address("[::1]:22") == ("::1", 22)
    assert 0 < free_port() < 65536
