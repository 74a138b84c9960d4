"""A server process: holds partitions of tables for the workers of one job.

It runs a TensorFlow server and does nothing else: the workers create the
variables on it and run the updates. It ends with its job.

TensorFlow's server has no authentication, and listens on every interface of the
machine whatever address it is given: whoever reaches the port can run operations
and read files. Hence the checks of its address.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from keras_parallax.cluster import tf_config
from keras_parallax.cluster.addresses import (
    check_port_is_free,
    join_address,
    reach,
    split_address,
)
from keras_parallax.cluster.failure import EXIT_LOST, Failure
from keras_parallax.cluster.lifeline import Member
from keras_parallax.cluster.topology import LIFELINE_VARIABLE, Topology
from keras_parallax.errors import ClusterError, ConfigError, ParallaxError

ALLOW_PUBLIC_VARIABLE = "KERAS_PARALLAX_ALLOW_PUBLIC"
DEVICES_VARIABLE = "KERAS_PARALLAX_SERVER_CUDA_VISIBLE_DEVICES"
JOIN_SECONDS = 300.0
# When the job is lost, the workers say what has happened before this server's end
# adds to it; when it is over, they still clear away what they keep on servers.
_LINGER_SECONDS = 1.0


def serve(
    addresses: Sequence[str],
    index: int,
    lifeline: str | None = None,
    member: Member | None = None,
) -> NoReturn:
    """Serves until the job ends; then ends this process.

    The process ends, without returning, with status 0 when the job has ended
    well, `EXIT_LOST` when another process of it is lost, and 128 + n at signal n.

    Args:
        addresses: `"host:port"` of each server of the job.
        index: Which of them is this one.
        lifeline: `"host:port"` of the job's coordinator, or None to serve until
            a signal comes.
        member: The connection to the coordinator, where there is one already.

    Raises:
        ConfigError: `index` or an address cannot be right.
        ClusterError: The port is in use, the address is public, or the
            coordinator does not answer.
    """
    if not 0 <= index < len(addresses):
        raise ConfigError(
            "A server's index counts from 0 in the list of addresses. "
            f"Received: index={index}, addresses={list(addresses)}"
        )
    address = addresses[index]
    host, port = split_address(address)
    _check_exposure(index, host, port)
    check_port_is_free(port)
    server = _start_tensorflow_server(addresses, index)
    over = _Over()
    over.on_signals()
    _say(index, f"ready at {address}")
    if member is None and lifeline is not None:
        info = {"address": address}
        member = Member.join(
            lifeline, "server", index, JOIN_SECONDS, info, on_lost=lambda f: None
        )
    if member is not None:
        threading.Thread(target=over.follow, args=(member,), daemon=True).start()
    status, reason = over.wait()
    if reason:
        _say(index, f"stops: {reason}")
    sys.stdout.flush()
    # TensorFlow's server cannot be stopped: it ends with its process.
    del server
    os._exit(status)


def serve_forever(topology: Topology, member: Member | None = None) -> NoReturn:
    """Serves as the `ps` task that `topology` describes; see `serve`."""
    serve(topology.servers, topology.index, topology.lifeline, member)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a server process to a parser."""
    parser.add_argument(
        "--port", type=int, help="Port to listen on, for a server on its own."
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="Name under which the workers reach this machine (127.0.0.1).",
    )
    parser.add_argument(
        "--addresses",
        help="host:port of every server of the job, separated by commas, in "
        "place of --host and --port.",
    )
    parser.add_argument(
        "--index", type=int, default=0, help="Which of the addresses is this one (0)."
    )
    parser.add_argument(
        "--lifeline",
        default=os.environ.get(LIFELINE_VARIABLE),
        help="host:port of the job's coordinator; the server ends with the job. "
        f"By default the environment variable {LIFELINE_VARIABLE}.",
    )


def run(arguments: argparse.Namespace) -> NoReturn:
    """Serves as parsed arguments say, or else as TF_CONFIG does."""
    lifeline = arguments.lifeline
    if arguments.addresses is not None:
        if arguments.port is not None:
            raise ConfigError(
                "Give --addresses or --port, not both: the port is in the address. "
                f"Received: --addresses {arguments.addresses} --port {arguments.port}"
            )
        addresses = [part.strip() for part in arguments.addresses.split(",")]
    elif arguments.port is not None:
        addresses = [join_address(arguments.host, arguments.port)]
    else:
        config = tf_config.read(os.environ)
        if config is None or config.task_type != "ps":
            raise ConfigError(
                "A server needs its address: give --port, or --addresses and "
                "--index, or set TF_CONFIG with a task of type 'ps'. Received: "
                f"TF_CONFIG={os.environ.get('TF_CONFIG')!r}"
            )
        serve(config.servers, config.task_index, lifeline or config.workers[0])
    for address in addresses:
        split_address(address)
    serve(addresses, arguments.index, lifeline or None)


def main(argv: Sequence[str] | None = None) -> int:
    """Command-line entry: `python -m keras_parallax.servers.serve`."""
    parser = argparse.ArgumentParser(description="Runs one server process.")
    add_arguments(parser)
    try:
        run(parser.parse_args(argv))
    except ParallaxError as error:
        print(f"keras-parallax serve: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


class _Over:
    """Waits for the first of the things that end a server."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._end: tuple[int, str] = (0, "")

    def on_signals(self) -> None:
        """Ends at SIGTERM and SIGINT; in the main thread only."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(
                    number,
                    lambda n, frame: self._set(128 + n, signal.Signals(n).name),
                )

    def lost(self, failure: Failure) -> None:
        """Ends because a process of the job is lost."""
        threading.Event().wait(_LINGER_SECONDS)
        self._set(EXIT_LOST, str(failure))

    def follow(self, member: Member) -> None:
        """Ends when the job does."""
        if member.wait_end():
            threading.Event().wait(_LINGER_SECONDS)
            self._set(0, "")
        elif member.lost is not None:
            self.lost(member.lost)

    def wait(self) -> tuple[int, str]:
        """Exit status and reason, once there is one."""
        # Signals are handled between these waits.
        while not self._event.wait(0.5):
            pass
        return self._end

    def _set(self, status: int, reason: str) -> None:
        if not self._event.is_set():
            self._end = (status, reason)
            self._event.set()


def _start_tensorflow_server(addresses: Sequence[str], index: int):
    # Tables live in the machine's memory: a server that opened the GPUs, which
    # the user's CUDA_VISIBLE_DEVICES means for the workers, would take them away.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get(DEVICES_VARIABLE, "")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    cluster = tf.train.ClusterSpec({"ps": list(addresses)})
    try:
        return tf.distribute.Server(
            cluster, job_name="ps", task_index=index, protocol="grpc"
        )
    except tf.errors.OpError as error:
        raise ClusterError(
            f"TensorFlow could not start a server at {addresses[index]}: "
            f"{error.message}"
        ) from error


def _check_exposure(index: int, host: str, port: int) -> None:
    """Warns of an address that others reach; refuses one that everyone does."""
    exposure = reach(host)
    if exposure == "loopback":
        return
    if exposure == "public" and os.environ.get(ALLOW_PUBLIC_VARIABLE) != "1":
        raise ClusterError(
            f"server {index} would listen on the public address {host}:{port}. A "
            "TensorFlow server has no authentication: whoever reaches it can run "
            "code and read files. Use an address of a private network, or, behind "
            f"a firewall, set {ALLOW_PUBLIC_VARIABLE}=1."
        )
    _say(
        index,
        f"WARNING: it listens on {host}:{port} without authentication: whoever "
        "reaches this port can run code on this machine and read its files. Let "
        "only the hosts of this job through to it.",
    )


def _say(index: int, text: str) -> None:
    sys.stderr.write(f"keras-parallax: server {index}: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
