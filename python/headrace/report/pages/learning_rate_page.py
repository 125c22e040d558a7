"""The page of a learning-rate range test: the loss over the rate, as one HTML file that needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from headrace._native import __version__
from headrace.errors import SessionError
from headrace.report.drawing.markup import Html, tag
from headrace.report.pages.page import figure, html_page, write_page
from headrace.system.text.sizes import count_text
from headrace.training.tune.learning_rate import RangePoint, RangeTest

__all__ = ["render", "write"]

STYLE = """
.range svg { display: block; width: 100%; height: 18rem; overflow: visible; border-bottom: 1px solid var(--hair); }
.range polyline { fill: none; stroke: var(--compute); stroke-width: 1.6; vector-effect: non-scaling-stroke; }
.range polyline.raw { opacity: 0.35; stroke-width: 1; }
.range line { stroke: var(--warn); stroke-dasharray: 5 3; vector-effect: non-scaling-stroke; }
"""


def write(found: RangeTest, path: Path, *, title: str) -> Path:
    """Write the page to `path`, in one piece, and return `path`. Raises SessionError if it cannot be written."""
    return write_page(
        path, render(found, title=title), name="page", error=SessionError, hint="--page FILE chooses another place"
    )


def render(found: RangeTest, *, title: str) -> str:
    """Return the whole page."""
    chosen = None if found.learning_rate is None else f"{found.learning_rate:.3g}"
    note = None if found.note is None else tag("p", found.note)
    cells = [
        figure(chosen, "--learning-rate"),
        figure(None if found.rate is None else f"{found.rate:.3g}", f"rate for a batch of {found.global_batch:,} images"),
        figure(None if found.steepest is None else f"{found.steepest:.3g}", "rate of the steepest fall"),
    ]
    return html_page(
        f"{title} · headrace",
        tag("header", tag("span", "headrace", class_="brand"), tag("code", title, class_="command")),
        tag(
            "main",
            tag("section", tag("div", *cells, class_="money"), note, tag("p", f"Rule: {found.rule}.", class_="note")),
            tag("section", tag("h2", "loss over learning rate"), _drawing(found), class_="range"),
        ),
        tag("footer", tag("p", f"headrace {__version__} · {count_text(len(found.points), 'update')} of the weights")),
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


def _drawing(found: RangeTest) -> Html:
    points = found.points
    if len(points) < 2:
        return tag("p", "too few updates were measured to draw them")
    first, last = math.log(points[0].rate), math.log(points[-1].rate)
    low, high = _range(points)
    span = (high - low) or 1.0

    def x(rate: float) -> float:
        return 100 * (math.log(rate) - first) / (last - first)

    def line(values: list[float]) -> str:
        shares = [min(1.0, max(0.0, (value - low) / span)) for value in values]
        return " ".join(f"{x(one.rate):.2f},{100 - 100 * share:.2f}" for one, share in zip(points, shares, strict=True))

    marks = [
        tag("polyline", points=line([one.loss for one in points]), class_="raw"),
        tag("polyline", points=line([one.smoothed for one in points])),
    ]
    if found.rate is not None:
        at = f"{max(0.0, x(found.rate)):.2f}"
        marks.append(tag("line", tag("title", f"chosen: {found.rate:.3g}"), x1=at, x2=at, y1=0, y2=100))
    most = max(one.smoothed for one in points)
    cut = f" (cut off; up to {most:.3g})" if most > high else ""
    label = (
        f"smoothed loss from {low:.3g} to {most:.3g} while the rate grows from {points[0].rate:.2g} to {points[-1].rate:.2g}"
    )
    svg = tag("svg", *marks, viewbox="0 0 100 100", preserveaspectratio="none", role="img", aria_label=label)
    axis = tag("p", tag("span", f"rate {points[0].rate:.2g}"), tag("span", "learning rate of an update, logarithmic"),
               tag("span", f"rate {points[-1].rate:.2g}"), class_="ends")  # fmt: skip
    return tag(
        "div",
        tag(
            "p",
            tag("span", f"loss (cross entropy): {low:.3g} to {high:.3g}{cut}; bold: smoothed; dashed: chosen"),
            class_="ends",
        ),
        svg,
        axis,
    )
