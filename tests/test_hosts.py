"""`keras-parallax run -H`: what Horovod's launcher is asked to do."""

import os
import subprocess
import sys

import pytest

from keras_parallax.cli.main import main
from keras_parallax.cluster import hosts
from keras_parallax.cluster.hosts import Host
from keras_parallax.errors import ConfigError

COMMAND = ["--", "python", "train.py", "--epochs", "3"]


@pytest.fixture
def executed(monkeypatch):
    """Command lines that would have become Horovod's launcher."""
    lines = []
    monkeypatch.setattr(hosts.Host, "is_here", lambda host: host.name == "here")
    monkeypatch.setattr(hosts, "_launcher", lambda: "/bin/horovodrun")
    monkeypatch.setattr(os, "execv", lambda path, line: lines.append(line))
    monkeypatch.setattr(hosts.shutil, "which", lambda name: f"/bin/{name}")
    # This process goes on where the real one would have become another.
    monkeypatch.setattr("keras_parallax.cluster.launch.run", lambda job: 0)
    return lines


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-H", "a:2,b:2"], ["-np", "4", "-H", "a:2,b:2"]),
        (["-H", " a:2 , b ", "-np", "2"], ["-np", "2", "-H", "a:2,b:1"]),
        (
            ["--hosts", "a:1", "--log-dir", "logs"],
            ["-np", "1", "-H", "a:1", "--output-filename", os.path.abspath("logs")],
        ),
        (
            ["-H", "10.0.0.7:3", "--start-timeout", "0.2"],
            ["-np", "3", "-H", "10.0.0.7:3", "--start-timeout", "1"],
        ),
    ],
)
def test_arguments_are_translated(executed, options, expected):
    main(["run", *options, *COMMAND])
    program = ["python", "train.py", "--epochs", "3"]
    assert executed == [["/bin/horovodrun", "--gloo", *expected, *program]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-H", "a:2,b:x"], "Hosts are written host:slots"),
        (["-H", "a:0"], "Hosts are written host:slots"),
        (["-H", ""], "Hosts are written host:slots"),
        (["-H", "[::1]:2"], "Hosts are written host:slots"),
        (["-H", "a:1,b:1,a:2"], "The host 'a' is named twice"),
        (["-H", "a:1,b:1", "-np", "3"], "The hosts have 2 slots, too few for 3"),
        (["-H", "a:1", "-np", "0"], "-np is a number of processes, 1 or more"),
        (["-H", "a:1", "--servers", "1"], "Leave out --servers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(executed, options, expected, capsys):
    assert main(["run", *options, *COMMAND]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert len(err.splitlines()) == 1
    assert not executed


def test_ssh_missing_is_said_only_where_it_is_needed(executed, monkeypatch, capsys):
    monkeypatch.setattr(hosts.shutil, "which", lambda name: None)
    assert main(["run", "-H", "here:1,there:1", *COMMAND]) == 1
    err = capsys.readouterr().err
    assert "no command `ssh`" in err
    assert err.rstrip().endswith("Hosts to reach: there")
    assert not executed
    main(["run", "-H", "here:2", *COMMAND])
    assert len(executed) == 1


def test_horovod_missing_says_how_to_build_it(executed, monkeypatch, capsys):
    monkeypatch.setattr(hosts, "_launcher", lambda: None)
    assert main(["run", "-H", "here:2", *COMMAND]) == 1
    assert "`keras-parallax build-horovod`" in capsys.readouterr().err


def test_this_machine_is_known_by_its_addresses():
    assert Host("localhost", 1).is_here()
    assert Host("127.0.0.2", 1).is_here()
    assert not Host("192.0.2.1", 1).is_here()


def test_a_host_without_a_number_has_one_slot():
    assert hosts.parse_hosts("a,b.c-d:12") == (Host("a", 1), Host("b.c-d", 12))
    with pytest.raises(ConfigError, match="in it 'c d'"):
        hosts.parse_hosts("a,c d")


@pytest.mark.multiprocess
def test_workers_run_on_localhost_and_are_logged(tmp_path):
    say = (
        "import os, sys; e = os.environ; "
        "print('worker', e['HOROVOD_RANK'], 'of', e['HOROVOD_SIZE'], sys.argv[1:])"
    )
    command = [sys.executable, "-m", "keras_parallax.cli.main", "run"]
    options = ["-H", "localhost:2", "--log-dir", str(tmp_path / "logs")]
    done = subprocess.run(
        [*command, *options, "--", sys.executable, "-c", say, "a b", "$HOME"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        said = f"worker {rank} of 2 ['a b', '$HOME']"
        assert said in done.stdout
        assert said in (tmp_path / "logs" / f"rank.{rank}" / "stdout").read_text()
