"""Emulated hosts: network namespaces of this machine, joined by shaped links.

    with Network(hosts=4, rate_mbit=200) as network:
        network.command(0, ["python", "worker.py"])   # runs on the first host

Each host is a namespace with one interface, `eth0`; the other end of its cable is
a port of a bridge, which stands for the switch. Both ends are shaped, so a link
has its rate each way. This process talks to the hosts at the bridge's address;
nothing is routed any further.

What it makes carries the process id of its maker in its name. `remove_leftovers`
takes away what processes that were killed have left, and every network calls it:
it can be run by itself, too, as `python -m benchmarks.network`.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import ipaddress
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile

INTERFACE = "eth0"

# Names a bridge "kp123-1", and a host's namespace and its port "kp123-1h0"; an
# interface's name has at most 15 characters.
_PREFIX = "kp"
_NAME = re.compile(_PREFIX + r"(?P<owner>\d+)-\d+(h\d+)?")
_SUBNETS = ipaddress.ip_network("10.77.0.0/16")
_HOSTS_FILES = pathlib.Path("/etc/netns")
_MOST_HOSTS = 64
_LOCK = pathlib.Path(tempfile.gettempdir()) / "keras-parallax-networks.lock"

# What passes a link unshaped after a pause: a millisecond's worth, but at least
# what keeps the kernel's token bucket going.
_BURST_SECONDS = 1e-3
_LEAST_BURST_BYTES = 32 << 10
# In pieces of which the kernel hands TCP's data to a link.
_LARGEST_PIECE_BYTES = 64 << 10
_LONGEST_QUEUE_MS = 200

_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that have crossed a host's interface, headers included.

    The kernel hands TCP over in pieces of up to 64 KiB and counts one header for
    each, so the count is a few per cent below that of a real wire.

    Attributes:
        sent_bytes: Out of the host.
        received_bytes: Into the host.
    """

    sent_bytes: int
    received_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both ways together."""
        return self.sent_bytes + self.received_bytes

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        return Traffic(
            self.sent_bytes - earlier.sent_bytes,
            self.received_bytes - earlier.received_bytes,
        )


def why_unavailable(latency_ms=0):
    """Why no network can be emulated here, or None if one can.

    Args:
        latency_ms: Delay of the links that are wanted.
    """
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found (Debian and Ubuntu: iproute2)"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    name = f"{_PREFIX}{os.getpid()}-0"
    try:
        _ip("link", "add", name, "type", "bridge")
    except NetworkError as error:
        return f"this kernel or container makes no bridges ({error})"
    try:
        if latency_ms:
            _tc("add", "dev", name, "root", "netem", "delay", "1ms")
    except NetworkError as error:
        return f"latency_ms needs the kernel's netem ({error})"
    finally:
        _ip("link", "delete", name)
    return None


def interface_traffic(interface=INTERFACE):
    """`Traffic` of an interface of the host that this process is on, until now.

    For a worker that counts a part of its run; it costs two reads of `/sys`.
    """
    folder = pathlib.Path("/sys/class/net", interface, "statistics")
    names = ("tx_bytes", "rx_bytes")
    return Traffic(*(int((folder / name).read_text()) for name in names))


class NetworkError(RuntimeError):
    """A command that sets up the network has failed."""


class Network:
    """Hosts joined by shaped links; use it as a context manager.

    Args:
        hosts: Number of hosts.
        rate_mbit: Rate of each host's link, each way, in Mbit/s; None leaves it
            as fast as the machine is.
        latency_ms: Delay of each link, each way, in milliseconds. From host to
            host it is twice that.

    Attributes:
        address: This process's address, as the hosts reach it.
        addresses: Address of each host.
        names: Name of the namespace of each host.

    Raises:
        NetworkError: The network cannot be set up; the message says why.
        ValueError: An argument cannot be right.
    """

    def __init__(self, hosts, rate_mbit=None, latency_ms=0):
        if not 1 <= hosts <= _MOST_HOSTS:
            raise ValueError(f"Expected 1 to {_MOST_HOSTS} hosts. Received: {hosts=}")
        if (rate_mbit is not None and rate_mbit <= 0) or latency_ms < 0:
            raise ValueError(
                "A link has a rate above 0, or None for an unshaped one, and a "
                f"latency of 0 or more. Received: {rate_mbit=}, {latency_ms=}"
            )
        reason = why_unavailable(latency_ms)
        if reason is not None:
            raise NetworkError(f"The network cannot be emulated here: {reason}.")
        self._rate_mbit = rate_mbit
        self._latency_ms = latency_ms
        self._bridge = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        self.names = [f"{self._bridge}h{index}" for index in range(hosts)]
        self.address = ""
        self.addresses = []

    def __enter__(self):
        atexit.register(self.close)
        try:
            # Two networks that are set up together would find the same free subnet.
            with _locked():
                remove_leftovers()
                self._add_bridge(_free_subnet())
            for name, address in zip(self.names, self.addresses, strict=True):
                self._add_host(name, address)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception):
        self.close()

    def command(self, host, command):
        """The command line that runs `command` on a host, in the same process."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def traffic(self):
        """`Traffic` of each host, until now."""
        return [_traffic_of(name) for name in self.names]

    def kill(self):
        """Kills whatever runs on the hosts."""
        for name in self.names:
            _kill_host(name)

    def close(self):
        """Kills what runs on the hosts and removes them; may be called twice."""
        for name in self.names:
            _remove_host(name)
        _remove_link(self._bridge)
        atexit.unregister(self.close)

    def _add_bridge(self, subnet):
        self.addresses = [str(subnet[1 + i]) for i in range(len(self.names))]
        self.address = str(subnet[-2])
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/{subnet.prefixlen}", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def _add_host(self, name, address):
        folder = _HOSTS_FILES / name
        folder.mkdir(parents=True)
        # Seen as /etc/hosts on this host. All share the machine's name, which has
        # to stand for this one's address: Gloo tells the others where it resolves.
        (folder / "hosts").write_text(
            f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n", "utf-8"
        )
        _ip("netns", "add", name)
        cable = ["link", "add", name, "type", "veth"]
        _ip(*cable, "peer", "name", INTERFACE, "netns", name)
        _ip("link", "set", name, "master", self._bridge, "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
        _ip("-n", name, "link", "set", INTERFACE, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        self._shape("-n", name, dev=INTERFACE)
        self._shape(dev=name)
        if self._rate_mbit:
            self._keep_queues_short(name)

    def _keep_queues_short(self, name):
        """Sees to it that a host does not send much more than its link carries.

        TCP would fill the queues of links: acknowledgements wait behind data, some
        connections fall behind the others, and all-to-all among 8 hosts takes 1.7
        times as long as its bytes need (1.2 times, with what is done here). Networks
        for training have queues of microseconds, or senders that wait (InfiniBand).
        Between two hosts it makes no difference.
        """
        window = 2 * self._burst_bytes
        for kind in ("rmem", "wmem"):
            setting = (
                f"echo 4096 {window // 2} {window} > /proc/sys/net/ipv4/tcp_{kind}"
            )
            _ip("netns", "exec", name, "sh", "-c", setting)
        # The token bucket would cut larger pieces into packets, all of which arrive at
        # once, and the kernel drops what it cannot look at in time.
        piece = min(_LARGEST_PIECE_BYTES, self._burst_bytes // 2)
        _ip("-n", name, "link", "set", INTERFACE, "gso_max_size", str(piece))

    @property
    def _burst_bytes(self):
        """What passes a link unshaped after a pause."""
        burst = int(self._rate_mbit * 1e6 / 8 * _BURST_SECONDS)
        return max(burst, _LEAST_BURST_BYTES)

    def _shape(self, *where, dev):
        """Limits what leaves an end of a cable."""
        handle = ["root"]
        if self._latency_ms:
            # Packets that are under way are in netem's queue, which is short.
            _tc(
                *where, "add", "dev", dev, "root", "handle", "1:", "netem",
                "delay", f"{self._latency_ms}ms", "limit", "100000",
            )  # fmt: skip
            handle = ["parent", "1:1", "handle", "10:"]
        if self._rate_mbit:
            _tc(
                *where, "add", "dev", dev, *handle, "tbf",
                "rate", f"{self._rate_mbit}mbit",
                "burst", str(self._burst_bytes),
                "latency", f"{_LONGEST_QUEUE_MS}ms",
            )  # fmt: skip


def remove_leftovers():
    """Removes the hosts and bridges of processes that have ended; returns them."""
    hosts = [line["name"] for line in _json("netns", "list")]
    # A folder is made before its host: a run may have ended between the two.
    hosts += [folder.name for folder in _HOSTS_FILES.glob(f"{_PREFIX}*")]
    bridges = [link["ifname"] for link in _json("link", "show", "type", "bridge")]
    removed = []
    for names, remove in ((sorted(set(hosts)), _remove_host), (bridges, _remove_link)):
        for name in names:
            match = _NAME.fullmatch(name)
            if match and not pathlib.Path("/proc", match["owner"]).exists():
                remove(name)
                removed.append(name)
    return removed


@contextlib.contextmanager
def _locked():
    with open(_LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_subnet():
    """The first subnet that this machine does not know of."""
    routes = [r["dst"] for r in _json("-4", "route") if r["dst"] != "default"]
    known = [ipaddress.ip_network(route, strict=False) for route in routes]
    for subnet in _SUBNETS.subnets(new_prefix=24):
        if not any(subnet.overlaps(network) for network in known):
            return subnet
    raise NetworkError(
        f"The network cannot be emulated: all of {_SUBNETS} is in use on this machine."
    )


def _traffic_of(name):
    (link,) = _json("-n", name, "-s", "link", "show", INTERFACE)
    statistics = link["stats64"]
    return Traffic(statistics["tx"]["bytes"], statistics["rx"]["bytes"])


def _kill_host(name):
    for pid in _ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _remove_host(name):
    with contextlib.suppress(NetworkError):
        _kill_host(name)
        _ip("netns", "delete", name)
    # The cable goes with the namespace, but only once the last socket in it has
    # closed: TCP says goodbye for a while.
    _remove_link(name)
    shutil.rmtree(_HOSTS_FILES / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        _HOSTS_FILES.rmdir()  # Others' hosts keep it.


def _remove_link(name):
    with contextlib.suppress(NetworkError):
        _ip("link", "delete", name)


def _ip(*arguments):
    return _run(["ip", *arguments])


def _tc(*arguments):
    """`tc qdisc`, in the namespace that arguments beginning with `-n` name."""
    options = 2 if arguments[0] == "-n" else 0
    return _run(["tc", *arguments[:options], "qdisc", *arguments[options:]])


def _json(*arguments):
    return json.loads(_run(["ip", "-json", *arguments]) or "[]")


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise NetworkError(f"`{' '.join(command)}` said: {said}")
    return done.stdout


if __name__ == "__main__":
    print("removed:", *(remove_leftovers() or ["nothing"]))
