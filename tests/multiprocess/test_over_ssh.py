"""`keras-parallax run -H` on hosts that are network namespaces of this machine.

No ssh server runs in them: a command of the name `ssh`, first on the path, runs what
it is given in the namespace of the host. All else is what it is on real machines.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from benchmarks import network
from tests.multiprocess.harness import PROGRAMS
from tests.multiprocess.marked import MARK, assert_none_left

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(
        network.why_unavailable() is not None, reason=str(network.why_unavailable())
    ),
]

SSH = """\
#!{python}
import os, sys

host, words = None, sys.argv[1:]
# Options stand before and after the host; those that are given here take a value.
while host is None or words[0].startswith("-"):
    if words[0].startswith("-"):
        words = words[2:]
    else:
        host, words = words[0], words[1:]
namespace = {names}[host]
os.execvp("ip", ["ip", "netns", "exec", namespace, "bash", "-c", " ".join(words)])
"""


@pytest.mark.parametrize("home", ["peers", "dedicated"])
def test_workers_on_two_hosts(home, tmp_path):
    with network.Network(hosts=2) as hosts:
        names = dict(zip(hosts.addresses, hosts.names, strict=True))
        ssh = tmp_path / "ssh"
        ssh.write_text(
            textwrap.dedent(SSH.format(python=sys.executable, names=repr(names)))
        )
        ssh.chmod(0o755)
        where = ",".join(f"{address}:1" for address in hosts.addresses)
        command = [sys.executable, "-m", "keras_parallax.cli.main", "run", "-H", where]
        program = [sys.executable, str(PROGRAMS / "start.py"), str(tmp_path), home]
        env = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "ignore",
            MARK: str(tmp_path),
        }
        done = subprocess.run(
            hosts.command(0, [*command, "--", *program]),
            env=env,
            capture_output=True,
            text=True,
            timeout=150,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert_none_left(str(tmp_path))
    results = [
        json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in range(2)
    ]
    assert results[0] == results[1]
    servers = {"peers": 0, "dedicated": 2}[home]
    assert [results[0][k] for k in ("workers", "servers", "home")] == [2, servers, home]
    assert results[0]["losses"][0] == pytest.approx(results[0]["losses"][1], rel=1e-4)
