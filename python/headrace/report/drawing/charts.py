"""The small drawings of the report as inline SVG. Text beside them is HTML, so that it stays readable at any width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from headrace.report.drawing.markup import Html, no_break, tag
from headrace.report.drawing.plot import scale, stretched
from headrace.report.text import numbers
from headrace.report.text.screen import FixLine, StepPart
from headrace.report.text.step_parts import part_style

__all__ = ["interval", "share_strip", "step_bar"]

MIN_BRACKET_SHARE = 0.12
"""Leave out the name of a group narrower than this share of the step."""

MIN_LABEL_SHARE = 0.085
"""Leave out the number of a segment narrower than this share of the step."""


def step_bar(parts: Sequence[StepPart]) -> Html:
    """Return the SVG bar of one step: a segment per part, numbers on the wide ones, a bracket over each group."""
    description = ", ".join(f"{part.label} {numbers.percent(part.share)}" for part in parts)
    left = 0.0
    segments, labels = [], []
    for part in parts:
        width = 100 * part.share
        segments.append(
            tag("rect", tag("title", f"{part.label}: {numbers.percent(part.share, digits=1)}"),
                x=f"{left:.3f}", y=0, width=f"{width:.3f}", height=10, class_=f"part {part.key}", data_part=part.key)
        )  # fmt: skip
        if part.share >= MIN_LABEL_SHARE:
            style = f"left:{left:.3f}%;width:{width:.3f}%"
            labels.append(tag("span", f"{part.percent} %", style=style, class_=f"on-{part.key}"))
        left += width
    drawing = stretched(*segments, height=10, label=f"One step: {description}")
    return tag("div", _brackets(parts), tag("div", drawing, tag("div", *labels, class_="bar-labels", aria_hidden="true"),
               class_="bar-body"), class_="bar")  # fmt: skip


def _brackets(parts: Sequence[StepPart]) -> Html:
    spans, left = [], 0.0
    for name, group in groupby(parts, key=lambda part: part_style(part.key).group):
        members = list(group)
        share, percent = sum(part.share for part in members), sum(part.percent for part in members)
        if share >= MIN_BRACKET_SHARE:
            words = (tag("span", name), tag("b", no_break(f"{percent} %")))  # a narrow bracket shortens the name only
            spans.append(tag("div", *words, style=f"left:{left:.3f}%;width:{100 * share:.3f}%"))
        left += 100 * share
    return tag("div", *spans, class_="brackets", aria_hidden="true")


def interval(line: FixLine, *, now: float | None, greatest: float) -> Html | None:
    """Return a fix's predicted rate (dot), its interval (band) and measured rate (diamond), from 0 to `greatest` img/s.

    `now`: the present rate, a vertical line. None where nothing was predicted.
    """
    fix = line.fix
    if fix.predicted_img_s is None or greatest <= 0:
        return None

    place = scale(0, greatest, 0, 100)

    def at(value: float) -> str:
        return f"{place(value):.2f}%"

    marks = [tag("line", x1="0%", x2="100%", y1=9, y2=9, class_="track")]
    if now is not None:
        marks.append(tag("line", x1=at(now), x2=at(now), y1=2, y2=16, class_="now"))
    if fix.interval is not None:
        marks.append(tag("line", x1=at(fix.interval[0]), x2=at(fix.interval[1]), y1=9, y2=9, class_="band"))
    marks.append(tag("circle", cx=at(fix.predicted_img_s), cy=9, r=4.5, class_="dot"))
    if fix.verified_img_s is not None:
        # A nested svg has its place in per cent and its size in pixels.
        diamond = tag("path", d="M0 -6L6 0L0 6L-6 0Z", class_="verified")
        marks.append(tag("svg", diamond, x=at(fix.verified_img_s), y=9, overflow="visible"))
    return tag("svg", *marks, class_="interval", role="img", aria_label=_interval_words(line))


def _interval_words(line: FixLine) -> str:
    fix = line.fix
    text = f"predicted {numbers.image_rate(fix.predicted_img_s)} images per second"
    if fix.interval:
        text += f", between {numbers.image_rate(fix.interval[0])} and {numbers.image_rate(fix.interval[1])}"
    if fix.verified_img_s is not None:
        text += f", measured {numbers.image_rate(fix.verified_img_s)}"
    return text


def share_strip(shares: Sequence[tuple[str, float]], *, label: str) -> Html:
    """Return an SVG strip of segments for a table cell. shares: (CSS class, share 0 to 1) of each segment.

    A single segment is a bar: "term", "binding" (the largest term) or "measured" of the step model.
    """
    left, segments = 0.0, []
    for key, share in shares:
        segments.append(tag("rect", x=f"{left:.2f}", y=0, width=f"{100 * share:.2f}", height=10, class_=f"part {key}"))
        left += 100 * share
    return stretched(*segments, height=10, label=label, kind="strip")
