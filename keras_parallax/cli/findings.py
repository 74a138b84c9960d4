"""What a check has found out, as data, and how it is shown."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence

OK, WARNING, ERROR = "ok", "warning", "error"

_LEVELS = (OK, WARNING, ERROR)
_WIDTH = 79


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        about: What was looked at, in a word or two.
        level: "ok", "warning" or "error".
        found: What was found.
        advice: What to do about it, in one sentence; empty where nothing is to do.
        host: The machine, where it is not this one.
    """

    about: str
    level: str
    found: str
    advice: str = ""
    host: str = ""

    def to_dict(self) -> dict[str, str]:
        """The finding as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, fields: dict[str, str], host: str) -> Finding:
        """A finding that another machine has sent as `to_dict` gave it."""
        names = {field.name for field in dataclasses.fields(cls)}
        known = {name: str(fields[name]) for name in names & fields.keys()}
        return cls(**{**known, "host": host})


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether one of them is an error."""
    return any(finding.level == ERROR for finding in findings)


def in_lines(findings: Sequence[Finding]) -> list[str]:
    """The findings as lines of a terminal, the advice under what was found."""
    lines = []
    host = ""
    for finding in findings:
        if finding.host != host:
            host = finding.host
            lines += ["", f"{host}:"]
        begin = f"{finding.level:<8} {finding.about:<11} "
        lines += _wrapped(finding.found, begin)
        if finding.advice:
            lines += _wrapped(f"-> {finding.advice}", " " * len(begin))
    return lines


def in_one_line(findings: Sequence[Finding]) -> str:
    """How many there are of each level."""
    counts = {level: 0 for level in _LEVELS}
    for finding in findings:
        counts[finding.level] += 1
    what = [
        f"{count} {level}{'s' if count != 1 and level != OK else ''}"
        for level, count in counts.items()
    ]
    return ", ".join(what)


def _wrapped(text: str, begin: str) -> list[str]:
    # The last lines of a process's output keep their own lines.
    first, *rest = text.splitlines() or [""]
    indent = " " * len(begin)
    wrapped = textwrap.wrap(
        first,
        _WIDTH,
        initial_indent=begin,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(wrapped or [begin.rstrip()]), *(indent + line for line in rest)]
