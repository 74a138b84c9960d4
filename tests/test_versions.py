import importlib.metadata
import json
import pathlib
import subprocess
import sys
import types

import pytest

from keras_parallax import versions

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def installed(monkeypatch):
    """Versions that are found; a test changes them at will."""
    found = {"tensorflow": "2.21.0", "keras": "3.15.1"}

    def version(name):
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


@pytest.fixture
def no_keras(monkeypatch, tmp_path):
    """Keras neither imported nor configured."""
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path


def test_what_is_installed_here_is_accepted():
    versions.check_versions()


@pytest.mark.parametrize("tensorflow", ["2.21.0", "2.21.1", "2.21.0rc1"])
def test_every_release_of_the_series_is_accepted(installed, tensorflow):
    installed["tensorflow"] = tensorflow
    versions.check_versions()


def test_another_distribution_of_tensorflow_is_accepted(installed):
    installed["tensorflow-cpu"] = installed.pop("tensorflow")
    versions.check_versions()


@pytest.mark.parametrize(
    ("name", "found", "message"),
    [
        ("tensorflow", "2.2.1", r"TensorFlow: found 2\.2\.1, expected 2\.21\.\*"),
        ("tensorflow", None, r"TensorFlow: found none, .* 'tensorflow==2\.21\.\*'"),
        ("keras", "3.1.5", r"Keras: found 3\.1\.5, .* `pip install 'keras==3\.15"),
    ],
)
def test_another_series_is_refused_by_name(installed, name, found, message):
    del installed[name]
    if found:
        installed[name] = found
    with pytest.raises(ImportError, match=message):
        versions.check_versions()


def test_all_that_is_wrong_is_listed_at_once(installed, no_keras, monkeypatch):
    installed.update(tensorflow="2.18.0", keras="3.5.0")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(ImportError) as raised:
        versions.check_versions()
    message = str(raised.value)
    assert "found 2.18.0" in message
    assert "found 3.5.0" in message
    assert "found 'jax' (set by the environment variable KERAS_BACKEND)" in message


def test_backend_of_an_imported_keras_decides(no_keras, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    backend = types.SimpleNamespace(backend=lambda: "torch")
    monkeypatch.setitem(sys.modules, "keras", types.SimpleNamespace(backend=backend))
    assert versions.keras_backend()[0] == "torch"


def test_backend_of_the_configuration_file(no_keras):
    path = no_keras / "keras.json"
    path.write_text(json.dumps({"backend": "jax"}))
    assert versions.keras_backend() == ("jax", str(path))


@pytest.mark.parametrize("text", [None, "{ not JSON", "[]", "{}"])
def test_backend_is_tensorflow_where_nothing_says_otherwise(no_keras, text):
    if text is not None:
        (no_keras / "keras.json").write_text(text)
    assert versions.keras_backend()[0] == "tensorflow"


def test_horovod_missing_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    with pytest.raises(ImportError, match="keras-parallax build-horovod") as raised:
        versions.horovod_or_explain()
    assert raised.value.__cause__ is not None


def test_horovod_not_installed_is_said(installed, monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    with pytest.raises(ImportError, match="it is not installed"):
        versions.horovod_or_explain()


def test_only_the_standard_library_is_imported():
    script = (
        "import runpy, sys\n"
        f"runpy.run_path({str(ROOT / 'keras_parallax' / 'versions.py')!r})"
        "['check_versions']()\n"
        "print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_installed_metadata_has_the_version():
    assert importlib.metadata.version("keras-parallax") == versions.__version__


def test_changelog_begins_with_the_version():
    headings = [
        line.split()[1]
        for line in (ROOT / "CHANGELOG.md").read_text().splitlines()
        if line.startswith("## ")
    ]
    assert headings[0] == versions.__version__
