"""Emulated clusters: hosts that are shaped, counted, and gone afterwards."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from benchmarks import network
from benchmarks.cluster import EmulatedCluster, RunError
from benchmarks.network import Network, NetworkError

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

unavailable = network.why_unavailable() if sys.platform == "linux" else "no Linux"
emulated = pytest.mark.skipif(unavailable is not None, reason=str(unavailable))

# Sends so many bytes to the other host; without TensorFlow.
SENDER = """
import os, socket, time
from benchmarks.cluster import host_traffic, print_result

SIZE = 2_000_000
rank = int(os.environ["HOROVOD_RANK"])
if rank == 0:
    with socket.create_server(("", 5000)) as server:
        peer, _ = server.accept()
        received = sum(iter(lambda: len(peer.recv(1 << 16)), 0))
        peer.close()
    print_result({"name": socket.gethostbyname(socket.gethostname()), "got": received})
else:
    peer = socket.socket()
    while peer.connect_ex((os.environ["OTHER"], 5000)):
        time.sleep(0.05)
    before = host_traffic()
    start = time.perf_counter()
    with peer:
        peer.sendall(bytes(SIZE))
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
    seconds = time.perf_counter() - start
    sent = None if before is None else (host_traffic() - before).sent_bytes
    print_result({"sent": sent, "seconds": seconds})
"""

# A table and a dense layer, for a few steps.
TRAINING = """
import sys

import keras
import numpy as np
import keras_parallax as kp
from benchmarks.cluster import host_traffic, print_result

ROWS, WIDTH, BATCH, LENGTH, STEPS = 20_000, 32, 256, 10, 10
strategy = kp.ParallaxStrategy(
    servers=sys.argv[1], routes={"*/embeddings": "servers"}
)
random = np.random.default_rng(0)
x = random.integers(0, ROWS, (BATCH * STEPS, LENGTH)).astype("int32")
y = random.normal(size=(len(x), 1)).astype("float32")
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1024, "relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
how = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
model.fit(x[: 2 * BATCH], y[: 2 * BATCH], **how)
before = host_traffic()
history = model.fit(x, y, **how)
crossed = host_traffic() - before

workers = strategy.num_workers
shares = np.split(x, STEPS * workers)
rows = float(np.mean([len(np.unique(share)) for share in shares]))
print_result(
    {
        "servers": strategy.num_servers,
        "loss": history.history["loss"],
        "bytes_per_step": crossed.total_bytes / STEPS,
        "dense_bytes": 4 * sum(int(np.prod(w.shape)) for w in model.weights[1:]),
        "pulled_bytes": rows * WIDTH * 4,
    }
)
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script; returns the command that runs it."""

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return [sys.executable, str(path)]

    return write


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Lets scripts import what this process can import."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("KERAS_PARALLAX_GRACE_SECONDS", "1")


def networks_of(pid):
    """Names of the namespaces, links and files that belong to a process."""
    listed = subprocess.run(
        "ip netns; ip -o link; ls /etc/netns",
        shell=True,
        capture_output=True,
        text=True,
    ).stdout
    return re.findall(rf"kp{pid}-\d+(?:h\d+)?", listed)


@emulated
def test_a_link_has_its_rate_and_is_counted(script):
    with EmulatedCluster(hosts=2, rate_mbit=100) as cluster:
        assert "100 Mbit/s" in cluster.label
        run = cluster.run(script(SENDER), {"OTHER": cluster.hosts[0]}, 30)
        assert networks_of(os.getpid())
    receiver, sender = (worker.result for worker in run.workers)
    assert receiver == {"name": cluster.hosts[0], "got": 2_000_000}
    assert 2_000_000 < sender["sent"] < 2_200_000
    assert 0.14 < sender["seconds"] < 0.3  # 2 MB at 100 Mbit/s take 0.16 s.
    assert run.traffic[1].sent_bytes >= sender["sent"]
    assert run.traffic[0].received_bytes >= 2_000_000
    assert not networks_of(os.getpid())


@emulated
@pytest.mark.parametrize(("home", "servers"), [("dedicated", 2), ("peers", 0)])
def test_the_strategy_trains_on_two_hosts_of_two_workers(home, servers, script):
    with EmulatedCluster(hosts=2, workers_per_host=2, rate_mbit=1000) as cluster:
        run = cluster.run([*script(TRAINING), home], timeout_seconds=200)
    results = [worker.result for worker in run.workers]
    assert [worker.host for worker in run.workers] == [
        host for host in cluster.hosts for _ in range(2)
    ]
    assert {result["servers"] for result in results} == {servers}
    assert len({tuple(result["loss"]) for result in results}) == 1
    # A host's two workers pull and push half of their rows at the other host, which
    # does as much here: 2 workers x 1/2 x 2 ways, twice. Summing the gradients of a
    # host's workers first saves a little of it.
    sparse = 4 * results[0]["pulled_bytes"]
    # A ring of four workers crosses between the hosts once each way.
    dense = 2 * (2 * 3 / 4 * results[0]["dense_bytes"])
    for result in results:
        ratio = result["bytes_per_step"] / (sparse + dense)
        assert 0.5 < ratio < 1.5, ratio


@emulated
def test_a_failing_worker_ends_the_run_and_is_named(script):
    fails = """
        import os, time
        from keras_parallax.cluster.lifeline import Member
        rank = int(os.environ["HOROVOD_RANK"])
        Member.join(os.environ["KERAS_PARALLAX_LIFELINE"], "worker", rank)
        if rank == 1:
            raise ValueError("no such luck")
        time.sleep(60)
    """
    start = time.monotonic()
    with EmulatedCluster(hosts=2) as cluster:
        with pytest.raises(RunError, match=r"(?s)worker 1 failed.*no such luck"):
            cluster.run(script(fails), timeout_seconds=30)
    assert time.monotonic() - start < 15


@emulated
def test_a_run_that_is_not_over_in_time_is_ended(script):
    with EmulatedCluster(hosts=1) as cluster:
        with pytest.raises(RunError, match="Not over in time: worker 0"):
            cluster.run(script("import time; time.sleep(60)"), timeout_seconds=1)


@emulated
def test_what_a_killed_process_has_left_is_removed(script):
    holds = script("""
        import os, subprocess, time
        from benchmarks.network import Network
        with Network(hosts=2, rate_mbit=10) as network:
            command = network.command(1, ["sleep", "60"])
            sleeper = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            print("ready", sleeper.pid, flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen(holds, stdout=subprocess.PIPE, text=True) as owner:
        sleeper = int(owner.stdout.readline().split()[1])
        # What a living process owns, stays.
        assert not any(f"kp{owner.pid}-" in name for name in network.remove_leftovers())
        assert len(networks_of(owner.pid)) >= 5
        owner.send_signal(signal.SIGKILL)
    network.remove_leftovers()
    assert not networks_of(owner.pid)
    # It may wait for whoever reaps orphans here.
    assert not psutil.pid_exists(sleeper) or (
        psutil.Process(sleeper).status() == psutil.STATUS_ZOMBIE
    )


def test_without_root_the_cluster_is_on_loopback_and_says_so(script, monkeypatch):
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    with EmulatedCluster(hosts=2, rate_mbit=100) as cluster:
        assert not cluster.emulated
        assert "NOT SHAPED" in cluster.label
        run = cluster.run(script(SENDER), {"OTHER": cluster.hosts[0]}, 30)
    receiver, sender = (worker.result for worker in run.workers)
    assert receiver["got"] == 2_000_000
    assert (sender["sent"], run.traffic) == (None, None)
    with pytest.raises(NetworkError, match="needs root"):
        Network(hosts=2)


@emulated
def test_a_latency_is_made_or_refused(script):
    if network.why_unavailable(latency_ms=20) is not None:
        with pytest.raises(NetworkError, match="latency_ms needs the kernel's netem"):
            EmulatedCluster(hosts=2, latency_ms=20)
        return
    with EmulatedCluster(hosts=2, rate_mbit=100, latency_ms=20) as cluster:
        run = cluster.run(script(SENDER), {"OTHER": cluster.hosts[0]}, 30)
    # The rate alone would take 160 ms; there and back are four links.
    assert run.workers[1].result["seconds"] > 0.24


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"hosts": 0}, "1 to 64 hosts. Received: hosts=0"),
        ({"hosts": 2, "rate_mbit": 0}, "Received: rate_mbit=0, latency_ms=0"),
        ({"hosts": 2, "latency_ms": -1}, "Received: rate_mbit=None, latency_ms=-1"),
    ],
)
def test_a_network_that_cannot_be_is_refused(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        Network(**arguments)
