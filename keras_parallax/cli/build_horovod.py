"""Builds Horovod for the TensorFlow that is installed.

Horovod's last release, 0.28.1, names a source file in its CMake list that
includes TensorFlow headers which have since moved. Nothing here needs that
file (it serves XLA on MPI), so its line is dropped before the build. The wheel
is kept in a cache, keyed by the versions of Horovod, TensorFlow and Python: the
second installation takes seconds.

This module imports nothing outside the standard library, so that it runs before
the package's own dependencies are complete.
"""

import importlib.metadata
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable

HOROVOD_VERSION = "0.28.1"

# What the build imports or runs: pip is told not to isolate it, because it has
# to see the TensorFlow that is installed here.
BUILD_REQUIREMENTS = ("setuptools<81", "wheel", "packaging", "cmake<4", "cffi")

# What Horovod imports at run time on Gloo.
RUN_REQUIREMENTS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")

CMAKE_LIST = "horovod/tensorflow/CMakeLists.txt"
UNBUILDABLE_SOURCE = "xla_mpi_ops.cc"


class BuildError(RuntimeError):
    """Horovod could not be built; the message says why and how to mend it."""


def cache_dir() -> pathlib.Path:
    """Folder in which built wheels are kept (`KERAS_PARALLAX_CACHE` overrides)."""
    root = os.environ.get("KERAS_PARALLAX_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
        "keras_parallax",
    )
    return pathlib.Path(root)


def tensorflow_version() -> str:
    """Version of the installed TensorFlow, without importing it."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise BuildError(
        "TensorFlow is not installed in this Python "
        f"({sys.executable}). Horovod is compiled against the installed "
        "TensorFlow: install it first, for example with "
        "`pip install keras-parallax`."
    )


def cached_wheel_dir() -> pathlib.Path:
    """Where the wheel for this Python, TensorFlow and machine is kept."""
    operations = os.environ.get("HOROVOD_GPU_OPERATIONS", "cpu").lower()
    key = (
        f"horovod-{HOROVOD_VERSION}-tensorflow-{tensorflow_version()}"
        f"-cp{sys.version_info[0]}{sys.version_info[1]}"
        f"-{platform.machine()}-{operations}"
    )
    return cache_dir() / key


def check_tools() -> None:
    """Raises `BuildError` unless a C++ compiler and make are on the path."""
    compiler = os.environ.get("CXX", "g++")
    missing = [tool for tool in (compiler, "make") if shutil.which(tool) is None]
    if missing:
        raise BuildError(
            f"Building Horovod {HOROVOD_VERSION} needs a C++ compiler and make; "
            f"not found on the path: {', '.join(missing)}. Install them (on "
            "Debian or Ubuntu: `apt-get install g++ make`; on Fedora: "
            "`dnf install gcc-c++ make`), or name another compiler with "
            "the environment variable CXX, and run `keras-parallax "
            "build-horovod` again."
        )


def drop_unbuildable_source(source: pathlib.Path) -> None:
    """Removes the line of the CMake list that names the source we cannot build."""
    path = source / CMAKE_LIST
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if UNBUILDABLE_SOURCE not in line]
    if len(kept) == len(lines):
        raise BuildError(
            f"Expected a line naming {UNBUILDABLE_SOURCE} in {CMAKE_LIST} of "
            f"Horovod {HOROVOD_VERSION}, found none: this is not the source "
            "release that keras-parallax knows how to build."
        )
    path.write_text("".join(kept))


def _pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-40:])
        raise BuildError(
            f"`{' '.join(command)}` failed with exit status {done.returncode}. "
            f"Its last lines:\n{tail}"
        )


def build_wheel(destination: pathlib.Path) -> pathlib.Path:
    """Compiles Horovod against the installed TensorFlow; returns the wheel."""
    check_tools()
    _pip("install", "--quiet", *BUILD_REQUIREMENTS, *RUN_REQUIREMENTS)
    with tempfile.TemporaryDirectory(prefix="keras_parallax_horovod_") as scratch:
        requirement = f"horovod=={HOROVOD_VERSION}"
        where = ("--no-deps", "--no-binary", "horovod", "--no-build-isolation")
        _pip("download", "--quiet", *where, "--dest", scratch, requirement)
        with tarfile.open(next(pathlib.Path(scratch).glob("*.tar.gz"))) as archive:
            archive.extractall(scratch, filter="data")
        source = pathlib.Path(scratch) / f"horovod-{HOROVOD_VERSION}"
        drop_unbuildable_source(source)
        env = {
            "HOROVOD_WITH_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_PYTORCH": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITHOUT_MPI": "1",
            "HOROVOD_WITH_GLOO": "1",
            **os.environ,  # The user's own choices win, NCCL for example.
        }
        env["PATH"] = os.pathsep.join(
            [os.path.dirname(sys.executable), env.get("PATH", "")]
        )
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch,
             str(source), env=env)  # fmt: skip
        destination.mkdir(parents=True, exist_ok=True)
        built = next(pathlib.Path(scratch).glob("horovod-*.whl"))
        # Written beside its place and renamed, so that a build cut short never
        # leaves half a wheel behind.
        partial = destination / (built.name + ".partial")
        shutil.copyfile(built, partial)
        return partial.rename(destination / built.name)


def install(
    force: bool = False, say: Callable[[str], object] = print
) -> pathlib.Path:
    """Installs Horovod for the installed TensorFlow, building it if need be.

    Args:
        force: Build again although a wheel for these versions is in the cache.
        say: Called with each line of progress.

    Returns:
        Path of the wheel that was installed.

    Raises:
        BuildError: A compiler, TensorFlow or the source release is missing, or
            the compilation failed.
    """
    destination = cached_wheel_dir()
    wheels = sorted(destination.glob("horovod-*.whl"))
    if wheels and not force:
        wheel = wheels[-1]
        say(f"Horovod {HOROVOD_VERSION}: using the wheel built earlier, {wheel}")
        _pip("install", "--quiet", *RUN_REQUIREMENTS)
    else:
        say(
            f"Building Horovod {HOROVOD_VERSION} for TensorFlow "
            f"{tensorflow_version()} (once; takes a few minutes) ..."
        )
        wheel = build_wheel(destination)
    _pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel))
    say(f"Horovod {HOROVOD_VERSION} is installed.")
    return wheel


def main() -> int:
    """Command-line entry: `python -m keras_parallax.cli.build_horovod`."""
    try:
        install(force="--force" in sys.argv[1:])
    except BuildError as error:
        print(f"keras-parallax build-horovod: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
