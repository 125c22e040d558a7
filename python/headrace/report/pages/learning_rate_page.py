"""The page of a learning-rate range test: the loss over the rate, as one HTML file that needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from headrace.attach.experiments.range_curve import RangePoint, RangeTest
from headrace.errors import SessionError
from headrace.report.drawing.markup import Html, tag
from headrace.report.drawing.plot import ends, line, scale, stretched
from headrace.report.pages.page import figure, footer, header, html_page, write_page
from headrace.system.text.sizes import count_text

__all__ = ["render", "write"]

STYLE = """
.range svg { display: block; width: 100%; height: 18rem; overflow: visible; border-bottom: 1px solid var(--hair); }
.range line { stroke: var(--warn); stroke-dasharray: 5 3; vector-effect: non-scaling-stroke; }
"""


def write(found: RangeTest, path: Path, *, title: str, own_rate: float | None = None) -> Path:
    """Write the page to `path`, in one piece, and return `path`. Raises SessionError if it cannot be written.

    own_rate: that of a script, to be marked.
    """
    return write_page(
        path,
        render(found, title=title, own_rate=own_rate),
        name="page",
        error=SessionError,
        hint="--page FILE chooses another place",
    )


def render(found: RangeTest, *, title: str, own_rate: float | None = None) -> str:
    """Return the whole page."""
    chosen = None if found.learning_rate is None else f"{found.learning_rate:.3g}"
    note = None if found.note is None else tag("p", found.note)
    own = None if own_rate is None else f"{own_rate:.3g}"
    cells = [
        figure(chosen, "--learning-rate") if own is None else figure(own, "rate that the script begins with"),
        figure(None if found.rate is None else f"{found.rate:.3g}", f"rate for a batch of {found.global_batch:,} images"),
        figure(None if found.steepest is None else f"{found.steepest:.3g}", "rate of the steepest fall"),
    ]
    return html_page(
        f"{title} · headrace",
        header(title),
        tag(
            "main",
            tag("section", tag("div", *cells, class_="money"), note, tag("p", f"Rule: {found.rule}.", class_="note")),
            tag("section", tag("h2", "loss over learning rate"), _drawing(found, own_rate), class_="range"),
        ),
        footer(f"{count_text(len(found.points), 'update')} of the weights"),
        css=STYLE,
    )


def _range(points: Sequence[RangePoint]) -> tuple[float, float]:
    """Return the losses at the bottom and the top of the drawing.

    Where the loss diverges, it is cut off as far above the highest loss before the minimum as that is above the minimum. The
    fall, which the page is about, would be a flat line otherwise.
    """
    smoothed = [one.smoothed for one in points]
    low = min(smoothed)
    before = max(smoothed[: smoothed.index(low) + 1])
    return low, min(max(smoothed), before + (before - low)) if before > low else max(smoothed)


def _drawing(found: RangeTest, own_rate: float | None) -> Html:
    points = found.points
    if len(points) < 2:
        return tag("p", "too few updates were measured to draw them")
    low, high = _range(points)
    x, y = scale(math.log(points[0].rate), math.log(points[-1].rate), 0, 100), scale(low, high, 100, 0)
    marks = [
        line([(x(math.log(one.rate)), y(one.loss)) for one in points], class_="line raw"),
        line([(x(math.log(one.rate)), y(one.smoothed)) for one in points], class_="line"),
    ]
    for name, rate in (("chosen", found.rate), ("the script's", own_rate)):
        if rate is not None and points[0].rate <= rate <= points[-1].rate:
            at = f"{x(math.log(rate)):.2f}"
            marks.append(tag("line", tag("title", f"{name}: {rate:.3g}"), x1=at, x2=at, y1=0, y2=100))
    most = max(one.smoothed for one in points)
    cut = f" (cut off; up to {most:.3g})" if most > high else ""
    label = (
        f"smoothed loss from {low:.3g} to {most:.3g} while the rate grows from {points[0].rate:.2g} to {points[-1].rate:.2g}"
    )
    rates = f"rate {points[0].rate:.2g}", f"rate {points[-1].rate:.2g}"
    dashed = "chosen" if own_rate is None else f"chosen, and the script's ({own_rate:.3g})"
    return tag(
        "div",
        ends(f"loss (cross entropy): {low:.3g} to {high:.3g}{cut}; bold: smoothed; dashed: {dashed}"),
        stretched(*marks, label=label),
        ends(rates[0], "learning rate of an update, logarithmic", rates[1]),
    )
