"""Builds Horovod for the TensorFlow that is installed.

Its source is changed a little before the build (`horovod_source` says how and why).
The wheel is kept in a cache, keyed by the versions of Horovod, TensorFlow and Python:
the second installation takes seconds.

TensorFlow is not imported here: the compilation does that, in a process of its own.
"""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable

from keras_parallax.cache import cache_dir
from keras_parallax.cli import horovod_source
from keras_parallax.cli.horovod_source import HOROVOD_VERSION
from keras_parallax.cluster.threads import usable_cores
from keras_parallax.versions import TENSORFLOW_DISTRIBUTIONS, installed_version

# What the build imports or runs: pip is told not to isolate it, because it has
# to see the TensorFlow that is installed here. CMake 4 refuses the CMake lists
# of the libraries that Horovod carries along; setuptools packs wheels itself
# since 70.1.
BUILD_REQUIREMENTS = ("setuptools>=70.1", "packaging", "cmake>=3.13,<4")

# What Horovod imports at run time on Gloo. Its launcher imports `distutils`,
# which since Python 3.12 only setuptools provides.
RUN_REQUIREMENTS = ("cloudpickle", "packaging", "psutil", "pyyaml", "setuptools")


class BuildError(RuntimeError):
    """Horovod could not be built; the message says why and how to mend it."""


def tensorflow_version() -> str:
    """Version of the installed TensorFlow, without importing it."""
    found = installed_version(*TENSORFLOW_DISTRIBUTIONS)
    if found is None:
        raise BuildError(
            "TensorFlow is not installed in this Python "
            f"({sys.executable}). Horovod is compiled against the installed "
            "TensorFlow: install it first, for example with "
            "`pip install keras-parallax`."
        )
    return found


def cached_wheel_dir() -> pathlib.Path:
    """Where the wheel for this Python, TensorFlow and machine is kept."""
    operations = os.environ.get("HOROVOD_GPU_OPERATIONS", "cpu").lower()
    key = (
        f"horovod-{HOROVOD_VERSION}-tensorflow-{tensorflow_version()}"
        f"-cp{sys.version_info[0]}{sys.version_info[1]}"
        f"-{platform.machine()}-edition{horovod_source.EDITION}-{operations}"
    )
    return cache_dir() / key


def check_tools() -> None:
    """Raises `BuildError` unless a C++ compiler and make are on the path."""
    # CXX may hold a launcher and options too, as in "ccache g++".
    compiler = shlex.split(os.environ.get("CXX") or "g++")[0]
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


def check_folder() -> None:
    """Raises `BuildError` where the build would take this Python's folder for two."""
    folder = sysconfig.get_path("platlib")
    if any(character.isspace() for character in folder):
        raise BuildError(
            "Horovod's build passes TensorFlow's folder to the compiler without "
            "quotes, and cannot be used where its path contains a space. Received: "
            f"{folder!r}. Make the virtual environment in a folder without one."
        )


def build_environment() -> dict[str, str]:
    """Environment of the compilation; what the user has set wins (NCCL, say)."""
    env = {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        **os.environ,
    }
    # The CMake that pip installed goes before any other. Under `make`, MAKEFLAGS
    # holds that make's own options, and Horovod would then compile one file at a
    # time; without it, eight at a time, however small the machine.
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env["PATH"]])
    env["MAKEFLAGS"] = f"-j{min(8, usable_cores())}"
    return env


def _pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        # A compiler's first error stands far above pip's last lines.
        log = cache_dir() / "failed.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout)
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise BuildError(
            f"`{shlex.join(command)}` failed with exit status {done.returncode}. "
            f"All its output is in {log}; its last lines:\n{tail}"
        )


def changed_source(folder: pathlib.Path) -> pathlib.Path:
    """Horovod's source, downloaded into `folder` and changed; returns where it is."""
    _pip("install", "--quiet", *BUILD_REQUIREMENTS)
    requirement = f"horovod=={HOROVOD_VERSION}"
    where = ("--no-deps", "--no-binary", "horovod", "--no-build-isolation")
    _pip("download", "--quiet", *where, "--dest", str(folder), requirement)
    archive = next(folder.glob("horovod-*.tar.gz"))
    shutil.unpack_archive(archive, folder)
    source = folder / f"horovod-{HOROVOD_VERSION}"
    try:
        horovod_source.change(source)
    except horovod_source.UnknownSource as error:
        raise BuildError(str(error)) from None
    return source


def build_wheel(destination: pathlib.Path) -> pathlib.Path:
    """Compiles Horovod against the installed TensorFlow; returns the wheel."""
    check_tools()
    check_folder()
    with tempfile.TemporaryDirectory(prefix="keras_parallax_horovod_") as scratch:
        source = changed_source(pathlib.Path(scratch))
        options = ("--no-deps", "--no-build-isolation", "--wheel-dir", scratch)
        _pip("wheel", *options, str(source), env=build_environment())
        destination.mkdir(parents=True, exist_ok=True)
        built = next(pathlib.Path(scratch).glob("horovod-*.whl"))
        # Written beside its place and renamed, so that a build cut short never
        # leaves half a wheel behind, nor two at once a mixture.
        partial = destination / f"{built.name}.{os.getpid()}.partial"
        shutil.copyfile(built, partial)
        return partial.rename(destination / built.name)


def is_installed(wheel: pathlib.Path) -> bool:
    """Whether what is installed as Horovod came from this very wheel file."""
    try:
        origin = importlib.metadata.distribution("horovod").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return False
    archive = json.loads(origin or "{}").get("archive_info", {})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return archive.get("hash") == f"sha256={digest}"


def install(force: bool = False, say: Callable[[str], object] = print) -> pathlib.Path:
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
        if is_installed(wheel):
            say(f"Horovod {HOROVOD_VERSION} is installed already, from {wheel}")
            return wheel
        say(f"Horovod {HOROVOD_VERSION}: using the wheel built earlier, {wheel}")
    else:
        say(
            f"Building Horovod {HOROVOD_VERSION} for TensorFlow "
            f"{tensorflow_version()} (once; takes a few minutes) ..."
        )
        wheel = build_wheel(destination)
    _pip("install", "--quiet", *RUN_REQUIREMENTS)
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
