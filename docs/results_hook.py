"""A mkdocs hook: puts what the benchmarks have measured into the page of results.

It reads `docs/results/*.json`, as `python -m benchmarks.NAME --json FILE` writes
them, so that no figure of the page is typed by hand.
"""

import ast
import itertools
import json
import pathlib
import re

DOCS = pathlib.Path(__file__).parent
BENCHMARKS = DOCS.parent / "benchmarks"
PLACE = "<!-- results -->"
# One benchmark's results, on any page.
PLACE_OF_ONE = re.compile(r"<!-- results: (\w+) -->")
# As names of columns end in them, and as they are written.
UNITS = {
    "ms": "ms",
    "seconds": "s",
    "s": "s",
    "us": "µs",
    "mb": "MB",
    "gb": "GB",
    "gib": "GiB",
    "mbit": "Mbit/s",
    "gbit": "Gbit/s",
}
NONE_YET = (
    "No results are kept in this copy of the sources: `make bench` measures them."
)


def on_page_markdown(markdown, page, **kwargs):
    """Called by mkdocs with each page's text; returns the text to render."""
    markdown = PLACE_OF_ONE.sub(lambda place: results_of(place[1]), markdown)
    if PLACE not in markdown:
        return markdown
    paths = sorted((DOCS / "results").glob("*.json"))
    sections = [section(json.loads(path.read_text("utf-8")), path) for path in paths]
    return markdown.replace(PLACE, "\n\n".join(sections) or NONE_YET)


def results_of(name):
    """The section of one benchmark, without its heading: the page has its own."""
    path = DOCS / "results" / f"{name}.json"
    if not path.exists():
        return NONE_YET
    text = section(json.loads(path.read_text("utf-8")), path)
    return text.partition("\n\n")[2]


def section(report, path):
    """One benchmark: what it asks, what was asked for, what was measured."""
    name = report["name"]
    parts = [f"## {name.replace('_', ' ').capitalize()}", about(name)]
    picture = DOCS / "img" / f"{name}.png"
    if picture.exists():
        parts.append(f"![{about(name)}](img/{picture.name})")
    checks = [
        {
            "asked for": check,
            "measured": found["value"],
            "target": found["target"],
            "": "holds" if found["holds"] else "**does not hold**",
        }
        for check, found in report["checks"].items()
    ]
    if checks:
        parts.append(table(checks))
    # Rows of one kind stand together.
    for _, rows in itertools.groupby(report["rows"], key=lambda row: sorted(row)):
        parts.append(table(list(rows)))
    parts.append(f"{circumstances(report)} [The figures as JSON](results/{path.name}).")
    return "\n\n".join(part for part in parts if part)


def about(name):
    """First line of the benchmark's docstring."""
    path = BENCHMARKS / f"{name}.py"
    if not path.exists():
        return ""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n")[0]


def circumstances(report):
    """Where, when and with what it was measured."""
    machine, versions = report.get("machine", {}), report.get("versions", {})
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    where = ", ".join(f"{key}: {value}" for key, value in machine.items())
    return f"Measured on {report.get('date', '')[:10]} ({where}; {packages})."


def table(rows):
    """A table in Markdown; numbers stand to the right."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    # What no row says needs no column.
    columns = [c for c in columns if any(has(row, c) for row in rows)]
    if not columns:
        return ""
    numeric = [
        all(isinstance(row[c], int | float) for row in rows if has(row, c))
        for c in columns
    ]
    lines = [[heading(str(column)) for column in columns]]
    lines.append(["---:" if right else "---" for right in numeric])
    lines += [[cell(row.get(column)) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def has(row, column):
    """Whether a row says something in a column."""
    return row.get(column) not in (None, "")


def heading(column):
    """A column's name as people write it: `step_ms` becomes `step (ms)`."""
    words = [word for word in column.split("_") if word]
    if len(words) > 1 and words[-1] in UNITS and words[-2] != "per":
        return f"{' '.join(words[:-1])} ({UNITS[words[-1]]})"
    return " ".join(UNITS.get(word, word) for word in words)


def cell(value):
    """A value with the digits that count."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("|", "\\|")
