"""Starts a job's workers on several hosts, over ssh, through Horovod's launcher.

Horovod's launcher finds the network that the hosts share, starts the workers and
ends all of them when one fails. What it does not do, each worker's strategy does:
find or start servers, name the process that failed, notice who is silent.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from keras_parallax.cluster import rendezvous
from keras_parallax.cluster.addresses import resolve_host
from keras_parallax.errors import ClusterError, ConfigError

# What Horovod's launcher takes; it knows no IPv6 address.
_HOST = re.compile(r"([\w.-]+)(?::([0-9]+))?")


@dataclasses.dataclass(frozen=True)
class Host:
    """A host, and how many workers it takes.

    Attributes:
        name: Its name or IPv4 address, as the other hosts know it.
        slots: Number of workers.
    """

    name: str
    slots: int

    def is_here(self) -> bool:
        """Whether it is this machine, for which no ssh is needed."""
        for address in resolve_host(self.name):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family) as probe, contextlib.suppress(OSError):
                probe.bind((address, 0))
                return True
        return False


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Reads `"host1:2,host2:4"`; a host without a number takes one worker.

    Raises:
        ConfigError: It is not such a list, or names a host twice.
    """
    hosts = []
    for part in text.split(","):
        match = _HOST.fullmatch(part.strip())
        slots = int(match[2] or 1) if match else 0
        if match is None or slots < 1:
            raise ConfigError(
                "Hosts are written host:slots, separated by commas, where slots is "
                "the number of workers on the host, such as 'host1:2,host2:2'. "
                f"Received: -H {text!r}, in it {part.strip()!r}"
            )
        hosts.append(Host(match[1], slots))
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"The host {twice!r} is named twice; give it all its workers at once, "
            f"as in '{twice}:2'. Received: -H {text!r}"
        )
    return tuple(hosts)


def horovod_arguments(
    command: Sequence[str],
    hosts: Sequence[Host],
    workers: int | None = None,
    log_dir: str | os.PathLike | None = None,
    start_timeout_seconds: float | None = None,
) -> list[str]:
    """Arguments with which Horovod's launcher starts the job.

    Args:
        command: Program and arguments of each worker.
        hosts: Where they run.
        workers: Number of workers; by default, as many as there are slots.
        log_dir: Folder for what each worker prints, on this machine, or None.
        start_timeout_seconds: How long the hosts may take to be ready; None leaves
            it to Horovod.

    Raises:
        ConfigError: There are more workers than slots.
    """
    slots = sum(host.slots for host in hosts)
    workers = slots if workers is None else workers
    where = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    if workers > slots:
        raise ConfigError(
            f"The hosts have {slots} slots, too few for {workers} workers. Give "
            f"them more, or leave out -np. Received: -np {workers} -H {where}"
        )
    arguments = ["--gloo", "-np", str(workers), "-H", where]
    if log_dir is not None:
        arguments += ["--output-filename", os.path.abspath(log_dir)]
    if start_timeout_seconds is not None:
        # Horovod reads whole seconds.
        arguments += ["--start-timeout", str(max(1, round(start_timeout_seconds)))]
    return [*arguments, *command]


def run(arguments: Sequence[str], hosts: Sequence[Host]) -> NoReturn:
    """Becomes Horovod's launcher: this process goes on as that one.

    Args:
        arguments: What `horovod_arguments` has made.
        hosts: Where the workers run.

    Raises:
        ClusterError: Horovod or ssh is missing from this machine.
    """
    launcher = _launcher()
    if launcher is None:
        raise rendezvous.horovod_missing(sum(host.slots for host in hosts))
    elsewhere = [host.name for host in hosts if not host.is_here()]
    if elsewhere and shutil.which("ssh") is None:
        raise ClusterError(
            "Workers on other hosts are started over ssh, and there is no command "
            "`ssh` on the path. Install an ssh client (on Debian or Ubuntu: "
            "`apt-get install openssh-client`) and see that `ssh HOST true` works "
            f"without a password. Hosts to reach: {', '.join(elsewhere)}"
        )
    sys.stdout.flush()
    os.execv(launcher, [launcher, *arguments])


def _launcher() -> str | None:
    """Horovod's launcher of this Python, else the one on the path."""
    beside = pathlib.Path(sys.executable).with_name("horovodrun")
    return shutil.which(beside) or shutil.which("horovodrun")
