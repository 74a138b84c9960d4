"""A TF_CONFIG cluster finds itself, with no launcher."""

import json
import os
import subprocess
import sys

import pytest

from keras_parallax.cluster.processes import free_ports
from keras_parallax.cluster.threads import share_of_cores

pytestmark = pytest.mark.multiprocess

TASK = """
import os, time
from keras_parallax.cluster import rendezvous, topology

place = topology.resolve()
coordinator, member = rendezvous.bootstrap(place, timeout_seconds=20)
print(place.task, place.index, os.environ.get("HOROVOD_RANK"),
      os.environ.get("HOROVOD_SIZE"), os.environ.get("HOROVOD_LOCAL_RANK"),
      os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "none") != "none",
      os.environ.get("TF_NUM_INTRAOP_THREADS"))
while coordinator is not None and len(coordinator.members()) < 3:
    time.sleep(0.01)  # The job does not end before the server has seen it.
if place.task == "worker":
    again = topology.resolve()
    assert (again.rank, again.servers) == (place.rank, place.servers)
    assert member.leave(wait_for_end_seconds=20)
else:
    assert member.wait_end(20)
if coordinator is not None:
    coordinator.stop()
"""


def _start(cluster, kind, index):
    config = {"cluster": cluster, "task": {"type": kind, "index": index}}
    env = {
        **os.environ,
        "TF_CONFIG": json.dumps(config),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "KERAS_PARALLAX_GRACE_SECONDS": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", TASK],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_workers_and_servers_meet_at_worker_0():
    ports = free_ports(3)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    cluster = {"worker": addresses[:2], "ps": addresses[2:]}
    # Worker 0 last: the others wait for it.
    tasks = [_start(cluster, *t) for t in (("ps", 0), ("worker", 1), ("worker", 0))]
    try:
        outputs = [task.communicate(timeout=30)[0] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    assert [task.returncode for task in tasks] == [0, 0, 0], outputs
    assert outputs == [
        "ps 0 None None None False None\n",
        f"worker 1 1 2 1 True {share_of_cores(2)}\n",
        f"worker 0 0 2 0 True {share_of_cores(2)}\n",
    ]
