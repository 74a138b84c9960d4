"""What the server processes take of their machines: memory and processors.

A server does nothing but run TensorFlow's operations, so it is asked by one: it reads
the kernel's account of its own process, as a file.
"""

from __future__ import annotations

import dataclasses
import os
import time

import tensorflow as tf

_STAT, _STATM = "/proc/self/stat", "/proc/self/statm"
# Places after the name, which stands in brackets and may hold anything: proc(5).
_USER_TICKS, _SYSTEM_TICKS = 11, 12


@dataclasses.dataclass(frozen=True)
class ServerAccount:
    """One server process, since it was last asked.

    Attributes:
        resident_bytes: Memory that it has now.
        busy_cores: Processors that it has kept busy, on average; None where it is
            asked for the first time.
    """

    resident_bytes: int
    busy_cores: float | None


class ServerAccounts:
    """Asks server processes for what they take.

    Args:
        devices: A device of each server.
    """

    def __init__(self, devices: list[str]):
        self._devices = devices
        self._before: list[float] | None = None
        self._asked_at = 0.0

    @classmethod
    def of_connected(cls) -> ServerAccounts:
        """Those of the servers that this process is connected to."""
        found = map(tf.DeviceSpec.from_string, _logical_processors())
        servers = [spec for spec in found if spec.job == "ps"]
        ordered = sorted(servers, key=lambda spec: spec.task)
        return cls([spec.to_string() for spec in ordered])

    def read(self) -> list[ServerAccount]:
        """Each server's account, in order; nothing where servers keep none."""
        # All are asked before the first answers.
        try:
            asked = [self._ask(device) for device in self._devices]
            told = [[text.numpy().decode() for text in pair] for pair in asked]
        except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError):
            self._devices = []  # Not on Linux: it will not be otherwise next time.
            return []
        now = time.monotonic()
        seconds = [busy_seconds(stat) for stat, _ in told]
        before, passed = self._before, now - self._asked_at
        self._before, self._asked_at = seconds, now
        return [
            ServerAccount(
                resident_bytes(statm),
                None if before is None else (seconds[n] - before[n]) / passed,
            )
            for n, (_, statm) in enumerate(told)
        ]

    def _ask(self, device: str) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device(device):
            return tf.io.read_file(_STAT), tf.io.read_file(_STATM)


def busy_seconds(stat: str) -> float:
    """Processor time of a process, of all its threads, from `/proc/<pid>/stat`."""
    fields = stat.rpartition(")")[2].split()
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(statm: str) -> int:
    """Memory of a process, from `/proc/<pid>/statm`."""
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _logical_processors() -> list[str]:
    return [device.name for device in tf.config.list_logical_devices("CPU")]
