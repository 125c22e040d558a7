"""The page of benchmarks/gpu/run.py: what awaits a GPU, with its command, and what was measured on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu.measurements import MEASUREMENTS

from pages.document import Document, facts, page, table

COMMAND = "make bench-gpu"


def render(document: Document) -> str:
    """Return the page."""
    found: Mapping[str, Any] = document["measurements"]
    waiting, parts = [], []
    for one in MEASUREMENTS:
        result = found.get(one.name)
        if result is None or result["status"] != "measured" or result["device"] == "cpu":
            state = "not measured" if result is None else result.get("reason") or "ran in tiny on the CPU"
            waiting.append((one.name, one.decides, one.target or "none", state, f"`{COMMAND} ARGS='--only {one.name}'`"))
        if result is not None and result.get("rows"):
            ended = "" if result["status"] == "measured" else f"Ended early ({result['reason']}); the rows until then:"
            parts += [f"## {one.name}: {one.decides}", *([ended] if ended else []), facts(result), _rows(result["rows"])]
    tiny = "A dry run in tiny, on the CPU: its figures say nothing about a GPU." if document["settings"]["dry_run"] else ""
    return page(
        "# What awaits a GPU",
        f"`{COMMAND}` on a machine with a CUDA GPU measures all of it, the most valuable first; `ARGS=--resume` continues.\n"
        "A figure of GPU decoding, Triton kernels or placement was measured on a GPU only if it stands on this page.\n"
        "[gpu](gpu.md) has whole trainings.",
        tiny,
        facts(document),
        "## Waiting" if waiting else "",
        table(["measurement", "decides", "target", "state", "command"], waiting) if waiting else "",
        *parts,
    )


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of equal keys as a table."""
    if not rows:
        return "No rows."
    return table(list(rows[0]), [[_cell(name, value) for name, value in row.items()] for row in rows])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "none" if name == "model" else "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
