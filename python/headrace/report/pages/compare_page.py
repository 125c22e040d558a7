"""Two sessions side by side as one HTML file: steps to one scale, different settings, heat maps, percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace._native import __version__
from headrace.diagnosis.result.model import Diagnosis, Percentiles
from headrace.errors import SessionError
from headrace.report.drawing import charts, timeline
from headrace.report.drawing.markup import Html, join, no_break, tag
from headrace.report.pages import tables
from headrace.report.pages.page import asset, figure, html_page, write_page
from headrace.report.sessions.compare_sessions import PER_STEP, SessionComparison, noise_words, whole_s
from headrace.report.sessions.session_settings import Difference
from headrace.report.text import numbers
from headrace.report.text.screen import FirstScreen, first_screen
from headrace.report.text.slow_steps import slow_steps
from headrace.report.text.step_parts import part_style
from headrace.session.model import Session

__all__ = ["Side", "render", "write"]

POINTS = ("min", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two compared runs. label: "Before" or "After". name: of its session folder."""

    label: str
    name: str
    session: Session
    diagnosis: Diagnosis

    @property
    def screen(self) -> FirstScreen:
        """The first screen of the run's own report, whose words and parts the page repeats."""
        return first_screen(self.diagnosis, session=self.session)


def write(found: SessionComparison, before: Side, after: Side, path: str | Path, *, private: bool = True) -> Path:
    """Write the page that compares two sessions to `path`, in one piece, and return the path.

    A missing folder is made. Raises `SessionError` if the page cannot be written.

    `private`: only the owner may read the file (default: True, since it holds paths of this machine).
    """
    text, hint = render(found, before, after), "--out FILE chooses another place"
    return write_page(Path(path), text, name="comparison", error=SessionError, hint=hint, make_folder=True, private=private)


def render(found: SessionComparison, before: Side, after: Side) -> str:
    """Return the HTML text of the page. The page loads nothing from the network and runs no script."""
    sides = (before, after)
    sections = (
        ("steps", f"Where {'a step goes' if found.per == PER_STEP else f'the time of {found.per} goes'}", _steps(found, sides)),
        *((("jobs", "The two jobs", _jobs(found)),) if found.jobs else ()),
        ("settings", "What was set differently", _settings(found.differences)),
        ("over-time", "The runs over time", _over_time(sides)),
        ("percentiles", "Percentiles", _percentiles(sides)),
    )
    panels = [tag("section", tag("h2", title), body, id=name) for name, title, body in sections]
    return html_page(
        f"{before.name} and {after.name} compared · headrace",
        tag("header", tag("span", "headrace", class_="brand"), tag("span", f"{before.name} → {after.name}", class_="command")),
        tag("main", _verdict(found, sides), *panels),
        tag("footer", tag("p", f"Made by headrace {__version__} from two saved sessions: headrace compare A B --html.")),
        css=asset("compare_page.css"),
        images=True,
    )


def _verdict(found: SessionComparison, sides: Sequence[Side]) -> Html:
    before, after = sides
    change = None if found.change is None else numbers.gain(found.change)
    noise = "" if found.noise is None else f"; {noise_words(found.change, found.noise)}"
    cells = [
        figure(_rate(found.before_img_s), "images per second before"),
        figure(_rate(found.after_img_s), "images per second after", accent=True),
        figure(change, no_break(f"change{noise}")),
    ]
    simulated = {side.screen.simulated for side in sides} - {None}
    label = (
        tag("p", f"{', '.join(sorted(map(str, simulated)))}: compute is a timed wait.", class_="note") if simulated else None
    )
    return tag(
        "section",
        tag("h1", no_break(f"The second run is {found.word}." if found.change is not None else found.sentences[0])),
        tag("div", *cells, class_="money"),
        tag("div", *(_cause(side) for side in (before, after)), class_="pair-of-runs"),
        label,
        id="verdict",
    )


def _rate(img_s: float | None) -> str | None:
    return None if img_s is None else numbers.image_rate(img_s)


def _cause(side: Side) -> Html:
    """Return the box of one run: its verdict, headline, command and extent."""
    screen = side.screen
    kind = "good" if screen.is_healthy else None
    return tag(
        "div",
        tag("p", tag("b", side.label), " ", tag("span", screen.kind.replace("_", " "), class_="kind"), class_="verdict-line"),
        tag("p", no_break(screen.headline)),
        tag("p", tag("code", screen.command), class_="note"),
        tag("p", no_break(" · ".join(screen.scope)), class_="note"),
        class_=kind,
    )


def _steps(found: SessionComparison, sides: Sequence[Side]) -> Html:
    """Return the bars of both runs to one scale: the length of a bar is the time of a step, or of as many images."""
    times = [whole_s(side.diagnosis, found.per) for side in sides]
    longest = max((time_s for time_s in times if time_s), default=None)
    bars = [_bar(side, time_s, longest, found.per) for side, time_s in zip(sides, times, strict=True)]
    return join(*bars, _part_table(found) if found.moved else None)


def _bar(side: Side, time_s: float | None, longest: float | None, per: str) -> Html:
    parts = side.screen.parts
    if time_s is None or longest is None or not parts:
        return tag("p", tag("b", side.label), f": the split of a step was {numbers.NOT_MEASURED}.")
    words = tag("p", tag("b", side.label), f" {numbers.milliseconds(time_s)} per {per}", class_="times")
    return tag(
        "div", words, tag("div", charts.step_bar(parts), style=f"width:{100 * time_s / longest:.2f}%"), class_="where scaled"
    )


def _part_table(found: SessionComparison) -> Html:
    rows = []
    for part in found.shown:
        name = join(tag("i", class_=f"swatch {part.part}", aria_hidden="true"), part_style(part.part).short)
        cells = (numbers.part_of(value, found.whole_s) for value in (part.before_s, part.after_s))
        rows.append((name, *cells, part.change_words(found.whole_s)))
    return tables.table(f"Mean time per {found.per}", ("", "before", "after", "change"), rows)


def _jobs(found: SessionComparison) -> Html:
    rows = [(one.name, one.text(one.before), one.text(one.after), one.change_words) for one in found.jobs]
    return tables.table("Figures of the jobs", ("", "before", "after", "change"), rows)


def _settings(found: Sequence[Difference]) -> Html:
    if not found:
        return tag("p", "Nothing that a session records: command, machine, versions, variables, threads, loader, model.")
    rows = [(one.name, one.group, one.before, one.after) for one in found]
    note = "Variables and versions are compared where both sessions recorded them."
    table = tables.table("Settings", ("", "of", "before", "after"), rows, numeric_from=9, quiet=True)
    return join(table, tag("p", note, class_="note"))


def _over_time(sides: Sequence[Side]) -> Html:
    scales = [timeline.step_scale_s(side.diagnosis.timeline) for side in sides if side.diagnosis.timeline is not None]
    columns = [tag("div", tag("h3", side.label), _lanes(side, max(scales, default=1.0)), class_="run") for side in sides]
    note = "Step times have one scale in both. Each run has its own time axis. Stronger colour: busier. Grey: not measured."
    return join(tag("div", *columns, class_="pair-of-runs"), tag("p", note, class_="note"))


def _lanes(side: Side, top_s: float) -> Html:
    found = side.diagnosis
    end_s = timeline.axis_end_s(found.timeline, found.heat_map, found.duration_s)
    slow = slow_steps(found.timeline) if found.timeline is not None else ()
    drawn = timeline.chart(found.timeline, found.heat_map, slow, side.session, end_s, top_s=top_s, identifier=None)
    return drawn if drawn is not None else tag("p", "Nothing was recorded over time.", class_="absent")


def _percentiles(sides: Sequence[Side]) -> Html:
    """Return the table of percentiles: each series twice, before and after, one below the other."""
    found = [{row.name: row for row in tables.percentile_rows(side.diagnosis, side.session)} for side in sides]
    rows = [
        (name if side is sides[0] else "", side.label.lower(), *_points(series.get(name)))
        for name in dict.fromkeys(name for series in found for name in series)
        for side, series in zip(sides, found, strict=True)
    ]
    if not rows:
        return tag("p", numbers.NOT_MEASURED, class_="absent")
    return tables.table("Percentiles", ("", "", *POINTS, "count"), rows, numeric_from=2, quiet=True)


def _points(row: Percentiles | None) -> tuple[str, ...]:
    if row is None:
        return (tables.ABSENT, *("" for _ in POINTS))
    return (*(tables.text_in_unit(getattr(row, point), row.unit) for point in POINTS), numbers.count(row.count))
