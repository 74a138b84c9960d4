"""The `keras-parallax` command."""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import NoReturn

from keras_parallax.cli import build_horovod
from keras_parallax.cli import doctor as doctor_command
from keras_parallax.cli import plan as plan_command
from keras_parallax.cli import run as run_command
from keras_parallax.cli import serve as serve_command
from keras_parallax.errors import ConfigError, ParallaxError


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see `{self.prog} --help`)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="keras-parallax",
        description="Trains Keras models on many workers, with their embedding "
        "tables on servers.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run_command.add_parser(commands)
    serve_command.add_parser(commands)
    plan_command.add_parser(commands)
    doctor_command.add_parser(commands)
    horovod = commands.add_parser(
        "build-horovod",
        help="Build and install Horovod for the installed TensorFlow.",
        description="Builds Horovod for the installed TensorFlow and installs it. "
        "The result is kept, so that a second run takes seconds.",
    )
    horovod.add_argument(
        "--force",
        action="store_true",
        help="Build again although a result for these versions is kept.",
    )
    horovod.set_defaults(handler=_build_horovod)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        return arguments.handler(arguments)
    except ParallaxError as error:
        print(f"keras-parallax: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _build_horovod(arguments: argparse.Namespace) -> int:
    try:
        build_horovod.install(force=arguments.force)
    except build_horovod.BuildError as error:
        print(f"keras-parallax build-horovod: {error}", file=sys.stderr)
        return 1
    return 0


def _version() -> str:
    try:
        return importlib.metadata.version("keras-parallax")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


if __name__ == "__main__":
    sys.exit(main())
