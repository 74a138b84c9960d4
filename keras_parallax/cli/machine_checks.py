"""What a machine has to have for a job: each check gives one finding.

Checks are functions of what they judge, so that each can be tried with any machine's
figures; `check_machine` asks this machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pathlib
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import psutil

from keras_parallax import versions
from keras_parallax.cache import cache_dir
from keras_parallax.cli.findings import ERROR, OK, WARNING, Finding
from keras_parallax.cluster.addresses import free_ports, resolve_host
from keras_parallax.cluster.threads import usable_cores
from keras_parallax.errors import ParallaxError
from keras_parallax.servers.progress_line import in_words

# Horovod's wheel, and room to build it once more.
_LEAST_DISK_BYTES = 500 << 20
# A process that has imported TensorFlow takes about half a GiB.
_LEAST_MEMORY_BYTES = 3 << 30
_PORTS = 16
_DAY_SECONDS = 86_400.0
_IFACE_VARIABLE = "HOROVOD_GLOO_IFACE"


def check_machine(several_hosts: bool) -> list[Finding]:
    """All findings about this machine.

    Args:
        several_hosts: Whether a job on several hosts is meant.
    """
    name = socket.gethostname()
    cache = cache_dir()
    with _chatter_dropped():
        installed = [
            _safely("python", check_python),
            _safely("tensorflow", check_tensorflow),
            _safely("horovod", check_horovod),
            _safely("gpus", check_this_machines_gpus),
        ]
    return [
        *installed,
        check_name(name, resolve_host(name), several_hosts),
        check_interfaces(interfaces(), os.environ, several_hosts),
        _safely("ports", check_ports),
        check_clock(time.time(), pathlib.Path(versions.__file__).stat().st_mtime),
        check_disk(cache, *room_of(cache)),
        _safely("memory", check_this_machines_memory),
    ]


def check_python() -> Finding:
    """Python, and the package itself."""
    found = (
        f"{platform.python_version()} at {sys.executable}; "
        f"keras-parallax {versions.__version__}"
    )
    return Finding("python", OK, found)


def check_tensorflow() -> Finding:
    """TensorFlow and Keras: imported, for a broken one has its version, too."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import keras
        import tensorflow as tf
    except Exception as error:
        return Finding(
            "tensorflow",
            ERROR,
            f"it cannot be imported ({type(error).__name__}: {error})",
            f"Install it again: pip install --force-reinstall "
            f"'tensorflow=={versions.TENSORFLOW_SERIES}.*'.",
        )
    # Their series are checked when this package is imported, before anything else.
    return Finding(
        "tensorflow", OK, f"{tf.__version__}, with Keras {keras.__version__}"
    )


def check_horovod() -> Finding:
    """Horovod: whether it loads with the installed TensorFlow, and what it has."""
    installed = versions.installed_version(*versions.TENSORFLOW_DISTRIBUTIONS)
    mend = "Build it for the installed TensorFlow: keras-parallax build-horovod."
    if versions.installed_version("horovod") is None:
        found = "not installed: one worker trains without it, more cannot"
        return Finding("horovod", ERROR, found, mend)
    try:
        hvd = versions.horovod_or_explain()
    except ImportError as error:
        reason = error.__cause__ or error
        found = f"it does not load with TensorFlow {installed}: {reason}"
        return Finding("horovod", ERROR, found, mend)
    built = [
        name
        for name, has in (
            ("Gloo", hvd.gloo_built),
            ("MPI", hvd.mpi_built),
            ("NCCL", hvd.nccl_built),
        )
        if has()
    ]
    found = (
        f"{versions.installed_version('horovod')}, loads with TensorFlow {installed}; "
        f"built with {', '.join(built) or 'nothing'}"
    )
    if "Gloo" not in built:
        return Finding("horovod", ERROR, found, f"Jobs are joined by Gloo. {mend}")
    return Finding("horovod", OK, found)


def check_this_machines_gpus() -> Finding:
    """GPUs of this machine."""
    import tensorflow as tf

    seen = len(tf.config.list_physical_devices("GPU"))
    there = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
    nccl = False
    with contextlib.suppress(ImportError):
        nccl = bool(versions.horovod_or_explain().nccl_built())
    return check_gpus(seen, there, nccl, os.environ.get("CUDA_VISIBLE_DEVICES"))


def check_gpus(seen: int, there: int, nccl: bool, visible: str | None) -> Finding:
    """Whether the GPUs of a machine are used, and their exchange is.

    Args:
        seen: GPUs that TensorFlow sees.
        there: GPUs that the machine has.
        nccl: Whether Horovod was built with NCCL.
        visible: The environment's CUDA_VISIBLE_DEVICES.
    """
    if seen:
        found = f"TensorFlow sees {seen}; each worker takes one, by its local rank"
        if nccl:
            return Finding("gpus", OK, found)
        return Finding(
            "gpus",
            WARNING,
            f"{found}. Horovod was built without NCCL: gradients go through the "
            "machine's memory",
            "Build it with NCCL: HOROVOD_GPU_OPERATIONS=NCCL keras-parallax "
            "build-horovod.",
        )
    if there and visible is None:
        return Finding(
            "gpus",
            WARNING,
            f"the machine has {there}, TensorFlow sees none",
            "Install its CUDA libraries, pip install 'tensorflow[and-cuda]', and see "
            "that nvidia-smi works.",
        )
    if there:
        found = f"the machine has {there}, CUDA_VISIBLE_DEVICES={visible!r} hides them"
        return Finding("gpus", OK, found)
    return Finding("gpus", OK, "none; training is on the processors")


def check_name(name: str, addresses: Sequence[str], several_hosts: bool) -> Finding:
    """What the machine's name stands for: Horovod has others connect to it.

    Args:
        name: The machine's own name.
        addresses: What the name resolves to here.
        several_hosts: Whether a job on several hosts is meant.
    """
    level = ERROR if several_hosts else WARNING
    where = "in /etc/hosts or in the name service"
    if not addresses:
        return Finding(
            "hostname",
            ERROR,
            f"{name!r} does not resolve",
            f"Give the name this machine's address, {where}.",
        )
    found = f"{name!r} stands for {', '.join(addresses)}"
    if all(ipaddress.ip_address(address).is_loopback for address in addresses):
        return Finding(
            "hostname",
            level,
            f"{found}, which other hosts cannot reach; jobs on this machine alone work",
            f"For a job on several hosts give the name the address that the others "
            f"reach, {where}.",
        )
    return Finding("hostname", OK, found)


def interfaces() -> dict[str, list[str]]:
    """IP addresses of the interfaces of this machine that are up, by name."""
    stats = psutil.net_if_stats()
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [
            entry.address.split("%")[0] for entry in entries if entry.family in families
        ]
        for name, entries in psutil.net_if_addrs().items()
        if name in stats and stats[name].isup
    }


def check_interfaces(
    found: Mapping[str, Sequence[str]], environ: Mapping[str, str], several_hosts: bool
) -> Finding:
    """Interfaces by which other hosts could reach this one.

    Args:
        found: Addresses by name of interface.
        environ: The environment, for HOROVOD_GLOO_IFACE.
        several_hosts: Whether a job on several hosts is meant.
    """
    shown = "; ".join(
        f"{name} {' '.join(addresses)}"
        for name, addresses in found.items()
        if addresses
    )
    wanted = environ.get(_IFACE_VARIABLE)
    if wanted and wanted not in found:
        return Finding(
            "interfaces",
            ERROR,
            f"{_IFACE_VARIABLE}={wanted!r} names none that is up: {shown or 'none'}",
            f"Unset {_IFACE_VARIABLE}, or name one of these.",
        )
    outward = [
        address
        for addresses in found.values()
        for address in addresses
        if not ipaddress.ip_address(address).is_loopback
    ]
    if several_hosts and not outward:
        return Finding(
            "interfaces",
            ERROR,
            f"none but loopback is up: {shown or 'none'}",
            "Bring up the interface of the network that the hosts share.",
        )
    return Finding("interfaces", OK, shown or "none is up")


def check_ports() -> Finding:
    """Whether a process can listen, and be reached, and how many ports there are."""
    about, mend = "ports", "See what keeps this user from listening, such as a sandbox."
    try:
        with socket.socket() as listener:
            listener.bind(("", 0))
            listener.listen(1)
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
        free_ports(_PORTS)
    except OSError as error:
        return Finding(about, ERROR, f"no process can listen here: {error}", mend)
    return Finding(
        about, OK, f"a process can listen and be reached, and {_PORTS} ports are free"
    )


def check_clock(now_seconds: float, written_seconds: float) -> Finding:
    """Whether the clock is right, as far as a machine by itself can tell.

    Args:
        now_seconds: What the clock says, since 1970.
        written_seconds: When a file of this package was written.
    """
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_seconds))
    if now_seconds < written_seconds - _DAY_SECONDS:
        return Finding(
            "clock",
            WARNING,
            f"{shown} is before this package was installed",
            "Set the clock, and let a time service (NTP) keep it.",
        )
    return Finding("clock", OK, shown)


def room_of(folder: pathlib.Path) -> tuple[int | None, bool]:
    """Free bytes on a folder's disk, and whether this user can write there."""
    there = next((p for p in (folder, *folder.parents) if p.exists()), None)
    if there is None:
        return None, False
    return shutil.disk_usage(there).free, os.access(there, os.W_OK | os.X_OK)


def check_disk(
    folder: pathlib.Path, free_bytes: int | None, is_writable: bool
) -> Finding:
    """Room for what is kept from one run to the next.

    Args:
        folder: The cache folder.
        free_bytes: Free bytes on its disk; None if unknown.
        is_writable: Whether this user can write there.
    """
    mend = "name another folder with KERAS_PARALLAX_CACHE"
    if not is_writable:
        return Finding(
            "disk",
            WARNING,
            f"the cache folder {folder} cannot be written: nothing is kept from one "
            "run to the next",
            f"Give this user the right to write there, or {mend}.",
        )
    found = f"{in_words(free_bytes or 0)} free for the cache folder {folder}"
    if (free_bytes or 0) < _LEAST_DISK_BYTES:
        return Finding("disk", WARNING, found, f"Free some space, or {mend}.")
    return Finding("disk", OK, found)


def check_this_machines_memory() -> Finding:
    """Memory of this machine, or of the container that this process is in."""
    from keras_parallax.servers.memory import Room

    room = Room.of("/device:CPU:0")
    total = psutil.virtual_memory().total
    free = psutil.virtual_memory().available if room is None else room.free_bytes
    return check_memory(free, total, usable_cores())


def check_memory(free_bytes: int, total_bytes: int, processors: int) -> Finding:
    """Whether there is memory for some processes.

    Args:
        free_bytes: What is free.
        total_bytes: What the machine has.
        processors: Processors that this process may use.
    """
    found = (
        f"{in_words(free_bytes)} of {in_words(total_bytes)} free; "
        f"{processors} processor{'s' if processors != 1 else ''}"
    )
    if free_bytes < _LEAST_MEMORY_BYTES:
        return Finding(
            "memory",
            WARNING,
            found,
            "Each worker and server takes about 0.5 GiB besides its tables: end what "
            "is not needed, or use fewer processes here.",
        )
    return Finding("memory", OK, found)


@contextlib.contextmanager
def _chatter_dropped() -> Iterator[None]:
    """Drops what libraries print on standard error when they are loaded."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _safely(about: str, check: Callable[[], Finding]) -> Finding:
    """A check's finding, or that it failed: the others are wanted all the same."""
    try:
        return check()
    except (OSError, ParallaxError, ImportError, RuntimeError, ValueError) as error:
        return Finding(
            about,
            WARNING,
            f"could not be looked at ({type(error).__name__}: {error})",
            "See what the error says; the other checks went on.",
        )
