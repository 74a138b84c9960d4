"""Every Python snippet of the README and the documentation runs."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def program(path):
    """The snippets of a page as one program, each at its place in the page.

    The lines between them are left blank, so that a traceback's line number is
    the page's.
    """
    text = path.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for match in FENCE.finditer(text):
        first = text.count("\n", 0, match.start(1))
        snippet = match[1].splitlines()
        lines[first : first + len(snippet)] = snippet
    return "\n".join(lines)


PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if FENCE.search(page.read_text(encoding="utf-8"))
]


def test_the_readme_has_a_snippet():
    assert ROOT / "README.md" in PAGES


def run(page, tmp_path, *launcher):
    """Runs a page's program in `tmp_path`, alone or under a launcher."""
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program(page), encoding="utf-8")
    done = subprocess.run(
        [*launcher, sys.executable, str(script)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page, tmp_path):
    run(page, tmp_path)


@pytest.mark.multiprocess
def test_the_first_steps_are_the_same_on_two_workers(tmp_path):
    page = ROOT / "docs" / "getting_started.md"
    launcher = [sys.executable, "-m", "keras_parallax.cli.main", "run", "-np", "2"]
    done = run(page, tmp_path, *launcher, "--")
    assert "worker 0 of 2" in done.stdout
    # What each worker has saved, it alone and whole.
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.keras")}
    assert sizes.keys() == {"model.keras", "copy-1.keras"}
    assert len(set(sizes.values())) == 1
