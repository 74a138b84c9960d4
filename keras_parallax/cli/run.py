"""`keras-parallax run`: launches a job on this machine, or on several over ssh."""

import argparse
import os
import pathlib
import shutil
from typing import NoReturn

from keras_parallax.cluster import hosts, launch
from keras_parallax.errors import ConfigError

_TIMELINE = "HOROVOD_TIMELINE"


def add_parser(commands) -> None:
    """Adds the `run` command to the subparsers of the main parser."""
    parser = commands.add_parser(
        "run",
        help="Run a script on several workers.",
        usage="keras-parallax run -np N [options] -- COMMAND [ARGUMENT ...]\n"
        "       keras-parallax run -H HOST:N,... [options] -- COMMAND [ARGUMENT ...]",
        description="Starts N workers, each running COMMAND, and servers if asked "
        "to; shows their output, and ends all of them when one fails. The exit "
        "status is that of the process that failed first, 128 + n for signal n. "
        "With -H the workers are started over ssh, by Horovod's launcher.",
    )
    parser.add_argument(
        "-np",
        "--num-workers",
        type=int,
        metavar="N",
        help="Number of workers (1; with -H, as many as there are slots).",
    )
    parser.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:N,...",
        help="Run on these hosts, with N workers each at most. Each has the same "
        "folders and programs as this one, and is reached by ssh without a password.",
    )
    parser.add_argument(
        "--servers",
        type=int,
        metavar="S",
        help="Number of server processes. Without it the strategy decides.",
    )
    parser.add_argument(
        "--log-dir",
        metavar="D",
        help="Also write the output of each process to a file in this folder: "
        "worker-0.log, server-0.log and so on; with -H, rank.0/stdout, rank.0/stderr "
        "and so on.",
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        metavar="SECONDS",
        help="How long the servers may take to be ready (120); with -H, the hosts.",
    )
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        help="Let Horovod write what it did, and when, to this file on worker 0's "
        "machine; look at it in chrome://tracing or ui.perfetto.dev.",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="What each worker runs, such as: python train.py",
    )
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Checks the arguments and launches; returns the job's exit status."""
    command = arguments.command
    if command[:1] == ["--"]:
        command = command[1:]
    if arguments.num_workers is not None:
        _at_least_one("-np", arguments.num_workers)
    if arguments.servers is not None:
        _at_least_one("--servers", arguments.servers)
    if not command:
        raise ConfigError(
            "There is no command to run. Write it after `--`, for example "
            "`keras-parallax run -np 2 -- python train.py`."
        )
    environ = _environ(arguments)
    if arguments.hosts is not None:
        # Horovod's launcher, which this process becomes, hands it on.
        os.environ.update(environ)
        _run_on_hosts(arguments, command)
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"The command {command[0]!r} is not found on the path, or may not be "
            f"executed. Received: {' '.join(command)}"
        )
    given = {}
    if arguments.start_timeout is not None:
        given["start_timeout_seconds"] = arguments.start_timeout
    return launch.run(
        launch.JobSpec(
            command=command,
            workers=arguments.num_workers or 1,
            servers=arguments.servers or 0,
            log_dir=arguments.log_dir,
            environ=environ,
            **given,
        )
    )


def _environ(arguments: argparse.Namespace) -> dict[str, str]:
    """The workers' environment."""
    environ = dict(os.environ)
    if arguments.timeline is None:
        return environ
    file = pathlib.Path(arguments.timeline).absolute()
    if environ.get(_TIMELINE, str(file)) != str(file):
        raise ConfigError(
            f"The environment sets {_TIMELINE} already; leave out one of the two. "
            f"Received: --timeline {arguments.timeline}, "
            f"{_TIMELINE}={environ[_TIMELINE]}"
        )
    if not file.parent.is_dir():
        raise ConfigError(
            f"The folder of the timeline, {file.parent}, does not exist; make it "
            f"first. Received: --timeline {arguments.timeline}"
        )
    environ[_TIMELINE] = str(file)
    return environ


def _run_on_hosts(arguments: argparse.Namespace, command: list[str]) -> NoReturn:
    if arguments.servers is not None:
        raise ConfigError(
            "With -H no servers are started beforehand. Leave out --servers: the "
            "workers keep the tables, or, with ParallaxStrategy(servers='dedicated') "
            "in the script, the strategy starts a server on each host. Received: "
            f"--servers {arguments.servers} -H {arguments.hosts}"
        )
    where = hosts.parse_hosts(arguments.hosts)
    hosts.run(
        hosts.horovod_arguments(
            command,
            where,
            arguments.num_workers,
            arguments.log_dir,
            arguments.start_timeout,
        ),
        where,
    )


def _at_least_one(option: str, value: int) -> None:
    if value < 1:
        raise ConfigError(
            f"{option} is a number of processes, 1 or more; leave it out for the "
            f"default. Received: {option} {value}"
        )
