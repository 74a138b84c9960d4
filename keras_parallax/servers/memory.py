"""Whether a table fits where it is to live, asked before anything is allocated.

What is free is read on the device that will hold the rows, by operations on it: so a
server on another machine is asked the same way as this process.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import psutil
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.cluster.job import Job
from keras_parallax.servers.home import Home, partitioning_of
from keras_parallax.servers.progress_line import in_words
from keras_parallax.servers.storage import TableSpec

CHECK_VARIABLE = "KERAS_PARALLAX_MEMORY_CHECK"
# Tables smaller than this, taken together, are made without asking: a model with a
# hundred small ones would ask for longer than it takes to make them.
UNASKED_BYTES = 64 << 20
# A row crosses between processes in one piece, which has to stay below 2 GiB.
ROW_LIMIT_BYTES = 1 << 30

_MEMINFO = "/proc/meminfo"
_BOOT = "/proc/sys/kernel/random/boot_id"
_HOST = "/proc/sys/kernel/hostname"
_LIMIT = "/sys/fs/cgroup/memory.max"
_USED = "/sys/fs/cgroup/memory.current"
_STAT = "/sys/fs/cgroup/memory.stat"


@dataclasses.dataclass(frozen=True)
class Room:
    """Memory for tables.

    Attributes:
        machine: What it is the memory of: devices of one machine share it.
        free_bytes: How much of it is free.
    """

    machine: str
    free_bytes: int

    @classmethod
    def of(cls, device: str) -> Room | None:
        """The memory that is free for rows on a device, or None if unknown."""
        if "CPU" not in device.upper():
            return None
        known = _read(device)
        if _MEMINFO not in known:
            if "/job:" in device:
                return None
            return cls("", psutil.virtual_memory().available)
        machine = known.get(_BOOT, device).strip()
        free = _numbers(known[_MEMINFO])["MemAvailable:"] << 10
        limit = known.get(_LIMIT, "max").strip()
        if limit == "max":
            return cls(machine, free)
        # A container's limit. Files that were read count as used, but give way.
        files = _numbers(known.get(_STAT, "")).get("inactive_file", 0)
        left = int(limit) - int(known.get(_USED, "0")) + files
        if left >= free:
            return cls(machine, free)
        return cls(f"{machine}/{known.get(_HOST, device).strip()}", max(0, left))


class MemoryGuard:
    """Compares what tables need with what is free where they are to live.

    Args:
        job: This worker's place in the job.
        home: Where partitions live.
    """

    def __init__(self, job: Job, home: Home):
        self._job = job
        self._home = home
        self._unasked_bytes = 0
        # Asking is done together, so it is decided once for all.
        self._asks = job.share(os.environ.get(CHECK_VARIABLE, "1") != "0")

    def check(self, spec: TableSpec, slot_of: str = "") -> None:
        """Raises if a table does not fit; every worker calls it, before it is made.

        An optimizer's slots are made when it is built, and checked then, each with
        what is still free.

        Args:
            spec: The table's.
            slot_of: Path of the table whose slot it is, if it is one.

        Raises:
            TableError: It does not fit, on all workers alike.
        """
        table = slot_of or spec.path
        if spec.row_bytes > ROW_LIMIT_BYTES:
            raise errors.TableError(
                f"A row of {spec.label} has {in_words(spec.row_bytes)}; expected at "
                f"most {in_words(ROW_LIMIT_BYTES)}, for a row is sent in one piece. "
                "Make it of more, narrower rows, or replicate the variable with "
                f"routes={{{spec.path!r}: 'allreduce'}}.",
                table=table,
            )
        self._unasked_bytes += spec.table_bytes
        if self._unasked_bytes < UNASKED_BYTES or not self._asks:
            return
        self._unasked_bytes = 0
        refuse_what_does_not_fit(
            spec, needs_bytes(spec, self._home), self._rooms(), self._who(), slot_of
        )

    def _rooms(self) -> list[Room | None]:
        devices = self._home.devices
        if self._home.name == "peers":
            return self._job.gather(Room.of(devices[self._job.rank]))
        # All workers have to decide alike: one of them asks.
        rooms = None
        if self._job.rank == 0:
            rooms = [Room.of(device) for device in devices]
        return self._job.share(rooms)

    def _who(self) -> str:
        return {"dedicated": "server", "peers": "worker"}.get(self._home.name, "")


def needs_bytes(spec: TableSpec, home: Home) -> list[int]:
    """Bytes of a table's rows on each device of a home."""
    partitioning = partitioning_of(spec)
    needs = [0] * len(home.devices)
    for p in range(spec.num_partitions):
        needs[home.server_of(p, spec)] += partitioning.size(p) * spec.row_bytes
    return needs


def refuse_what_does_not_fit(
    spec: TableSpec,
    needs: Sequence[int],
    rooms: Sequence[Room | None],
    who: str,
    slot_of: str = "",
) -> None:
    """Raises `TableError` if a machine has less memory than is to be used of it.

    Args:
        spec: The table's.
        needs: Bytes needed on each device.
        rooms: Memory of each device; None where it is unknown.
        who: What has the devices, `"server"` or `"worker"`; empty for this process.
        slot_of: Path of the table whose slot it is, if it is one.
    """
    for room in dict.fromkeys(rooms):
        if room is None:
            continue
        here = [
            index
            for index, other in enumerate(rooms)
            if other is not None and other.machine == room.machine
        ]
        need = sum(needs[index] for index in here)
        if need <= room.free_bytes:
            continue
        where = "this process"
        if who:
            plural = "s" if len(here) > 1 else ""
            where = f"the machine of {who}{plural} {', '.join(map(str, here))}"
        what = f"{spec.label}, a slot of {slot_of}," if slot_of else spec.label
        mend = (
            "choose an optimizer with fewer or no slots for it (SGD has none, "
            "Adagrad one, Adam two)"
            if slot_of
            else "give it fewer rows or narrower ones (an optimizer's slots come on "
            "top: Adagrad has one of the same size, Adam two, SGD none)"
        )
        raise errors.TableError(
            f"{what} does not fit: it needs {in_words(need)} in the memory of "
            f"{where}, where {in_words(room.free_bytes)} are free. Spread it over "
            f"more machines with servers, or {mend}. {CHECK_VARIABLE}=0 in the "
            "environment tries it all the same.",
            table=slot_of or spec.path,
        )


def _read(device: str) -> dict[str, str]:
    """Those of the files that exist on the machine of a device, by path."""
    paths = [_MEMINFO, _BOOT, _HOST, _LIMIT, _USED, _STAT]
    with tf.init_scope(), tf.device(device):
        # Asked for first: an operation that fails on a server fails later ones, too.
        found = [path.decode() for path in tf.io.matching_files(paths).numpy()]
        texts = [tf.io.read_file(path) for path in found]
        return {
            path: text.numpy().decode() for path, text in zip(found, texts, strict=True)
        }


def _numbers(text: str) -> dict[str, int]:
    """The first number of each line, by its first word."""
    lines = [line.split() for line in text.splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
