"""Runs a program as a job of real processes, and gives back what it wrote."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import psutil

PROGRAMS = pathlib.Path(__file__).parent / "programs"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        returncode: The launcher's.
        stdout: What the workers printed.
        stderr: What the launcher and the workers reported.
        results: What each worker wrote, in order of rank; None where it wrote
            nothing.
    """

    returncode: int
    stdout: str
    stderr: str
    results: list

    def check(self) -> "Outcome":
        """Itself, if the job ended well."""
        assert self.returncode == 0, f"{self.stdout}\n{self.stderr}"
        return self


def run_job(
    program: str,
    folder: pathlib.Path,
    *arguments: object,
    workers: int = 1,
    servers: int = 0,
    environ: dict[str, str] | None = None,
    timeout_seconds: float = 150,
) -> Outcome:
    """Runs `programs/<program>.py` under `keras-parallax run`.

    Each worker is told, as first argument, a folder into which it may write
    `result-<rank>.json`. Fails the test if a process of the job is left.
    """
    command = [sys.executable, "-m", "keras_parallax.cli.main", "run"]
    command += ["-np", str(workers)]
    command += ["--servers", str(servers)] if servers else []
    command += ["--", sys.executable, str(PROGRAMS / f"{program}.py"), str(folder)]
    env = {**os.environ, "PYTHONWARNINGS": "ignore", **(environ or {})}
    marker = f"{folder}"
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        stdin=subprocess.DEVNULL,
    )
    assert not left_running(marker)
    results = []
    for rank in range(workers):
        path = folder / f"result-{rank}.json"
        results.append(json.loads(path.read_text()) if path.exists() else None)
    return Outcome(done.returncode, done.stdout, done.stderr, results)


def left_running(marker: str) -> list[str]:
    """Command lines of living processes that name `marker`."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        ours = process.info["pid"] == os.getpid()
        if marker in line and not ours and process.info["status"] != "zombie":
            found.append(line)
    return found


def write_result(folder: str, rank: int, result: object) -> None:
    """Called by a program: leaves `result` for the test."""
    path = pathlib.Path(folder) / f"result-{rank}.json"
    path.write_text(json.dumps(result))
