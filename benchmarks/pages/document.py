"""The JSON documents in benchmarks/results/data: where they are, how they are read, and the parts that all pages share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "results"
DATA = RESULTS / "data"

Document = Mapping[str, Any]
"""A document of results: `name command date machine versions commit remarks settings` and the parts of its page."""


def read(name: str) -> Document:
    """Return the document of the page `name`."""
    document: Document = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return document


def note(name: str) -> str:
    """Return the commentary in benchmarks/results/notes/NAME.md."""
    return (RESULTS / "notes" / f"{name}.md").read_text(encoding="utf-8").strip()


def machine(document: Document) -> str:
    """Return processor, cores, memory and system in one line."""
    found = document["machine"]
    parts = [found["processor"], f"{found['usable_cores']:g} usable cores", f"{found['memory_gib']} GiB"]
    return ", ".join(parts + [found[key] for key in ("system",) if key in found])


def facts(document: Document) -> str:
    """Return the list that opens every page: machine, versions, commit, date, command, remarks on this run."""
    gpu = document["machine"].get("gpu")
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    lines = [f"- Machine: {machine(document)}"]
    lines += [f"- GPU: {gpu}"] if gpu else []
    lines += [f"- Versions: {versions}", f"- Commit: {document['commit']}", f"- Date: {document['date']}"]
    lines += [f"- Command: `{document['command']}`"]
    return "\n".join([*lines, *(f"- {remark}" for remark in document["remarks"])])


def page(*parts: str) -> str:
    """Join the parts of a page by empty lines; empty parts are left out."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 0) -> str:
    """Return a Markdown table. The last `right` columns are aligned to the right."""
    rule = ["---"] * (len(head) - right) + ["---:"] * right
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(rule)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def spread(values: Mapping[str, float], form: str = ",.0f", between: str = " to ") -> str:
    """Return "median (least to greatest)"; the median alone where there was one measurement."""
    median, least, greatest = (format(values[key], form) for key in ("median", "least", "greatest"))
    return median if least == greatest else f"{median} ({least}{between}{greatest})"


def name_of(row: Mapping[str, Any], key: str) -> str:
    """Return the name of a row, in bold where it is headrace's own."""
    return f"**{row[key]}**" if row["ours"] else str(row[key])


def percent(share: float, digits: int = 0) -> str:
    """Return a share (0 to 1) in per cent."""
    return f"{100 * share:.{digits}f} %"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 round", "2 rounds"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
