"""Addresses, written `"host:port"`: taking them apart, and who can reach them."""

import contextlib
import errno
import ipaddress
import socket

from keras_parallax.errors import ClusterError, ConfigError


def split_address(address: object) -> tuple[str, int]:
    """Host and port of `"host:port"`; an IPv6 host is written in brackets.

    Raises:
        ConfigError: It is not a string, or lacks a host or a port of 1 to 65535.
    """
    if isinstance(address, str):
        host, colon, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if colon and host and port.isdecimal() and 0 < int(port) < 65536:
            if "/" not in host:
                return host, int(port)
    raise ConfigError(
        "An address is written 'host:port', with a port of 1 to 65535, such as "
        f"'10.0.0.7:2222'. Received: {address!r}"
    )


def join_address(host: str, port: int) -> str:
    """`"host:port"`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve_host(host: str) -> tuple[str, ...]:
    """IP addresses that a host's name stands for; empty when it is unknown."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]).split("%")[0] for entry in found))


def reach(host: str) -> str:
    """From where an address on `host` can be reached.

    Returns:
        `"loopback"`: from this machine only; `"private"`: from a network that
        is not routed in public, or unknown; `"public"`: from anywhere.
    """
    found = [ipaddress.ip_address(text) for text in resolve_host(host)]
    if any(ip.is_global for ip in found):
        return "public"
    if found and all(ip.is_loopback for ip in found):
        return "loopback"
    return "private"


def free_port() -> int:
    """A TCP port that is free on every interface of this machine now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports that are free on every interface now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def check_port_is_free(port: int) -> None:
    """Raises `ClusterError`, naming who holds the port, when it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise port_error(port, error) from error


def port_error(port: int, error: OSError) -> ClusterError:
    """The error to raise when listening on `port` has failed with `error`."""
    if error.errno == errno.EADDRINUSE:
        return ClusterError(
            f"Port {port} is in use{_holder(port)}. End that process, or choose "
            "another port."
        )
    if error.errno == errno.EACCES:
        return ClusterError(
            f"Port {port} may not be opened by this user ({error.strerror}). "
            "Choose a port above 1023."
        )
    return ClusterError(f"Port {port} cannot be opened: {error}.")


def _holder(port: int) -> str:
    # psutil comes with Horovod; without it the port alone is named.
    try:
        import psutil

        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr.port == port and connection.pid:
                name = psutil.Process(connection.pid).name()
                return f" by process {connection.pid} ({name})"
    except Exception:
        return ""
    return ""
