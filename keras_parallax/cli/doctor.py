"""`keras-parallax doctor`: looks at machines and says what would not work, and why."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from keras_parallax.cli import self_test
from keras_parallax.cli.findings import (
    ERROR,
    Finding,
    has_errors,
    in_lines,
    in_one_line,
)
from keras_parallax.cli.machine_checks import check_machine
from keras_parallax.cluster.hosts import Host, parse_hosts
from keras_parallax.errors import ConfigError

# TensorFlow alone can take half of it on a machine that is busy.
_HOST_SECONDS = 60.0
_CONNECT_SECONDS = 10

_DESCRIPTION = """\
Looks at this machine, and with -H at others, and says what would keep a job from
working: versions, Horovod's build, GPUs, names, interfaces, ports, clock, disk and
memory. Then it runs a small job, 2 workers and 1 server (with -H: workers on the
hosts), which takes a training step whose result is known, and measures how fast its
workers exchange. Nothing of it is left running.

Each finding is ok, a warning or an error, with what to do about it. The exit status is
1 if there is an error, else 0.
"""


def add_parser(commands) -> None:
    """Adds the `doctor` command to the subparsers of the main parser."""
    parser = commands.add_parser(
        "doctor",
        help="Check this machine, or several hosts, and say what to mend.",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:N,...",
        help="Check these hosts as well, over ssh, and the network between them, with "
        "N workers each; as for `keras-parallax run`.",
    )
    parser.add_argument(
        "--json", action="store_true", help="Print the findings as JSON."
    )
    parser.add_argument(
        "--no-self-test",
        action="store_true",
        help="Look only; run no job. Bandwidth and latency are not measured then.",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=self_test.TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="How long the self-test may take (%(default)g).",
    )
    # What is asked of another host: itself alone, with the others in mind.
    parser.add_argument("--this-host-only", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(handler=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Checks and prints; returns the exit status."""
    if arguments.timeout <= 0:
        raise ConfigError(
            "--timeout is a positive number of seconds. "
            f"Received: --timeout {arguments.timeout:g}"
        )
    hosts = () if arguments.hosts is None else parse_hosts(arguments.hosts)
    progress = Progress()
    findings: list[Finding] = []
    for more in _groups(arguments, hosts, progress):
        progress.clear()
        findings += more
        if not arguments.json:
            for line in in_lines(more):
                print(line, flush=True)
    progress.clear()
    failed = has_errors(findings)
    if arguments.json:
        told = [finding.to_dict() for finding in findings]
        print(json.dumps({"ok": not failed, "findings": told}, indent=2))
    else:
        print(f"\n{in_one_line(findings)}")
    return 1 if failed else 0


def _groups(
    arguments: argparse.Namespace, hosts: Sequence[Host], progress: Progress
) -> Iterator[list[Finding]]:
    """The findings, a group as soon as it is there."""
    progress.show("looking at this machine")
    yield check_machine(several_hosts=len(hosts) > 1)
    if arguments.this_host_only:
        return
    for host in hosts:
        if not host.is_here():
            progress.show(f"looking at {host.name}")
            yield check_host(host.name, arguments.hosts)
    if not arguments.no_self_test:
        what = "self-test, 2 workers and 1 server"
        if hosts:
            what = f"self-test, {sum(host.slots for host in hosts)} workers"
        progress.show(what)
        outcome = self_test.run_job(
            workers=2,
            servers=1,
            hosts=arguments.hosts,
            timeout_seconds=arguments.timeout,
            on_wait=lambda seconds: progress.show(what, seconds),
        )
        yield self_test.check_outcome(outcome, arguments.hosts)


def check_host(
    host: str,
    hosts: str,
    run: Callable[..., subprocess.CompletedProcess] = subprocess.run,
) -> list[Finding]:
    """What another host finds of itself, asked over ssh.

    Args:
        host: Its name.
        hosts: All hosts, as given to the command.
        run: Stands in for `subprocess.run`.
    """
    mend = (
        f"See that `ssh {host} true` works without a password, and that the same "
        "folders and programs are there as here."
    )
    if shutil.which("ssh") is None:
        found = "it cannot be asked: there is no command `ssh` on the path"
        return [Finding("ssh", ERROR, found, "Install an ssh client.", host)]
    asked = [sys.executable, "-m", "keras_parallax.cli.main", "doctor", "--json"]
    asked += ["--this-host-only", "-H", hosts]
    there = f"cd {shlex.quote(os.getcwd())} && {shlex.join(asked)}"
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"]
    try:
        done = run(
            ["ssh", *options, host, there],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_HOST_SECONDS,
        )
        told = json.loads(done.stdout)["findings"]
        return [Finding.of(finding, host) for finding in told]
    except subprocess.TimeoutExpired:
        found = f"it has not answered within {_HOST_SECONDS:g} s"
    except (ValueError, KeyError, TypeError):
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        found = f"it could not be asked: {' '.join(last) or 'it said nothing'}"
    return [Finding("ssh", ERROR, found, mend, host)]


class Progress:
    """One line on standard error about what is going on.

    On a terminal it is written over and over, and wiped out in the end; elsewhere
    each thing that goes on has one line.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._told = ""

    def show(self, what: str, seconds: float = 0.0) -> None:
        """Says what is going on, and for how long it has been."""
        if self._terminal:
            took = f" {seconds:.0f} s" if seconds else ""
            self._write(f"\r\x1b[K{what} ...{took}")
        elif what != self._told:
            self._write(f"keras-parallax doctor: {what} ...\n")
        self._told = what

    def clear(self) -> None:
        """Wipes the line out."""
        if self._terminal and self._told:
            self._write("\r\x1b[K")
            self._told = ""

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
