"""The page of benchmarks/run.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages.document import Document, count, facts, note, page, table

HEAD = ["script", "epoch", "CPU ms/image plain", "run", "times less", "img/s plain", "run", "times faster"]
UNCHANGED = """## Scripts that run cannot make faster

`run` measures this in the first batches and takes itself out. What it costs: no interval may lie wholly below 0.98."""


def render(document: Document) -> str:
    """Return the page."""
    found = document["settings"]
    unchanged = [row for row in document["rows"] if not row.get("gains", True)]
    return page(
        "# headrace run",
        f"A script's input path alone, {found['photographs']} photographs {found['copies']} times over, batches of "
        f"{found['batch_size']}, {found['workers']} workers or threads unless a name says otherwise; medians of "
        f"{count(found['repeats'], 'repeat')}, plain and "
        "taken over alternating.\n`benchmarks/run.py` describes the method.",
        facts(document),
        table(HEAD, (line(row) for row in document["rows"] if row.get("gains", True))),
        *((UNCHANGED, table(HEAD, map(line, unchanged))) if unchanged else ()),
        note("run"),
    )


def line(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row."""
    return (
        row["transforms"],
        row["epoch"],
        f"{row['plain_cpu_ms']:.2f}",
        f"{row['run_cpu_ms']:.2f}",
        times(row, "times_less_cpu"),
        f"{row['plain_img_s']:,.0f}",
        f"{row['run_img_s']:,.0f}",
        times(row, "times_faster"),
    )


def times(row: Mapping[str, Any], key: str) -> str:
    """Return a factor, with its interval where there were several pairs."""
    interval = row.get(f"{key}_interval")
    digits = 1 if row.get("gains", True) else 2
    return f"{row[key]:.{digits}f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")
