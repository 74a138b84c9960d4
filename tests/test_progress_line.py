"""Work that takes long says so, on one worker; other work says nothing."""

import pytest

from keras_parallax.servers import progress_line
from keras_parallax.servers.progress_line import ProgressLine, in_words


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    return now


def work(clock, shown=True, fails=False):
    with ProgressLine("filling words", 100, shown) as line:
        for _ in range(10):
            clock[0] += 2.0
            line.add(10)
        if fails:
            raise KeyboardInterrupt


def test_quick_work_says_nothing(clock, capsys):
    with ProgressLine("filling words", 100) as line:
        clock[0] += 2.9
        line.add(100)
    assert capsys.readouterr().err == ""


def test_long_work_has_a_line_now_and_then(clock, capsys):
    work(clock)
    lines = [line.rstrip() for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "keras_parallax: filling words: 20%",
        "keras_parallax: filling words: 70%",
        "keras_parallax: filling words: done after 20 s",
    ]


def test_a_terminal_has_one_line(clock, capsys, monkeypatch):
    monkeypatch.setattr(progress_line.sys.stderr, "isatty", lambda: True)
    work(clock)
    written = capsys.readouterr().err
    assert written.count("\n") == 1 and written.endswith("\n")
    assert written.count("\r") == 10


def test_one_worker_speaks_for_all(clock, capsys):
    work(clock, shown=False)
    assert capsys.readouterr().err == ""


def test_work_that_fails_is_not_called_done(clock, capsys):
    with pytest.raises(KeyboardInterrupt):
        work(clock, fails=True)
    assert "stopped after 20 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (2048, "2 KiB"),
        (300 << 20, "300 MiB"),
        (8 << 30, "8.0 GiB"),
        (2000 << 30, "2,000.0 GiB"),
    ],
)
def test_sizes_in_words(size_bytes, words):
    assert in_words(size_bytes) == words
