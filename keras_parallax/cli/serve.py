"""`keras-parallax serve`: one server process, started by hand."""

import argparse
from typing import NoReturn

from keras_parallax.servers import serve as server_process


def add_parser(commands) -> None:
    """Adds the `serve` command to the subparsers of the main parser."""
    parser = commands.add_parser(
        "serve",
        help="Run one server process, for workers that are started elsewhere.",
        description="Runs one server process. It takes its address from the "
        "options or from TF_CONFIG, and ends with the job whose coordinator it "
        "is told of. Workers find it through KERAS_PARALLAX_SERVERS or TF_CONFIG.",
    )
    server_process.add_arguments(parser)
    parser.set_defaults(handler=serve)


def serve(arguments: argparse.Namespace) -> NoReturn:
    """Serves; the process ends inside, unless the arguments are wrong."""
    server_process.run(arguments)
