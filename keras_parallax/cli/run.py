"""`keras-parallax run`: launches a job on this machine."""

import argparse
import shutil

from keras_parallax.cluster import launch
from keras_parallax.errors import ConfigError


def add_parser(commands) -> None:
    """Adds the `run` command to the subparsers of the main parser."""
    parser = commands.add_parser(
        "run",
        help="Run a script on several workers of this machine.",
        usage="keras-parallax run -np N [options] -- COMMAND [ARGUMENT ...]",
        description="Starts N workers, each running COMMAND, and servers if asked "
        "to; shows their output, and ends all of them when one fails. The exit "
        "status is that of the process that failed first, 128 + n for signal n.",
    )
    parser.add_argument(
        "-np",
        "--num-workers",
        type=int,
        default=1,
        metavar="N",
        help="Number of workers (1).",
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
        "worker-0.log, server-0.log and so on.",
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="How long the servers may take to be ready (120).",
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
    _at_least_one("-np", arguments.num_workers)
    if arguments.servers is not None:
        _at_least_one("--servers", arguments.servers)
    if not command:
        raise ConfigError(
            "There is no command to run. Write it after `--`, for example "
            "`keras-parallax run -np 2 -- python train.py`."
        )
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"The command {command[0]!r} is not found on the path, or may not be "
            f"executed. Received: {' '.join(command)}"
        )
    return launch.run(
        launch.JobSpec(
            command=command,
            workers=arguments.num_workers,
            servers=arguments.servers or 0,
            log_dir=arguments.log_dir,
            start_timeout_seconds=arguments.start_timeout,
        )
    )


def _at_least_one(option: str, value: int) -> None:
    if value < 1:
        raise ConfigError(
            f"{option} is a number of processes, 1 or more; leave it out for the "
            f"default. Received: {option} {value}"
        )
