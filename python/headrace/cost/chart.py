"""The chart of time against money as a PNG file; rows that no other beats are named."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

from headrace.cost.answer import Answer
from headrace.cost.estimates.runs import Row
from headrace.cost.page_chart import LABELLED, drawable_rows
from headrace.errors import MissingDependencyError, UsageError
from headrace.system.files.atomic_write import atomic_write
from headrace.system.text.install_hints import extra_hint

__all__ = ["pareto_figure", "write_png"]

SIZE_INCHES, DPI = (9.0, 5.5), 150
"""1350 × 825 pixels: readable on a slide and in a README."""


def write_png(found: Answer, path: Path, *, title: str) -> Path:
    """Write the chart as a PNG to `path`, atomically, and return `path`.

    Raises `MissingDependencyError` without matplotlib, `UsageError` if nothing can be drawn or the file cannot be written.
    """
    figure = pareto_figure(found, title=title)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    try:
        atomic_write(path, drawn.getvalue())
    except OSError as reason:
        raise UsageError(
            f"cannot write the chart {path}: {reason.strerror or reason}", hint="--png FILE chooses another place"
        ) from None
    return path


def pareto_figure(found: Answer, *, title: str) -> Any:
    """Return the chart as a matplotlib figure. Raises as `write_png` does."""
    rows = drawable_rows(found)
    if not rows:
        raise UsageError("no row has a finite cost: there is nothing to draw")
    try:
        figures = importlib.import_module("matplotlib.figure")
        ticker = importlib.import_module("matplotlib.ticker")
    except ImportError:
        raise MissingDependencyError("--png needs matplotlib", hint=f"{extra_hint('plot')}, or --html FILE") from None
    figure = figures.Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    unbeaten = {id(row) for row in found.pareto}
    beaten = [row for row in rows if id(row) not in unbeaten]
    _points(axes, beaten, color="0.75", label="beaten in time and money")
    _points(axes, [row for row in rows if id(row) in unbeaten], color="#2563a8", label="no other beats it in both")
    if found.choice.row in rows:
        _points(axes, [found.choice.row], color="#c2410c", label="choice", size=70)
    for row in found.pareto[:LABELLED]:
        axes.annotate(found.label(row), (row.total_hours, row.best_usd), xytext=(5, 6), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="hours from the order to the last step", ylabel="USD of a run, as recommended")
    for axis, form in ((axes.xaxis, "{x:g}"), (axes.yaxis, "${x:,g}")):
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(ticker.StrMethodFormatter(form))
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.set_title(title, fontsize=9, loc="left", wrap=True)
    axes.legend(fontsize=8, frameon=False)
    axes.grid(True, which="major", color="0.92")
    axes.set_axisbelow(True)
    figure.supxlabel(f"prices of {found.region}, {found.price_date}", fontsize=7, color="0.4", x=0.99, ha="right")
    return figure


def _points(axes: Any, rows: list[Row], *, color: str, label: str, size: float = 30) -> None:
    if rows:
        axes.scatter([row.total_hours for row in rows], [row.best_usd for row in rows], s=size, c=color, label=label)
