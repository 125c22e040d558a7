"""Charts of a run as SVG: lines over a number that was varied, bars over names. The same series go to PNG with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.report.drawing.markup import Html, tag
from headrace.report.drawing.plot import Scale, line, round_marks, scale
from headrace.system.files.atomic_write import replacing
from headrace.system.text.sizes import count_text, number_text
from headrace.trials.experiment.cells import LOADERS
from headrace.trials.results.row import Row

__all__ = ["Chart", "Series", "charts_of", "legend", "short_names", "svg", "svg_file", "training_name", "write_png"]

COLOURS = (
    "#d97725",
    "#187a9f",
    "#6a5aa8",
    "#3f9142",
    "#b8326a",
    "#8a6d3b",
    "#59626c",
    "#2f93bd",
    "#a34708",
    "#7fb7cd",
    "#a88f1d",
)
"""Colours that differ in lightness as well as in hue, and are readable on white and on black: one for each of `LOADERS`."""

WIDTH, HEIGHT = 640.0, 320.0

LEFT, RIGHT, TOP, BASE = 76.0, 620.0, 34.0, 276.0
"""Ends of the plot inside the drawing: of its horizontal axis, and of its vertical one, whose 0 is at `BASE`."""


PUBLISHED = "published, "
"""Beginning of the name of a series of published numbers."""

PALE = 0.45
"""Opacity of bars with published numbers, to tell them from measured ones of the same colour."""


@dataclass(frozen=True, slots=True)
class Series:
    """A named line or set of bars: (x, y) pairs; x is a number or a name. dashed: published, not measured here."""

    name: str
    points: tuple[tuple[float | str, float], ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. name: of its file. x, y: labels of the axes, with units. continuous: x is a quantity, drawn to scale."""

    name: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    continuous: bool = False


MOST_LABELS = 8
"""Places on the horizontal axis that are labelled one by one. With more numbers, the axis is to scale; with more names, their
labels stand in two rows."""

AXES = {
    "load": "augmentation load",
    "workers": "workers",
    "batch_size": "batch size in images",
    "ranks": "ranks",
    "epoch": "epoch",
    "data": "data",
    "precision": "precision",
    "recipe": "recipe",
    "loader": "loader",
}
"""Label of the horizontal axis, by the field that is varied."""


def charts_of(rows: Sequence[Row], compare: str) -> list[Chart]:
    """Return the charts of an experiment whose rows are compared by the field `compare`."""
    found = [row for row in rows if row.seconds_per_epoch is not None]
    if any(row.epoch is not None for row in found):
        return _of_trainings(found, compare)
    charts = []
    for mode in dict.fromkeys(row.mode for row in found):
        for model in dict.fromkeys(row.model for row in found if row.mode == mode):
            chosen = [row for row in found if row.mode == mode and row.model == model]
            charts += _of_model(chosen, rows, compare, mode, model)
    return [chart for chart in charts if any(len(series.points) > 0 for series in chart.series)]


def _of_trainings(rows: Sequence[Row], compare: str) -> list[Chart]:
    """Return the charts of trainings: loss and accuracy over epochs, accuracy over time, rate of the last epoch."""
    by_cell: dict[str, list[Row]] = {}
    for row in rows:
        by_cell.setdefault(training_name(row), []).append(row)
    short = short_names(list(by_cell))

    def lines(x: Callable[[Row], float | None], y: Callable[[Row], float | None]) -> tuple[Series, ...]:
        return tuple(
            Series(short[name], tuple((x(row) or 0.0, value) for row in members if (value := y(row)) is not None))
            for name, members in by_cell.items()
        )

    def percent(row: Row) -> float | None:
        return None if row.top1 is None else 100 * row.top1

    rates = tuple(
        Series(short[name], ((getattr(members[-1], compare), members[-1].img_s or 0.0),)) for name, members in by_cell.items()
    )
    over_time = lines(lambda row: row.elapsed_s, percent)
    return [
        Chart("top1-epochs", "Accuracy at equal epochs", "epoch", "top-1, per cent", lines(lambda row: row.epoch, percent)),
        Chart("top1-time", "Accuracy at equal time", "seconds", "top-1, per cent", over_time, continuous=True),
        Chart(
            "loss-epochs", "Loss of the last training step", "epoch", "loss", lines(lambda row: row.epoch, lambda row: row.loss)
        ),
        Chart("rate", "Training rate", AXES.get(compare, compare), "img/s", rates),
    ]


def training_name(row: Row) -> str:
    """Return a training's name in charts: its loader, recipe, batch size, precision, ranks and workers."""
    ranks = count_text(row.ranks, "rank")
    return f"{row.loader}, {row.recipe}, batch {row.batch_size}, {row.precision}, {row.workers} threads, {ranks}"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return full name → short name of trainings: without the parts that all of them have."""
    parts = {name: name.split(", ") for name in names}
    common = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    return {name: ", ".join(part for part in words if part not in common) or name for name, words in parts.items()}


def _of_model(chosen: Sequence[Row], rows: Sequence[Row], compare: str, mode: str, model: str) -> list[Chart]:
    words, key = f"{model}, {mode}", f"{model}-{mode}"
    published = tuple(
        Series(f"{PUBLISHED}{loader}", points, dashed=True)
        for loader, points in _series([row for row in rows if row.model == model and row.mode == mode], compare, _published)
    )
    seconds = tuple(Series(*pair) for pair in _series(chosen, compare, lambda row: row.seconds_per_epoch))
    rates = tuple(Series(*pair) for pair in _series(chosen, compare, lambda row: row.img_s))
    gains = tuple(Series(*pair) for pair in _series(chosen, compare, _gain))
    cpu = tuple(Series(*pair) for pair in _series(chosen, compare, lambda row: row.cpu_ms))
    top1 = tuple(Series(*pair) for pair in _series(chosen, compare, lambda row: None if row.top1 is None else 100 * row.top1))
    axis = AXES.get(compare, compare)
    return [
        Chart(f"seconds-{key}", f"Seconds per epoch: {words}", axis, "s per epoch", seconds + published),
        Chart(f"rate-{key}", f"Training rate: {words}", axis, "img/s", rates),
        Chart(f"gain-{key}", f"Less time than the reference: {words}", axis, "per cent", gains),
        Chart(f"cpu-{key}", f"CPU time of the input: {words}", axis, "ms per image", cpu),
        Chart(f"top1-{key}", f"Accuracy on validation images: {words}", axis, "top-1, per cent", top1),
    ]


def _gain(row: Row) -> float | None:
    return row.gain_percent if row.gain_percent and row.gain_percent > 0 else None


def _published(row: Row) -> float | None:
    return row.published_s


def _series(
    rows: Sequence[Row], compare: str, value: Callable[[Row], float | None]
) -> list[tuple[str, tuple[tuple[float | str, float], ...]]]:
    by_name: dict[str, list[tuple[float | str, float]]] = {}
    for row in rows:
        y, x = value(row), getattr(row, compare)
        if y is not None and x is not None:
            by_name.setdefault("all" if compare == "loader" else row.loader, []).append((x, y))
    return [
        (name, tuple(sorted(points, key=lambda point: (isinstance(point[0], str), point[0]))))
        for name, points in by_name.items()
    ]


def svg_file(chart: Chart) -> str:
    """Return a chart as a complete SVG file, with its title above the plot and a legend of its series below."""
    rows = math.ceil(len(chart.series) / 2)
    parts = [tag("text", chart.title, x=WIDTH / 2, y=-10, text_anchor="middle", font_size=14)]
    for number, series in enumerate(chart.series):
        x, y = LEFT + (number % 2) * (WIDTH - LEFT) / 2, HEIGHT + 18 * (1 + number // 2)
        dash = "5 4" if series.dashed else None
        colour = _colour(series, number)
        parts.append(tag("line", x1=x, x2=x + 20, y1=y - 4, y2=y - 4, stroke=colour, stroke_width=4, stroke_dasharray=dash))
        parts.append(tag("text", series.name, x=x + 26, y=y))
    return _framed(chart, [*_drawn(chart), *parts], above=30, below=18 * rows + 10)


def svg(chart: Chart) -> Html:
    """Return a chart as one SVG element that is readable on light and dark paper."""
    return _framed(chart, _drawn(chart))


def _drawn(chart: Chart) -> list[Html]:
    """Return the grid, the labels, and the lines or bars of a chart."""
    xs = list(dict.fromkeys(x for series in chart.series for x, _ in series.points))
    numbers = all(not isinstance(x, str) for x in xs)
    if numbers:
        xs.sort(key=float)
    to_scale = numbers and (chart.continuous or len(xs) > MOST_LABELS)
    marks = _marks([y for series in chart.series for _, y in series.points])
    y = scale(0, marks[-1], BASE, TOP)
    places, labels = _across(xs, to_scale)
    parts = []
    for mark in marks:
        parts.append(tag("line", x1=LEFT, x2=WIDTH - 10, y1=y(mark), y2=y(mark), stroke="currentColor", stroke_opacity=0.15))
        parts.append(tag("text", number_text(mark, digits=4), x=LEFT - 6, y=y(mark) + 4, text_anchor="end"))
    rows = 2 if len(xs) > MOST_LABELS and not numbers else 1
    parts += [
        tag("text", text, x=at, y=BASE + 16 + 12 * (place % rows), text_anchor="middle")
        for place, (text, at) in enumerate(labels)
    ]
    for number, series in enumerate(chart.series):
        colour = _colour(series, number)
        if to_scale or (numbers and len(xs) > 1):
            parts += _line(series, places, y, colour)
        else:
            width = 0.7 * (RIGHT - LEFT) / len(xs) / len(chart.series)
            parts += _bars(series, places, y, colour, (number - len(chart.series) / 2) * width, width)
    return parts


def _marks(values: Sequence[float]) -> list[float]:
    """Return the round marks of an axis from 0 that holds all values; from 0 to 1 where none is above 0."""
    greatest = max(values, default=0.0)
    return round_marks(greatest if greatest > 0 else 1.0, 3)


def _across(xs: Sequence[float | str], to_scale: bool) -> tuple[dict[float | str, float], list[tuple[str, float]]]:
    """Return the place of each x, and the labels with their places: round marks to scale, or each x at equal distances."""
    if to_scale:
        marks = _marks([float(x) for x in xs])
        x_scale = scale(0, marks[-1], LEFT, RIGHT)
        return {x: x_scale(float(x)) for x in xs}, [(number_text(mark, digits=4), x_scale(mark)) for mark in marks]
    places = {x: LEFT + (RIGHT - LEFT) * (number + 0.5) / len(xs) for number, x in enumerate(xs)}
    return places, [(x if isinstance(x, str) else f"{x:g}", at) for x, at in places.items()]


def _framed(chart: Chart, parts: Sequence[Html], above: float = 0.0, below: float = 0.0) -> Html:
    """Return the SVG element of a chart. `above` and `below` add space over and under the plot, in SVG units."""
    words = (
        tag("text", chart.x, x=(LEFT + WIDTH) / 2, y=HEIGHT - 4, text_anchor="middle"),
        tag("text", chart.y, x=4, y=16),
    )
    return tag(
        "svg",
        tag("title", chart.title),
        *parts,
        *words,
        viewbox=f"0 {0 - above:g} {WIDTH:g} {HEIGHT + above + below:g}",
        role="img",
        aria_label=chart.title,
        fill="currentColor",
        font_size=12,
        font_family="system-ui, sans-serif",
        xmlns="http://www.w3.org/2000/svg",
    )


def legend(chart: Chart) -> Html:
    """Return an HTML legend: the names of a chart's series with their colours."""
    return tag(
        "ul",
        *(
            tag("li", tag("span", class_="swatch", style=_swatch(series, number)), series.name)
            for number, series in enumerate(chart.series)
        ),
        class_="legend",
    )


def _swatch(series: Series, number: int) -> str:
    pale = f";opacity:{PALE}" if series.dashed else ""
    return f"background:{_colour(series, number)}{pale}"


def _colour(series: Series, number: int) -> str:
    """Return the colour of a loader, the same in all charts; of another name that of its place, which all charts share."""
    loader = series.name.removeprefix(PUBLISHED)
    return COLOURS[(LOADERS.index(loader) if loader in LOADERS else number) % len(COLOURS)]


def _line(series: Series, places: Mapping[float | str, float], y: Scale, colour: str) -> list[Html]:
    dash = "5 4" if series.dashed else None
    points = [(places[x], y(value)) for x, value in series.points]
    dots = [tag("circle", _title(series, value), cx=places[x], cy=y(value), r=3.5, fill=colour) for x, value in series.points]
    return [line(points, fill="none", stroke=colour, stroke_width=2, stroke_dasharray=dash), *dots]


def _bars(
    series: Series, places: Mapping[float | str, float], y: Scale, colour: str, offset: float, width: float
) -> list[Html]:
    opacity = PALE if series.dashed else None
    return [
        tag("rect", _title(series, value), x=places[x] + offset, y=y(value), width=max(1.0, width - 2), height=BASE - y(value),
            fill=colour, fill_opacity=opacity)
        for x, value in series.points
    ]  # fmt: skip


def _title(series: Series, value: float) -> Html:
    return tag("title", f"{series.name}: {number_text(value, digits=4)}")


def write_png(chart: Chart, path: Path) -> bool:
    """Draw a chart with matplotlib to `path`. Return False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    # In matplotlib's texts a pair of $ encloses a formula, which may be none.
    names = [_plain(str(x)) for x in dict.fromkeys(x for series in chart.series for x, _ in series.points)]
    numbers = chart.continuous or len(names) > MOST_LABELS
    for number, series in enumerate(chart.series):
        style = "--" if series.dashed else "-"
        x = [point[0] if numbers else _plain(str(point[0])) for point in series.points]
        y = [point[1] for point in series.points]
        axes.plot(x, y, style, marker="o", color=_colour(series, number), label=_plain(series.name))
    if not numbers:
        axes.set_xticks(range(len(names)), names)
    axes.set(title=_plain(chart.title), xlabel=_plain(chart.x), ylabel=_plain(chart.y))
    axes.set_ylim(bottom=0)
    axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return True


def _plain(text: str) -> str:
    return text.replace("$", r"\$")
