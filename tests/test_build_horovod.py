import hashlib
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from keras_parallax.cli import build_horovod, horovod_source


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of wheels."""
    path = tmp_path / "cache"
    monkeypatch.setenv("KERAS_PARALLAX_CACHE", str(path))
    return path


@pytest.fixture
def no_tools(tmp_path, monkeypatch):
    """A path on which there is neither a compiler nor make."""
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("CXX", raising=False)
    return empty


@pytest.fixture
def pip(monkeypatch):
    """What pip is asked to do; nothing is done."""
    calls = []

    def record(*arguments, env=None):
        calls.append(arguments)

    monkeypatch.setattr(build_horovod, "_pip", record)
    return calls


def put_wheel(folder):
    folder.mkdir(parents=True)
    wheel = folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"a wheel")
    return wheel


def test_cache_follows_the_xdg_folder(monkeypatch):
    monkeypatch.delenv("KERAS_PARALLAX_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert build_horovod.cache_dir() == pathlib.Path("/somewhere/keras_parallax")


def test_wheels_are_kept_apart_by_what_they_are_built_for(cache, monkeypatch):
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS", raising=False)
    monkeypatch.setattr(build_horovod, "tensorflow_version", lambda: "2.21.7")
    for_cpu = build_horovod.cached_wheel_dir()
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert for_cpu.parent == cache
    assert for_cpu.name.startswith(f"horovod-0.28.1-tensorflow-2.21.7-{python}-")
    assert for_cpu.name.endswith(f"-edition{horovod_source.EDITION}-cpu")
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    assert build_horovod.cached_wheel_dir().name.endswith("-nccl")


def test_missing_tools_are_named_with_the_mend(no_tools):
    with pytest.raises(build_horovod.BuildError) as raised:
        build_horovod.check_tools()
    message = str(raised.value)
    assert "not found on the path: g++, make" in message
    assert "apt-get install g++ make" in message


def test_the_compiler_of_the_environment_is_looked_for(no_tools, monkeypatch):
    make = no_tools / "make"
    make.touch(mode=0o755)
    monkeypatch.setenv("CXX", "some-compiler -m64")
    with pytest.raises(build_horovod.BuildError, match="path: some-compiler. Install"):
        build_horovod.check_tools()


def test_a_folder_that_the_build_cannot_take_is_refused(monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/my projects/.venv/lib")
    with pytest.raises(build_horovod.BuildError, match="'/my projects/.venv/lib'"):
        build_horovod.check_folder()


def test_missing_tensorflow_is_said(monkeypatch):
    monkeypatch.setattr(build_horovod, "installed_version", lambda *names: None)
    with pytest.raises(build_horovod.BuildError, match="TensorFlow is not installed"):
        build_horovod.tensorflow_version()


def test_the_users_choices_reach_the_build(monkeypatch):
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    monkeypatch.setenv("HOROVOD_WITHOUT_MPI", "0")
    monkeypatch.setenv("MAKEFLAGS", "w -- PYTHON=python3")
    env = build_horovod.build_environment()
    assert env["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert env["HOROVOD_WITHOUT_MPI"] == "0"
    assert env["HOROVOD_WITH_GLOO"] == "1"
    assert env["MAKEFLAGS"].startswith("-j")
    assert env["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)


def test_a_wheel_in_the_cache_is_installed_without_a_compiler(cache, no_tools, pip):
    wheel = put_wheel(build_horovod.cached_wheel_dir())
    assert build_horovod.install(say=lambda line: None) == wheel
    assert pip[-1][-1] == str(wheel)


def test_a_wheel_that_is_installed_already_is_left_alone(cache, pip, monkeypatch):
    monkeypatch.setattr(build_horovod, "tensorflow_version", lambda: "2.21.0")
    wheel = put_wheel(build_horovod.cached_wheel_dir())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    origin = json.dumps({"archive_info": {"hash": f"sha256={digest}"}})
    horovod = types.SimpleNamespace(read_text=lambda name: origin)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: horovod)
    lines = []
    assert build_horovod.install(say=lines.append) == wheel
    assert pip == []
    assert "installed already" in lines[0]


def test_what_fails_is_kept_in_full(cache):
    with pytest.raises(build_horovod.BuildError, match="no-such-command") as raised:
        build_horovod._pip("no-such-command")
    log = cache / "failed.log"
    assert str(log) in str(raised.value)
    assert "no-such-command" in log.read_text()


def test_command_fails_clearly_without_a_compiler(cache, no_tools):
    done = subprocess.run(
        [sys.executable, "-m", "keras_parallax.cli.build_horovod"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "needs a C++ compiler and make" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(cache.rglob("*.whl"))
