"""Functions that all charts share: scales, tick values of an axis, lines, SVG elements that fill their box."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from headrace.report.drawing.markup import Html, tag

__all__ = ["Scale", "ends", "line", "round_marks", "scale", "stretched"]

Scale = Callable[[float], float]
"""Function from a value to its position in the plot."""


ROUNDING = 1e-9
"""Treat a float quotient as a whole number if it is nearer to one than this."""


def scale(low: float, high: float, start: float, end: float) -> Scale:
    """Return the linear map from values to positions: `low` → `start`, `high` → `end`; values beyond are clipped."""
    span = (high - low) or 1.0
    return lambda value: start + (end - start) * min(1.0, max(0.0, (value - low) / span))


def round_marks(end: float, least: int) -> list[float]:
    """Return the tick values of an axis: multiples of a round number, from 0 to the first that reaches `end` (above 0).

    The round number is 1, 2 or 5 times a power of ten: the largest that fits `least` times (2 to 10) into `end`.
    """
    unit = 10.0 ** math.floor(math.log10(end))
    step = next(unit * part for part in (2.0, 1.0, 0.5, 0.2, 0.1) if end / (unit * part) > least - ROUNDING)
    return [step * number for number in range(math.ceil(end / step - ROUNDING) + 1)]


def line(places: Iterable[tuple[float, float]], **attributes: str | float | None) -> Html:
    """Return an SVG polyline through (x, y) points. attributes: as for `tag`; page.css styles classes `line` and `line raw`."""
    return tag("polyline", points=" ".join(f"{x:.2f},{y:.2f}" for x, y in places), **attributes)


def stretched(*shapes: Html, width: float = 100, height: float = 100, label: str, kind: str | None = None) -> Html:
    """Return an SVG of `width` × `height` units that stretches to fill its box. label: for screen readers. kind: CSS class."""
    return tag("svg", *shapes, viewbox=f"0 0 {width:g} {height:g}", preserveaspectratio="none", class_=kind, role="img",
               aria_label=label)  # fmt: skip


def ends(*words: str) -> Html:
    """Return a row of labels as wide as a plot: the first at its left end, the last at its right end."""
    return tag("p", *(tag("span", word) for word in words), class_="ends")
