"""What a run of a script left: exit code, output, warnings, the log of its model calls and losses, its files. And what differs.

What two plain runs do not agree in is the script's own, and is not compared.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NUMBER = r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?"
TIMING = (
    r"\b(?:\d+(?:D|h|m|s|ms)){2,}\b",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?",
    r"\d{4}[-_]?\d\d[-_]?\d\d[-_T ]\d\d[-_:]?\d\d(?:[-_:]?\d\d)?",
    r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w* (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w* +\d+.*\d{4}",
    r"(?:\d+ days?, )?\b\d+:\d\d(?::\d\d)?(?:\.\d+)?",
    rf"(?i)\b(?:\w*time\w*|data|elapsed|eta|took|speed|throughput|duration|runtime|lasted|samples?_per_second|steps?_per_second|im(?:g|ages?)/s)"
    rf"['\"]?\s*[:=(]*\s*{NUMBER}(?:\s*\(\s*{NUMBER}\s*\))?(?:\s*(?:ms|s|sec|min|h)\b)?",
    rf"(?i){NUMBER}\s*(?:s|sec|secs|seconds?|ms|msec|min|mins|minutes?|hours?|h|us)\b(?!\.)",
    rf"(?i){NUMBER}\s*(?:(?:it|img|imgs|images?|samples?|ex|examples?|batch|batches|steps?|iter|iters)\s*/\s*s(?:ec|econd)?|s/(?:it|img|iter|batch|epoch|step))\b",
    r"0x[0-9a-f]{6,}",
    r"(?i)\b(?:pid|process)[ =:]*\d+",
    r"(?i)\b(?:max mem|mem|memory)\w*['\"]?\s*[:=]?\s*[\d.]+\s*[MG]?B?",
)
MASKS = [re.compile(pattern) for pattern in TIMING]
BAR = re.compile(r"\d+%\||\d+it \[|\d+it/s|\[[\d:]+<[\d:?]+|━|\d+/\d+ \[")
OURS = re.compile(r"^\s*\(?headrace(?: run|: )")
WARNING = re.compile(r"^(.*?):\d+: (\w*Warning): (.*)$")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `files`: path below the run's folder -> SHA-256; `logs`: name -> lines; `ours`: the lines of headrace."""

    code: int | None
    out: list[str]
    err: list[str]
    logs: Mapping[str, list[str]]
    files: Mapping[str, str]
    ours: list[str]
    seconds: float

    @property
    def taken(self) -> str:
        """How the loaders were loaded, in few words: `2 whole, 1 in part, 1 not`."""
        counts = {"in part": 0, "whole": 0, "not": 0}
        for line in self.ours:
            if "loader over" in line:
                kind = "in part" if "taken over in part" in line else "not" if "not taken over" in line else "whole"
                counts[kind] += "taken over" in line
        return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "no line"


def masked(line: str) -> str:
    """Return a line with its times, rates, dates and addresses replaced."""
    for mask in MASKS:
        line = mask.sub("#", line)
    return re.sub(r"[ \t]+", " ", line).strip()


IGNORED: list[re.Pattern[str]] = []
"""Lines of output that are not compared (`--ignore`)."""


def lines(text: str) -> tuple[list[str], list[str]]:
    """Return the lines of an output, masked and without progress bars, and the lines of headrace."""
    kept, ours = [], []
    uncoloured = re.sub(r"\x1b\[[0-9;]*m", "", text)  # a bar with a coloured title is one line
    for raw in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", uncoloured)):
        if OURS.match(raw):
            ours.append(raw.strip())
        elif raw.strip() and not BAR.search(raw) and not any(pattern.search(raw) for pattern in IGNORED):
            kept.append(masked(raw))
    return kept, ours


def digests(folder: Path) -> dict[str, str]:
    """Return path and SHA-256 of each file below a folder, without what Python and the runs keep for themselves."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.is_symlink():
            found[str(path.relative_to(folder))] = f"link {path.readlink()}"
    return found


def differences(plain: Sequence[Outcome], other: Outcome) -> list[str]:
    """Return what differs between a run and two plain runs, where the plain ones agree."""
    first, second = plain
    found = []
    if first.code != second.code:
        found.append(f"exit codes {first.code} and {second.code} of the plain runs")
    elif other.code != first.code:
        found.append(f"exit code {other.code} instead of {first.code}")
    found += _log_differences(first.logs, second.logs, other.logs)
    for what in ("out", "err"):
        found += _text_differences(f"std{what}", getattr(first, what), getattr(second, what), getattr(other, what))
    return [*found, *_file_differences(first.files, second.files, other.files)]


def _log_differences(
    first: Mapping[str, list[str]], second: Mapping[str, list[str]], other: Mapping[str, list[str]]
) -> Iterator[str]:
    if set(first) == set(second) != set(other):
        yield f"processes that call a model: {sorted(other)} instead of {sorted(first)}"
    for name in sorted(set(first) & set(second) & set(other)):
        for number, (one, two) in enumerate(zip(first[name], second[name], strict=False)):
            if one != two:
                break
            if number >= len(other[name]) or other[name][number] != one:
                got = other[name][number] if number < len(other[name]) else "the end"
                yield f"model call {number} of {name}: {got[:300]} instead of {one[:300]}"
                break
        else:
            if len(first[name]) == len(second[name]) != len(other[name]):
                yield f"{len(other[name])} model calls of {name} instead of {len(first[name])}"


def _text_differences(name: str, first: list[str], second: list[str], other: list[str]) -> Iterator[str]:
    """Yield the lines that only the plain runs have, and those that only the other has."""
    if first == second:
        if first != other:
            if sorted(first) == sorted(other):
                if _without_warnings(first) != _without_warnings(other):
                    yield f"{name}: the order of lines"
                return
            for line in difflib.unified_diff(first, other, "plain", "run", n=0, lineterm=""):
                if not line.startswith(("---", "+++", "@@")):
                    yield f"{name}: {line[:400]}"
        return
    # The plain runs differ: a line is compared with all numbers masked, as one of a collection.
    shapes = [{_shape(line) for line in each} for each in (first, second, other)]
    for shape in sorted((shapes[0] & shapes[1]) - shapes[2]):
        yield f"{name}: -~ {shape[:400]}"
    for shape in sorted(shapes[2] - shapes[0] - shapes[1]):
        yield f"{name}: +~ {shape[:400]}"


def _without_warnings(lines: list[str]) -> list[str]:
    """Leave out warnings and the lines of code below them: when a worker's comes between the script's lines is a race."""
    warned = [WARNING.match(line) is not None for line in ["", *lines]]
    return [line for line, before, here in zip(lines, warned, warned[1:], strict=False) if not (before or here)]


def _shape(line: str) -> str:
    return re.sub(r"[-+]?(?:\d[\d.,e+-]*|nan|inf)", "0", line)


def _file_name(name: str) -> str:
    return re.sub(r"\d[\d_.-]{5,}|[0-9a-f]{12,}", "#", masked(re.sub(r"tfevents.*", "tfevents", name)))


def _file_differences(first: Mapping[str, str], second: Mapping[str, str], other: Mapping[str, str]) -> Iterator[str]:
    stable = set(first) == set(second)
    names = [set(each) if stable else {_file_name(name) for name in each} for each in (first, second, other)]
    for name in sorted((names[0] & names[1]) - names[2]):
        yield f"file not written: {name}"
    for name in sorted(names[2] - names[0] - names[1]):
        yield f"file written by no plain run: {name}"
    for name in sorted(set(first) & set(second) & set(other)):
        if first[name] == second[name] != other[name]:
            yield f"file differs: {name}"
