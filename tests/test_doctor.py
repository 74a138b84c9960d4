"""`keras-parallax doctor`: each check with other machines' figures, and the command."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from keras_parallax.cli import doctor, machine_checks, self_test
from keras_parallax.cli.findings import (
    ERROR,
    OK,
    WARNING,
    Finding,
    has_errors,
    in_lines,
    in_one_line,
)
from keras_parallax.cli.main import build_parser, main
from tests.multiprocess.marked import MARK, assert_none_left

GIB = 1 << 30


@pytest.mark.parametrize(
    "addresses, several_hosts, level",
    [
        (["10.0.0.7"], True, OK),
        (["127.0.1.1", "10.0.0.7"], True, OK),
        (["127.0.1.1"], True, ERROR),
        (["127.0.1.1"], False, WARNING),
        (["::1"], True, ERROR),
        ([], False, ERROR),
    ],
)
def test_a_name_that_stands_for_loopback(addresses, several_hosts, level):
    finding = machine_checks.check_name("node7", addresses, several_hosts)
    assert finding.level == level
    assert "node7" in finding.found
    assert bool(finding.advice) == (level != OK)


@pytest.mark.parametrize(
    "found, environ, several_hosts, level",
    [
        ({"lo": ["127.0.0.1"], "eth0": ["10.0.0.7"]}, {}, True, OK),
        ({"lo": ["127.0.0.1"]}, {}, True, ERROR),
        ({"lo": ["127.0.0.1"]}, {}, False, OK),
        ({"lo": ["127.0.0.1"]}, {"HOROVOD_GLOO_IFACE": "ib0"}, False, ERROR),
    ],
)
def test_interfaces(found, environ, several_hosts, level):
    finding = machine_checks.check_interfaces(found, environ, several_hosts)
    assert finding.level == level


@pytest.mark.parametrize(
    "seen, there, nccl, visible, level",
    [
        (0, 0, False, None, OK),
        (2, 2, True, None, OK),
        (2, 2, False, None, WARNING),
        (0, 2, True, None, WARNING),
        (0, 2, True, "", OK),
    ],
)
def test_gpus(seen, there, nccl, visible, level):
    assert machine_checks.check_gpus(seen, there, nccl, visible).level == level


def test_a_clock_that_is_behind():
    installed = pathlib.Path(machine_checks.__file__).stat().st_mtime
    assert machine_checks.check_clock(time.time(), installed).level == OK
    assert machine_checks.check_clock(0.0, installed).level == WARNING


def test_room_for_what_is_kept(tmp_path):
    folder = tmp_path / "not" / "yet"
    free, is_writable = machine_checks.room_of(folder)
    assert is_writable and free > 0
    assert machine_checks.check_disk(folder, 10 * GIB, True).level == OK
    assert machine_checks.check_disk(folder, 1, True).level == WARNING
    unwritable = machine_checks.check_disk(folder, 10 * GIB, False)
    assert unwritable.level == WARNING and str(folder) in unwritable.found


def test_memory():
    assert machine_checks.check_memory(8 * GIB, 16 * GIB, 4).level == OK
    assert machine_checks.check_memory(1 * GIB, 16 * GIB, 1).level == WARNING


def test_horovod_that_is_missing_is_an_error(monkeypatch):
    monkeypatch.setattr(
        machine_checks.versions,
        "installed_version",
        lambda *names: None if "horovod" in names else "2.21.0",
    )
    finding = machine_checks.check_horovod()
    assert finding.level == ERROR
    assert "build-horovod" in finding.advice


def test_horovod_of_another_tensorflow_is_an_error(monkeypatch):
    def explain():
        raise ImportError("long") from OSError("undefined symbol: _ZN10tensorflow")

    monkeypatch.setattr(machine_checks.versions, "horovod_or_explain", explain)
    monkeypatch.setattr(machine_checks.versions, "installed_version", lambda *n: "1")
    finding = machine_checks.check_horovod()
    assert finding.level == ERROR
    assert "undefined symbol" in finding.found


NETWORK = {
    "bandwidth_bytes_per_s": 1.17e9,
    "latency_s": 1e-4,
    "local_bandwidth_bytes_per_s": 3e9,
    "local_latency_s": 2e-5,
    "call_s": 1e-3,
}
REPORT = {
    "workers": 4,
    "servers": 0,
    "network": NETWORK,
    "hosts": ["a", "a", "b", "b"],
    "clocks_seconds": [100.0, 100.1, 100.0, 100.1],
    "problems": [],
}


def levels(report, hosts="a:2,b:2"):
    found = self_test.check_outcome(self_test.Outcome(report, 9.0), hosts)
    return {finding.about: finding.level for finding in found}


def test_a_job_that_went_well():
    assert levels(REPORT) == {"self-test": OK, "network": OK, "clocks": OK}
    one_host = {**REPORT, "hosts": ["a"] * 4}
    assert levels(one_host, None) == {"self-test": OK, "network": OK}


def test_what_a_job_on_several_hosts_can_show():
    late = {**REPORT, "clocks_seconds": [100.0, 100.0, 160.0, 160.0]}
    assert levels(late)["clocks"] == WARNING
    slow = {**REPORT, "network": {**NETWORK, "bandwidth_bytes_per_s": 1e6}}
    assert levels(slow)["network"] == WARNING
    wrong = {**REPORT, "problems": ["on worker 3 row 1 of its table is 1, not 0.8"]}
    assert levels(wrong)["self-test"] == ERROR


def test_a_job_that_came_to_nothing_shows_what_it_printed():
    outcome = self_test.Outcome(None, 120.0, "it had not ended", "one\ntwo")
    [finding] = self_test.check_outcome(outcome)
    assert finding.level == ERROR
    assert "one\ntwo" in finding.found
    assert [line.strip() for line in in_lines([finding])][:3][-2:] == ["one", "two"]


@pytest.mark.parametrize("before", ["", "[1,0]<stdout>:", "noise "])
def test_worker_0_is_found_in_any_launchers_output(before):
    line = f"{before}{self_test._MARK}{json.dumps(REPORT)}"
    assert self_test.find_report(f"first\n{line}\nlast") == REPORT
    assert self_test.find_report("nothing of the kind") is None


def test_the_self_tests_environment_has_no_other_job():
    given = {"PATH": "/bin", "TF_CONFIG": "{}", "HOROVOD_RANK": "1"}
    given |= {"KERAS_PARALLAX_SERVERS": "a:1", "HOROVOD_GLOO_IFACE": "eth0"}
    env = self_test.environment(given)
    assert env["PATH"] == "/bin" and env["HOROVOD_GLOO_IFACE"] == "eth0"
    assert not {"TF_CONFIG", "HOROVOD_RANK", "KERAS_PARALLAX_SERVERS"} & env.keys()


@pytest.mark.parametrize(
    "bytes_per_s, text", [(25e6, "25 MB/s"), (1.25e9, "1.25 GB/s"), (500, "500 B/s")]
)
def test_bandwidths_in_words(bytes_per_s, text):
    assert self_test.in_bandwidth(bytes_per_s) == text


def test_findings_are_data_and_text():
    findings = [
        Finding("disk", OK, "fine"),
        Finding("name", WARNING, "so " * 60, "Do this."),
        Finding("ssh", ERROR, "no answer", "Do that.", host="b"),
    ]
    lines = in_lines(findings)
    assert lines[0] == "ok       disk        fine"
    assert all(len(line) < 80 for line in lines)
    assert lines.index("b:") < len(lines) - 1
    assert in_one_line(findings) == "1 ok, 1 warning, 1 error"
    assert in_one_line(findings[:1]) == "1 ok, 0 warnings, 0 errors"
    assert has_errors(findings) and not has_errors(findings[:2])
    assert Finding.of(findings[0].to_dict(), host="c").host == "c"


def answering(stdout, stderr="", asked=None):
    def run(command, **kwargs):
        if asked is not None:
            asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout, stderr)

    return run


def test_another_host_tells_what_it_finds(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/bin/{name}")
    asked = []
    told = {"ok": True, "findings": [Finding("disk", OK, "fine").to_dict()]}
    run = answering(json.dumps(told), asked=asked)
    assert doctor.check_host("b", "a:1,b:1", run) == [
        Finding("disk", OK, "fine", "", "b")
    ]
    assert asked[0][0] == "ssh" and "b" in asked[0]
    assert "--this-host-only -H a:1,b:1" in asked[0][-1]


def test_another_host_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/bin/{name}")
    run = answering("", "Permission denied (publickey).")
    [finding] = doctor.check_host("b", "a:1,b:1", run)
    assert finding.level == ERROR
    assert "Permission denied" in finding.found and "ssh b true" in finding.advice

    def late(command, **kwargs):
        raise subprocess.TimeoutExpired(command, 60)

    [finding] = doctor.check_host("b", "a:1,b:1", late)
    assert finding.level == ERROR
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    [finding] = doctor.check_host("b", "a:1,b:1", run)
    assert "no command `ssh`" in finding.found


def fake_machine(monkeypatch, *findings):
    monkeypatch.setattr(doctor, "check_machine", lambda several_hosts: [*findings])


@pytest.mark.parametrize("level, status", [(OK, 0), (WARNING, 0), (ERROR, 1)])
def test_exit_status_and_json(monkeypatch, capsys, level, status):
    fake_machine(monkeypatch, Finding("disk", level, "found", "Do this."))
    assert main(["doctor", "--no-self-test", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] == (status == 0)
    assert told["findings"][0]["level"] == level
    assert main(["doctor", "--no-self-test"]) == status
    assert "disk" in capsys.readouterr().out


def test_what_cannot_be_asked_for(capsys):
    assert main(["doctor", "--timeout", "0"]) == 2
    assert main(["doctor", "-H", "a:b"]) == 2
    assert "Received" in capsys.readouterr().err


def test_this_machine(capsys):
    """Every check on whatever machine the test runs on, in a process of its own."""
    command = [sys.executable, "-m", "keras_parallax.cli.main", "doctor", "--json"]
    done = subprocess.run(
        [*command, "--no-self-test"], capture_output=True, text=True, timeout=120
    )
    told = json.loads(done.stdout)
    about = [finding["about"] for finding in told["findings"]]
    expected = "python tensorflow horovod gpus hostname interfaces ports clock"
    assert about == [*expected.split(), "disk", "memory"]
    assert done.returncode == (0 if told["ok"] else 1)
    # What TensorFlow says when it is loaded is no finding.
    assert "looking at this machine" in done.stderr
    assert len(done.stderr.splitlines()) < 5


@pytest.mark.parametrize("command", ["run", "serve", "plan", "doctor", "build-horovod"])
def test_every_command_has_help_in_whole_sentences(command, capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args([command, "--help"])
    description = capsys.readouterr().out.split("\n\n")[1]
    assert description.strip().endswith((".", ":"))


def findings_of(mark, *arguments):
    """What `doctor --json` finds, by what it is about, and its exit status."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "keras_parallax.cli.main",
            "doctor",
            "--json",
            *arguments,
        ],
        env={**os.environ, MARK: mark, "KERAS_PARALLAX_CACHE": f"{mark}/cache"},
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )
    assert_none_left(mark)
    found = json.loads(done.stdout)["findings"]
    return {finding["about"]: finding for finding in found}, done.returncode


@pytest.mark.multiprocess
def test_the_self_test(tmp_path):
    found, _ = findings_of(str(tmp_path))
    assert found["self-test"]["level"] == OK, found
    assert "2 workers and 1 server" in found["self-test"]["found"]
    assert found["network"]["level"] == OK


@pytest.mark.multiprocess
def test_a_self_test_that_takes_too_long_is_ended(tmp_path):
    found, status = findings_of(str(tmp_path), "--timeout", "2")
    assert found["self-test"]["level"] == ERROR
    assert "not ended after 2 s" in found["self-test"]["found"]
    assert status == 1
