"""Runs Gloo, as it is changed for the build, under sanitizers.

    python -m tests.transport.sanitize

A fault between threads shows once in a thousand jobs, or under another compiler; the
sanitizers find it where it is. It takes minutes, so the tests do without it: run it
after a change in `keras_parallax/cli/horovod_source.py`.
"""

import argparse
import itertools
import pathlib
import subprocess
import sys
import tempfile

from keras_parallax.cli import build_horovod

HERE = pathlib.Path(__file__).parent
# Of races between threads; of memory and of what C++ leaves undefined.
SANITIZERS = ("thread", "address,undefined")
WORKERS = (2, 3, 5)
ROUNDS = 1500
DEADLINE_SECONDS = 300


def build(gloo: pathlib.Path, sanitizer: str, folder: pathlib.Path) -> pathlib.Path:
    """Compiles the program with a sanitizer; returns its path."""
    env = build_horovod.build_environment()
    options = (f"-DGLOO={gloo}", f"-DSANITIZER={sanitizer}", "-Wno-dev")
    for command in (
        ("cmake", "-S", str(HERE), "-B", str(folder), *options),
        ("cmake", "--build", str(folder), "--target", "transport"),
    ):
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return folder / "transport"


def main() -> int:
    """Builds with each sanitizer and runs; 1 if anything was found."""
    parser = argparse.ArgumentParser(
        description="Tries the changed transport under sanitizers."
    )
    parser.add_argument("--seeds", type=int, default=2, help="runs of each kind")
    seeds = parser.parse_args().seeds
    faults = 0
    with tempfile.TemporaryDirectory(prefix="keras_parallax_transport_") as scratch:
        folder = pathlib.Path(scratch)
        source = build_horovod.changed_source(folder)
        for sanitizer in SANITIZERS:
            program = build(source / "third_party/gloo", sanitizer, folder / sanitizer)
            for workers, seed in itertools.product(WORKERS, range(seeds)):
                command = (str(program), str(workers), str(ROUNDS), str(seed))
                code = subprocess.run(command, timeout=DEADLINE_SECONDS).returncode
                found = f"exit status {code}" if code else "nothing found"
                print(
                    f"{sanitizer}: {workers} workers, {ROUNDS} operations, seed "
                    f"{seed}: {found}",
                    flush=True,
                )
                faults += bool(code)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
