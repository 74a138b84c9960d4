"""`keras-parallax run --timeline`: Horovod is told by its own variable."""

import pytest

from keras_parallax.cli import main as cli
from keras_parallax.cluster import launch


def started(monkeypatch, *options):
    """The environment that a job would be launched with."""
    jobs = []
    monkeypatch.setattr(launch, "run", lambda job: jobs.append(job) or 0)
    assert cli.main(["run", "-np", "2", *options, "--", "true"]) == 0
    return jobs[0].environ


def test_workers_learn_of_the_timeline(monkeypatch, tmp_path):
    monkeypatch.delenv("HOROVOD_TIMELINE", raising=False)
    monkeypatch.chdir(tmp_path)
    environ = started(monkeypatch, "--timeline", "horovod.json")
    assert environ["HOROVOD_TIMELINE"] == str(tmp_path / "horovod.json")
    assert "HOROVOD_TIMELINE" not in started(monkeypatch)


def test_what_the_user_has_set_is_kept(monkeypatch):
    monkeypatch.setenv("HOROVOD_TIMELINE", "/tmp/mine.json")
    assert started(monkeypatch)["HOROVOD_TIMELINE"] == "/tmp/mine.json"


@pytest.mark.parametrize("variable", ["/elsewhere.json", ""])
def test_a_timeline_that_cannot_be_is_refused(monkeypatch, capsys, variable):
    monkeypatch.setenv("HOROVOD_TIMELINE", variable)
    file = "/no/such/folder/horovod.json"
    assert cli.main(["run", "--timeline", file, "--", "true"]) == 2
    assert f"--timeline {file}" in capsys.readouterr().err


def test_a_folder_that_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.delenv("HOROVOD_TIMELINE", raising=False)
    arguments = ["run", "--timeline", "/no/such/folder/h.json", "--", "true"]
    assert cli.main(arguments) == 2
    assert "/no/such/folder, does not exist" in capsys.readouterr().err
