"""What every benchmark shares: its arguments, its table, its JSON, its repeats.

A benchmark is a module run as `python -m benchmarks.NAME [--quick] [--json FILE]`:

    args = report.arguments(__doc__).parse_args()
    results = report.Report("overhead")
    paired = report.compare({"stock": stock, "strategy": strategy}, repeats=5)
    results.add_row(model="dense", **paired.medians)
    results.add_check("dense ratio", paired.ratio("strategy", "stock"), "<=", 1.05)
    results.finish(args.json)
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import math
import operator
import pathlib
import platform
import statistics

from keras_parallax.cluster.threads import usable_cores

PACKAGES = ("keras_parallax", "tensorflow", "keras", "horovod", "numpy")

COMPARISONS = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}


def arguments(description, plots=False):
    """Makes the parser of a benchmark's arguments, to which it may add its own.

    Args:
        description: The benchmark's docstring. Its first line is shown.
        plots: Whether the benchmark draws its results.

    Returns:
        `argparse.ArgumentParser` with `--quick`, `--json FILE` and, where it draws,
        `--plot FILE`.
    """
    parser = argparse.ArgumentParser(description=description.strip().splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="fewer, smaller runs: under 10 minutes"
    )
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="also write the results here"
    )
    if plots:
        parser.add_argument(
            "--plot", type=pathlib.Path, metavar="FILE", help="also draw them here"
        )
    return parser


class Report:
    """Rows measured and checks of them against what was asked for.

    Args:
        name: Name of the benchmark, as in `python -m benchmarks.NAME`.
    """

    def __init__(self, name):
        self.name = name
        self.rows = []
        self.checks = {}

    def add_row(self, **row):
        """Adds a measurement; rows may differ in what they hold."""
        self.rows.append(row)

    def add_check(self, name, value, comparison, target):
        """Compares a figure with the one asked for.

        A figure that misses its target is a result like any other: it is shown as
        such, and neither raises nor changes the exit status.

        Args:
            name: What is checked, unique in the report.
            value: Number measured. `nan` holds for nothing.
            comparison: One of `<=`, `<`, `>=`, `>`, `==`.
            target: Number that `value` stands to the left of.

        Returns:
            Whether the check holds.

        Raises:
            ValueError: If the comparison is unknown or the name is taken.
        """
        if comparison not in COMPARISONS:
            raise ValueError(
                f"Unknown comparison. Expected one of {list(COMPARISONS)}. "
                f"Received: comparison={comparison!r}"
            )
        if name in self.checks:
            raise ValueError(
                "Each check needs a name of its own, or it would hide another. "
                f"Received: name={name!r}, taken by {self.checks[name]}"
            )
        # A plain number and a plain bool, since NumPy's cannot be written as JSON.
        value = getattr(value, "item", lambda: value)()
        holds = bool(COMPARISONS[comparison](value, target))
        target_text = f"{comparison} {target}"
        self.checks[name] = {"value": value, "target": target_text, "holds": holds}
        return holds

    def to_dict(self):
        """Returns the report as plain data, as `--json` writes it."""
        now = datetime.datetime.now(datetime.UTC)
        return {
            "name": self.name,
            "rows": self.rows,
            "checks": self.checks,
            "machine": machine(),
            "versions": versions(),
            "date": now.isoformat(timespec="seconds"),
        }

    def to_text(self):
        """Returns the rows and the checks as tables of text."""
        checks = [
            {
                "check": name,
                "value": check["value"],
                "target": check["target"],
                "": "holds" if check["holds"] else "DOES NOT HOLD",
            }
            for name, check in self.checks.items()
        ]
        tables = [format_table(rows) for rows in (self.rows, checks) if rows]
        return "\n\n".join([self.name, *tables])

    def finish(self, json_path=None):
        """Prints the report and, given a path, writes it there as JSON."""
        print(self.to_text(), flush=True)
        if json_path is not None:
            data = to_json_value(self.to_dict())
            text = json.dumps(data, indent=2, allow_nan=False)
            path = pathlib.Path(json_path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", "utf-8")


@dataclasses.dataclass(frozen=True)
class Paired:
    """Measurements of alternatives, taken in turns.

    Attributes:
        samples: Dict of alternative to its list of measurements, where the same
            position in two lists is the same round.
    """

    samples: dict

    @property
    def medians(self):
        """Dict of alternative to the median of its measurements."""
        return {name: statistics.median(x) for name, x in self.samples.items()}

    def ratio(self, name, base):
        """Median over the rounds of one alternative's measurement by another's.

        Both are taken within seconds of each other, so that what the machine did
        meanwhile cancels out, as it does not in a ratio of medians.
        """
        pairs = zip(self.samples[name], self.samples[base], strict=True)
        return statistics.median(value / base_value for value, base_value in pairs)


def compare(alternatives, repeats):
    """Measures alternatives in turns, each once a round.

    Every second round goes backwards, so that none always follows the same other.

    Args:
        alternatives: Dict of name to a function of no arguments that measures once
            and returns a number.
        repeats: Number of rounds.

    Returns:
        `Paired`, with `repeats` measurements of each alternative.
    """
    samples = {name: [] for name in alternatives}
    for turn in range(repeats):
        names = list(alternatives)
        for name in names if turn % 2 == 0 else reversed(names):
            samples[name].append(float(alternatives[name]()))
    return Paired(samples)


def machine():
    """Returns the processor's model and how many of its cores this process has."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return {"cpu": (models or [platform.processor()])[0], "cores": usable_cores()}


def versions():
    """Returns the versions of Python and of the installed packages measured."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def format_table(rows):
    """Lays dicts out as a table of text, a column for each key in any of them."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns]
    cells += [[format_cell(row.get(key, "")) for key in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [
        all(isinstance(row.get(key, 0), int | float) for row in rows) for key in columns
    ]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def format_cell(value):
    """Writes a number with four digits that count, and all else as it is."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def to_json_value(value):
    """Makes plain data that JSON can hold: NumPy's numbers and `nan` become its own."""
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if hasattr(value, "tolist"):
        return to_json_value(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | None) else str(value)
