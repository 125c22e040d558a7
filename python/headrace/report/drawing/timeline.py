"""The run over time: step times, GPUs, CPU cores, disk, network and memory as lanes over one time axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headrace.diagnosis.measure.stats import median, percentile
from headrace.diagnosis.result.model import HeatMap, Timeline
from headrace.report.drawing.heat_map import CORES, GPU, data_uri
from headrace.report.drawing.markup import Html, join, tag
from headrace.report.drawing.plot import line, round_marks, scale, stretched
from headrace.report.text import numbers
from headrace.report.text.slow_steps import SlowStep
from headrace.session.machine import Sample
from headrace.session.model import Session

__all__ = ["axis_end_s", "chart", "step_scale_s"]

WIDTH = 1000
STEP_HEIGHT, MACHINE_HEIGHT = 150, 40
LETTER_WIDTH = 0.0085
"""Assumed width of a letter as a share of the plot's width, on a wide screen: labels may not overlap."""


def axis_end_s(timeline: Timeline | None, heat_map: HeatMap | None, duration_s: float | None) -> float:
    """Return the end of the time axis in seconds since the start of the command."""
    ends = [duration_s or 0.0]
    if timeline is not None and timeline.start_s:
        ends.append(timeline.start_s[-1] + (timeline.wait_s[-1] + timeline.compute_s[-1]) * timeline.stride)
    if heat_map is not None and heat_map.time_s:
        ends.append(heat_map.time_s[-1])
    return max(ends)


def chart(
    timeline: Timeline | None,
    heat_map: HeatMap | None,
    slow: Sequence[SlowStep],
    session: Session | None,
    end_s: float,
    *,
    top_s: float | None = None,
    identifier: str | None = "lanes",
) -> Html | None:
    """Return the timeline with all lanes that have data, or None when nothing was recorded over time.

    top_s: upper end of the scale of step times (default: `step_scale_s`). identifier: of the element, for the page's script.
    """
    if end_s <= 0:
        return None
    lanes = [
        _step_lane(timeline, slow, end_s, top_s or step_scale_s(timeline)) if timeline is not None else None,
        *(_heat_lanes(heat_map, end_s) if heat_map is not None else ()),
        *(_machine_lanes(session, end_s) if session is not None else ()),
    ]
    if not any(lanes):
        return None
    return tag("div", *lanes, _axis(end_s), class_="lanes", id=identifier, data_end=f"{end_s:.3f}")


def _lane(name: str, note: str, body: Html, *, kind: str, height: int) -> Html:
    label = tag("div", tag("span", name, class_="lane-name"), tag("span", note, class_="lane-note"), class_="lane-label")
    return tag("div", label, tag("div", body, class_="plot", style=f"height:{height}px"), class_=f"lane {kind}")


def _step_lane(timeline: Timeline, slow: Sequence[SlowStep], end_s: float, top_s: float) -> Html:
    totals = _totals_s(timeline)
    median_s = median(totals) or 0.0
    shapes = stretched(
        tag("path", d=_area(timeline, totals, end_s, top_s), class_="area wait"),
        tag("path", d=_area(timeline, timeline.compute_s, end_s, top_s), class_="area compute"),
        width=WIDTH,
        height=STEP_HEIGHT,
        label=f"Step time: median {numbers.milliseconds(median_s)}, longest {numbers.milliseconds(max(totals))}",
    )
    grid = [_gridline(value_s, top_s) for value_s in round_marks(top_s, 2) if 0 < value_s < 0.92 * top_s]
    note = (
        "top: waiting, below: computing"
        if timeline.stride == 1
        else f"means of {timeline.stride} steps; top: waiting, below: computing"
    )
    return _lane("step time", note, join(*grid, shapes, *_labels(slow, end_s, top_s)), kind="steps", height=STEP_HEIGHT)


def _totals_s(timeline: Timeline) -> list[float]:
    return [wait + compute for wait, compute in zip(timeline.wait_s, timeline.compute_s, strict=True)]


def step_scale_s(timeline: Timeline) -> float:
    """Return the top of the step-time axis in seconds.

    A few very long steps are cut and labelled, so that they do not flatten all others.
    """
    totals = _totals_s(timeline)
    longest, usual = max(totals), max(2.5 * (median(totals) or 0.0), 1.4 * percentile(totals, 0.95))
    return max(min(longest * 1.05, usual), 1e-9)


def _area(timeline: Timeline, heights_s: Sequence[float], end_s: float, top_s: float) -> str:
    """Return an SVG path like a staircase: each step is as wide as its duration and as high as its entry in `heights_s`."""
    x, y = scale(0, end_s, 0, WIDTH), scale(0, top_s, STEP_HEIGHT, 0)
    found, last = [], None
    for start_s, wait_s, compute_s, height_s in zip(
        timeline.start_s, timeline.wait_s, timeline.compute_s, heights_s, strict=True
    ):
        left, right = x(start_s), x(start_s + (wait_s + compute_s) * timeline.stride)
        if last is None or left - last > 1.0:  # a gap: back to the base line
            found.append(f"{f'V{STEP_HEIGHT}' if last is not None else ''}M{left:.1f} {STEP_HEIGHT}")
        found.append(f"V{y(height_s):.1f}H{right:.1f}")
        last = right
    return "".join(found) + f"V{STEP_HEIGHT}Z"


def _gridline(value_s: float, top_s: float) -> Html:
    return tag("div", tag("span", numbers.milliseconds(value_s)), class_="grid", style=f"bottom:{100 * value_s / top_s:.2f}%")


def _labels(slow: Sequence[SlowStep], end_s: float, top_s: float) -> list[Html]:
    """Return labels with the causes of the longest steps, as many as fit side by side. A phone shows the first only."""
    placed: list[tuple[float, float]] = []
    found = []
    for step in sorted(slow, key=lambda step: -step.step_s):
        text = f"{step.cause} {numbers.seconds(step.step_s)}"
        on_left = step.start_s / end_s > 0.7
        at = min(1.0, (step.start_s if on_left else step.start_s + step.step_s) / end_s)
        left, right = (at - LETTER_WIDTH * len(text), at) if on_left else (at, at + LETTER_WIDTH * len(text))
        if any(left < other_right and other_left < right for other_left, other_right in placed):
            continue
        side = "left" if on_left else "right"
        height = min(100 * min(1.0, step.step_s / top_s), 88.0)
        kind = f"cause {side}{' wide' if placed else ''}"
        found.append(tag("div", text, class_=kind, style=f"left:{100 * at:.2f}%;bottom:{height:.1f}%"))
        placed.append((left, right))
    return found


def _heat_lanes(heat_map: HeatMap, end_s: float) -> list[Html]:
    lanes = []
    if heat_map.gpus:
        title = "GPU" if len(heat_map.gpus) == 1 else f"{len(heat_map.gpus)} GPUs"
        note = " · ".join((*dict.fromkeys(heat_map.gpu_names), _mean_words(heat_map.gpus)))
        height = max(26, 16 * len(heat_map.gpus))
        lanes.append(_lane(title, note, _map(heat_map, heat_map.gpus, GPU, end_s, title), kind="gpu", height=height))
    if heat_map.cores:
        height = max(36, min(240, 12 * len(heat_map.cores)))
        title = f"{len(heat_map.cores)} CPU cores"
        if heat_map.mean_of_cores is not None:
            title = f"CPU, mean of {heat_map.mean_of_cores} cores"
        lanes.append(_lane(title, _mean_words(heat_map.cores), _map(heat_map, heat_map.cores, CORES, end_s, title),
                           kind="cores", height=height))  # fmt: skip
    return lanes


def _mean_words(rows: Sequence[Sequence[float | None]]) -> str:
    known = [value for row in rows for value in row if value is not None]
    return f"busy {numbers.percent(sum(known) / len(known))} on average" if known else numbers.NOT_MEASURED


def _map(
    heat_map: HeatMap, rows: Sequence[Sequence[float | None]], colour: tuple[int, int, int], end_s: float, name: str
) -> Html:
    times = heat_map.time_s
    interval_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else times[-1]
    x = scale(0, end_s, 0, WIDTH)
    left, right = x(times[0] - interval_s), x(times[-1])
    picture = tag("image", href=data_uri(rows, colour), x=f"{left:.2f}", y=0, width=f"{right - left:.2f}",
                  height=len(rows), preserveaspectratio="none", class_="cells")  # fmt: skip
    cell = (right - left) / len(times)
    absent = [
        tag("rect", x=f"{left + cell * start:.2f}", y=row, width=f"{cell * length:.2f}", height=1, class_="absent")
        for row, start, length in _absent_runs(rows)
    ]
    label = f"{name} over time: {_mean_words(rows)}"
    return stretched(*absent, picture, width=WIDTH, height=len(rows), label=label)


def _absent_runs(rows: Sequence[Sequence[float | None]]) -> list[tuple[int, int, int]]:
    """Return (row, first column, length) of every stretch of cells that were not measured."""
    runs = []
    for number, row in enumerate(rows):
        start = None
        for column, value in enumerate((*row, 0.0)):
            if value is None and start is None:
                start = column
            elif value is not None and start is not None:
                runs.append((number, start, column - start))
                start = None
    return runs


Read = Callable[[Sample], float | None]

MACHINE_LANES: tuple[tuple[str, Read, Callable[[float], str]], ...] = (
    ("disk reads", lambda sample: sample.disk_read_bytes_s, lambda value: f"{numbers.byte_size(value)}/s"),
    ("network in", lambda sample: sample.network_receive_bytes_s, lambda value: f"{numbers.byte_size(value)}/s"),
    ("memory used", lambda sample: sample.memory_used_bytes, numbers.byte_size),
)


def _machine_lanes(session: Session, end_s: float) -> list[Html]:
    """Return the lanes of disk, network and memory as thin areas. A series without measured values has no lane."""
    lanes = []
    for name, read, as_text in MACHINE_LANES:
        points = [(sample.time_s, value) for sample in session.samples if (value := read(sample)) is not None]
        if len(points) < 2:
            continue
        greatest = max(value for _, value in points)
        if greatest <= 0:
            continue  # always 0, as the table of percentiles says
        thinned = _thinned(points)
        x, y = scale(0, end_s, 0, WIDTH), scale(0, greatest, MACHINE_HEIGHT, 4)
        corners = [(thinned[0][0], 0.0), *thinned, (thinned[-1][0], 0.0)]
        area = line([(x(time_s), y(value)) for time_s, value in corners], class_="area machine")
        peak = f"peak {as_text(greatest)}"
        body = stretched(area, width=WIDTH, height=MACHINE_HEIGHT, label=f"{name} over time, {peak}")
        lanes.append(_lane(name, peak, body, kind="machine", height=MACHINE_HEIGHT))
    return lanes


def _thinned(points: Sequence[tuple[float, float]], limit: int = 1000) -> list[tuple[float, float]]:
    """Return at most `limit` points: of each group of neighbours the largest, so that peaks stay."""
    group = math.ceil(len(points) / limit)
    return [max(points[start : start + group], key=lambda point: point[1]) for start in range(0, len(points), group)]


def _axis(end_s: float) -> Html:
    ticks = [
        tag(
            "span",
            f"{mark:g} s" if end_s < 300 else numbers.seconds(mark),
            style=f"left:{100 * mark / end_s:.2f}%",
            class_="tick",
        )
        for mark in round_marks(end_s, 4)
        if mark <= 0.96 * end_s
    ]
    return tag(
        "div", tag("div", class_="lane-label"), tag("div", *ticks, class_="axis"), class_="lane axis-lane", aria_hidden="true"
    )
