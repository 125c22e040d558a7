"""The chart of time against money on the page: once for wide screens and once for phones, each with room for its names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.cost.answer import Answer, usd
from headrace.cost.estimates.runs import Row
from headrace.report.drawing.markup import Html, join, tag
from headrace.report.drawing.plot import Scale, scale
from headrace.system.text.sizes import number_text

__all__ = ["LABELLED", "STYLE", "chart", "drawable_rows"]

STYLE = """
.chart svg { display: block; width: 100%; margin-top: 0.75rem; }
.chart svg.narrow { display: none; }
.chart circle { fill: var(--compute); }
.chart circle.beaten { fill: var(--quiet); opacity: 0.5; }
.chart circle.chosen { fill: var(--warn); }
.chart line { stroke: var(--hair); } .chart line.leader { stroke: var(--quiet); }
.chart text { font-size: 11px; fill: currentColor; } .chart text.axis-value { fill: var(--quiet); }
.chart text.name { paint-order: stroke; stroke: var(--paper); stroke-width: 2px; }
@media (max-width: 36rem) { .chart svg.wide { display: none; } .chart svg.narrow { display: block; } }
"""

LABELLED = 7
"""Name at most this many rows in the chart."""

LEFT, RIGHT, TOP, BASE = 44.0, 14.0, 14.0, 40.0
"""Margins of the plot in SVG units: room for the amounts, for half of the last hour, and for the hours with their name."""

CHARACTER, LINE, DOT = 6.2, 12.0, 5.0
"""Width of a character and height of a line of text, and radius of a dot, in SVG units."""

DISTANCES, DIRECTIONS = (10.0, 17.0, 26.0, 38.0, 52.0, 70.0, 92.0), 16
"""Places of a name that are tried, nearest first: distances from its dot, and directions in a circle."""

LEADER_FROM = 26.0
"""Draw a line between a name and its dot from this distance on."""

MOST_TICKS = 9
"""Label at most this many values of an axis."""

Box = tuple[float, float, float, float]
"""Left, upper, right and lower end."""


@dataclass(frozen=True, slots=True)
class _Size:
    kind: str
    width: float
    height: float


WIDE, NARROW = _Size("wide", 800.0, 340.0), _Size("narrow", 350.0, 380.0)


def chart(found: Answer) -> Html | None:
    """Return the section with the chart; None where fewer than two rows can be drawn."""
    rows = drawable_rows(found)
    if len(rows) < 2:
        return None
    note = "Rows that no other beats in both time and money have their name. Both axes are logarithmic."
    return tag(
        "section",
        tag("h2", "time against money"),
        tag("p", note, class_="note"),
        *(_drawing(found, rows, size) for size in (WIDE, NARROW)),
        class_="chart",
    )


def drawable_rows(found: Answer) -> list[Row]:
    """Return the rows with finite time and money above 0, which logarithmic axes can show."""
    return [row for row in found.rows if math.isfinite(row.best_usd) and row.best_usd > 0 and row.total_hours > 0]


def _drawing(found: Answer, rows: Sequence[Row], size: _Size) -> Html:
    right, base = size.width - RIGHT, size.height - BASE
    hours, amounts = _ticks(row.total_hours for row in rows), _ticks(row.best_usd for row in rows)
    x = scale(math.log(hours[0]), math.log(hours[-1]), LEFT, right)
    y = scale(math.log(amounts[0]), math.log(amounts[-1]), base, TOP)
    unbeaten = {id(row) for row in found.pareto}
    places = {id(row): (x(math.log(row.total_hours)), y(math.log(row.best_usd))) for row in rows}
    dots = []
    for row in rows:
        left, top = places[id(row)]
        kind = "chosen" if row is found.choice.row else None if id(row) in unbeaten else "beaten"
        words = f"{found.label(row)}, {row.recommended}: {row.total_hours:.2f} h, {usd(row.best_usd)}, {row.binds} binds"
        dots.append(tag("circle", tag("title", words), cx=round(left, 1), cy=round(top, 1), r=DOT, class_=kind))
    named = [(found.label(row), *places[id(row)]) for row in found.pareto[:LABELLED] if id(row) in places]
    names = _names(named, list(places.values()), (LEFT, TOP - LINE, right, base))
    axes = _axes(hours, amounts, x, y, size)
    label = "cost over time of each instance type"
    viewbox = f"0 0 {size.width:g} {size.height:g}"
    return tag("svg", axes, *dots, names, viewbox=viewbox, role="img", aria_label=label, class_=size.kind)


def _ticks(values: Iterable[float]) -> list[float]:
    """Return the values of a logarithmic axis that are labelled: round numbers, the first and last beyond all `values`."""
    found = list(values)
    powers = range(math.floor(math.log10(min(found))) - 1, math.ceil(math.log10(max(found))) + 2)
    for parts in ((1.0, 2.0, 5.0), (1.0,)):
        rounded = [part * 10.0**power for power in powers for part in parts]
        first = max(number for number, value in enumerate(rounded) if value <= min(found))
        last = min(number for number, value in enumerate(rounded) if value >= max(found) and number > first)
        if last - first < MOST_TICKS:
            break
    return rounded[first : last + 1]


def _axes(hours: Sequence[float], amounts: Sequence[float], x: Scale, y: Scale, size: _Size) -> Html:
    right, base = size.width - RIGHT, size.height - BASE
    marks = []
    for value in hours:
        at = round(x(math.log(value)), 1)
        marks += [tag("line", x1=at, x2=at, y1=TOP, y2=base), _text(number_text(value), at, base + 15, "middle", "axis-value")]
    for value in amounts:
        at = round(y(math.log(value)), 1)
        amount = f"${number_text(value)}"
        marks += [tag("line", x1=LEFT, x2=right, y1=at, y2=at), _text(amount, LEFT - 6, at + 4, "end", "axis-value")]
    return join(*marks, _text("hours from the order to the last step", right, base + 32, "end", "axis-value"))


def _names(named: Sequence[tuple[str, float, float]], dots: Sequence[tuple[float, float]], plot: Box) -> Html:
    """Return the names of dots, each at the nearest place where it lies over no dot and no other name.

    A name without such a place is left out: the text of its dot and the table of all rows have it.
    """
    taken = [_square(left, top, DOT + 1.0) for left, top in dots]
    marks = []
    for name, left, top in named:
        own = _square(left, top, DOT + 1.0)
        for distance, number in itertools.product(DISTANCES, range(DIRECTIONS)):
            angle = 2 * math.pi * number / DIRECTIONS
            across, up = math.cos(angle), math.sin(angle)
            anchor = "start" if across > 0.3 else "end" if across < -0.3 else "middle"
            at, middle = left + distance * across, top - distance * up
            width = CHARACTER * len(name)
            first = at - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            box = (first, middle - LINE / 2, first + width, middle + LINE / 2)
            inside = plot[0] <= box[0] and plot[1] <= box[1] and box[2] <= plot[2] and box[3] <= plot[3]
            way = [_square(left + far * across, top - far * up, 1.0) for far in range(0, int(distance), 2)]
            foreign = [other for other in taken if other != own]
            if inside and not _meet(box, own) and not any(_meet(one, other) for one in (box, *way) for other in foreign):
                break
        else:
            continue
        taken.append(box)
        if distance >= LEADER_FROM:
            taken += way
            ends = {"x1": left + DOT * across, "y1": top - DOT * up, "x2": at, "y2": middle}
            marks.append(tag("line", **{name: round(value, 1) for name, value in ends.items()}, class_="leader"))
        marks.append(_text(name, at, middle + 4, anchor, "name"))
    return join(*marks)


def _square(x: float, y: float, half: float) -> Box:
    return (x - half, y - half, x + half, y + half)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _text(words: str, x: float, y: float, anchor: str, kind: str) -> Html:
    return tag("text", words, x=round(x, 1), y=round(y, 1), text_anchor=anchor, class_=kind)
