"""The report of a diagnosis as one HTML file, readable without a network, without JavaScript, on a phone and on paper."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace._native import __version__
from headrace.diagnosis.result.model import Diagnosis, HeatMap, Timeline
from headrace.errors import SessionError
from headrace.report.drawing import charts
from headrace.report.drawing.markup import Html, embedded_json, join, no_break, tag
from headrace.report.pages.page import asset, figure, header, html_page, write_page
from headrace.report.pages.panels import panels
from headrace.report.text import numbers
from headrace.report.text.screen import FirstScreen, FixLine, StepPart, capitalised, first_screen
from headrace.session.model import Session

__all__ = ["MAX_BYTES", "render", "write"]

MAX_BYTES = 2_000_000
"""Upper limit of a report's size. The drawn series are bounded, so a long run has no larger report than a short one."""


def write(
    diagnosis: Diagnosis,
    path: str | Path,
    *,
    session: Session | None = None,
    usd_per_hour: float | None = None,
    private: bool = True,
) -> Path:
    """Write the report to `path` in one piece and return the path. A missing folder is made.

    Raises `SessionError` if the report cannot be written.

    `private`: only the owner may read the file (default: True, since it holds paths of this machine). Other arguments as in
    `render`.
    """
    text = render(diagnosis, session=session, usd_per_hour=usd_per_hour)
    hint = "--out FILE chooses another place"
    return write_page(Path(path), text, name="report", error=SessionError, hint=hint, make_folder=True, private=private)


def render(diagnosis: Diagnosis, *, session: Session | None = None, usd_per_hour: float | None = None) -> str:
    """Return the whole page.

    `session` adds the machine's series and the environment. `usd_per_hour`: price of one GPU-hour, for the wasted money.
    """
    screen = first_screen(diagnosis, session=session, usd_per_hour=usd_per_hour)
    return html_page(
        f"{screen.kind} · {screen.command} · headrace",
        _top(screen, session),
        tag("main", _verdict(screen), _fixes(screen), _notes(screen), _not_measured(screen), *panels(diagnosis, session)),
        _foot(screen),
        tag("script", embedded_json(_hover_data(diagnosis)), type="application/json", id="data"),
        tag("script", asset("page.js")),
        images=True,
        scripts=True,
    )


def _top(screen: FirstScreen, session: Session | None) -> Html:
    where = [session.host.hostname] if session is not None and session.host.hostname else []
    if session is not None and session.started_at is not None:
        with contextlib.suppress(ArithmeticError, OSError, ValueError):  # somebody else's session may begin in no year
            began = datetime.datetime.fromtimestamp(session.started_at, tz=datetime.UTC)
            where.append(began.strftime("%-d %B %Y, %H:%M UTC"))
    return header(screen.command, " · ".join((*screen.scope, *where)))


def _verdict(screen: FirstScreen) -> Html:
    facts = [tag("span", screen.kind.replace("_", " "), class_="kind")]
    if screen.share is not None:
        facts.append(tag("span", f"{numbers.percent(screen.share)} of the {screen.share_of}"))
    facts.append(tag("span", f"confidence {screen.confidence_word} ({screen.confidence:.2f})"))
    if screen.simulated:
        facts.append(tag("span", f"{screen.simulated}: compute is a timed wait", class_="simulated"))
    return tag(
        "section",
        _end(screen),
        tag("p", *facts, class_="verdict-line"),
        tag("h2" if screen.end else "h1", no_break(screen.headline)),
        tag("p", screen.explanation[0].upper() + screen.explanation[1:] + ".", class_="lead") if screen.explanation else None,
        _money(screen),
        _bar(screen),
        _evidence(screen),
        id="verdict", class_="good" if screen.is_healthy else None,
    )  # fmt: skip


def _end(screen: FirstScreen) -> Html | None:
    """How the command ended, if it did not end as it should, and what shows it."""
    if not screen.end:
        return None
    evidence = tag("ul", *(tag("li", no_break(capitalised(sentence))) for sentence in screen.end_evidence))
    return tag("div", tag("h1", no_break(f"{capitalised(screen.end)}.")), evidence, class_="evidence end")


def _money(screen: FirstScreen) -> Html:
    label = f", {screen.simulated}" if screen.simulated else ""
    rate = None if screen.img_s is None else numbers.image_rate(screen.img_s)
    ceiling = None if screen.ceiling_img_s is None else numbers.image_rate(screen.ceiling_img_s)
    cells = [figure(rate, f"images per second now{label}")]
    if screen.reachable_img_s is not None:
        words = f"with the best fix below ({screen.reachable_words}){label}"
        cells.append(figure(numbers.image_rate(screen.reachable_img_s), words, accent=True))
    cells.append(figure(ceiling, f"ceiling: {screen.ceiling_words}{label}"))
    if screen.usd is not None:
        cells.append(figure(f"${screen.usd:,.0f}", f"saved by the best fix per 100 {screen.hours_unit}"))
    if screen.recoverable is not None:
        words = f"of every 100 {screen.hours_unit} saved by the best fix{label}"
        cells.append(figure(numbers.hours(screen.recoverable), words))
    return tag("div", *cells, class_="money")


def _bar(screen: FirstScreen) -> Html:
    rows = [("step", "mean", screen.step_s, screen.step_p95_s)]
    rows += [(name, "p50", p50_s, p95_s) for name, p50_s, p95_s in screen.spread]
    times = [
        tag(
            "span",
            f"{name} ",
            tag("b", no_break(f"{what} {numbers.milliseconds(usual)}")),
            no_break(f" p95 {numbers.milliseconds(p95)}"),
        )
        for name, what, usual, p95 in rows
    ]
    head = tag("div", tag("h2", "Where a step goes"), tag("p", *times, class_="times"), class_="head")
    if not screen.parts:
        return tag("div", head, tag("p", f"The split of a step was {numbers.NOT_MEASURED}.", class_="absent"), class_="where")
    return tag("div", head, charts.step_bar(screen.parts), _legend(screen.parts, screen.absent_parts), class_="where")


def _legend(parts: Sequence[StepPart], absent: Sequence[str]) -> Html:
    entries = [
        tag("li", tag("i", class_=f"swatch {part.key}", aria_hidden="true"), tag("span", part.short), " ",
            tag("b", f"{part.percent} %" if part.percent else "<1 %"),
            tag("span", f" {numbers.milliseconds(part.mean_s, digits=2)}" if part.mean_s is not None else "", class_="ms"),
            title=part.label, data_part=part.key)
        for part in parts
    ]  # fmt: skip
    entries += [tag("li", f"{label}: {numbers.NOT_MEASURED}", class_="absent") for label in absent]
    return tag("ul", *entries, class_="legend")


def _evidence(screen: FirstScreen) -> Html | None:
    if not screen.evidence:
        return None
    return tag(
        "div",
        tag("h2", "Evidence"),
        tag("ul", *(tag("li", no_break(capitalised(sentence))) for sentence in screen.evidence)),
        class_="evidence",
    )


def _fixes(screen: FirstScreen) -> Html:
    if not screen.fixes:
        return tag("section", tag("h2", "What to change"), tag("p", screen.no_fix), id="fixes")
    rates = [screen.ceiling_img_s, screen.img_s]
    for line in screen.fixes:
        rates += [line.fix.predicted_img_s, line.fix.verified_img_s, line.fix.interval[1] if line.fix.interval else None]
    greatest = 1.04 * max((rate for rate in rates if rate is not None), default=0.0)
    header = tag("tr", *(tag("th", name, scope="col", role="columnheader") for name in
                 ("Change", "Predicted images per second", "Measured", "Then limited by")), role="row")  # fmt: skip
    rows = [_fix_row(line, screen.img_s, greatest) for line in screen.fixes]
    note = "Dot: predicted. Band: 80 % interval. Diamond: measured with the change. Vertical line: now."
    if screen.more_fixes:
        note += f" The JSON report lists {screen.more_fixes} more."
    if screen.simulated:
        note += f" All rates are for a {screen.simulated}."
    caption = tag("caption", "Fixes, best first", class_="screen-reader-only")
    body = tag("table", caption, tag("thead", header, role="rowgroup"),
               tag("tbody", *rows, role="rowgroup"), role="table", class_="fixes")  # fmt: skip
    advice = join(*(tag("p", f"{capitalised(words).rstrip('.')}.") for words in (screen.no_gain, screen.advice) if words))
    order = tag("p", screen.order_note, class_="note") if screen.order_note else None
    return tag("section", tag("h2", "What to change"), advice, body, order, tag("p", note, class_="note"), id="fixes")


def _fix_row(line: FixLine, now: float | None, greatest: float) -> Html:
    fix = line.fix
    about = " · ".join(filter(None, (fix.effort, fix.basis)))
    change = tag(
        "td",
        tag("span", no_break(fix.change.removeprefix("≈ 0: ")), class_="change"),
        tag("div", tag("code", line.command), class_="do") if line.command else None,
        tag("span", about, class_="about") if about else None,
        role="cell",
    )
    measured = fix.verified_img_s
    gain = "" if fix.verified_change is None else f" {numbers.gain(fix.verified_change)}"
    verified = tag("span", "not yet", class_="absent")
    if measured is not None:
        basis = tag("span", fix.verified_basis, class_="about") if fix.verified_basis else None
        verified = tag("span", tag("b", numbers.image_rate(measured)), tag("span", gain, class_="gain"), basis)
    then = tag("span", line.then or "–")
    cells = (("Predicted", _predicted(line, now, greatest)), ("Measured", verified), ("Then limited by", then))
    columns = (tag("td", cell, role="cell", data_label=name) for name, cell in cells)
    return tag("tr", change, *columns, role="row", class_="no-help" if line.helps is False else None)


def _predicted(line: FixLine, now: float | None, greatest: float) -> Html:
    """Return the predicted rate of a fix with gain and interval, in numbers and as a drawing."""
    fix = line.fix
    if fix.predicted_img_s is None:
        return tag("span", "not predicted", class_="absent")
    low_high = "–".join(map(numbers.image_rate, fix.interval)) if fix.interval else "no interval"
    rate = tag("b", numbers.image_rate(fix.predicted_img_s))
    gain, span = tag("span", line.gain_words, class_="gain"), tag("span", low_high, class_="span")
    return join(tag("span", rate, " ", gain, " ", span, class_="rate"), charts.interval(line, now=now, greatest=greatest))


def _notes(screen: FirstScreen) -> Html | None:
    """Return the section of notes, which are no causes of lost time, such as a loss that does not move; None without notes."""
    if not screen.notes:
        return None
    entries = []
    for note in screen.notes:
        shown = [tag("li", no_break(sentence)) for sentence in note.evidence]
        entries.append(tag("li", no_break(f"{capitalised(note.text)}."), tag("ul", *shown) if shown else ""))
    return tag("section", tag("h2", "Notes"), tag("ul", *entries), id="notes")


def _not_measured(screen: FirstScreen) -> Html:
    entries = [tag("li", no_break(sentence)) for sentence in screen.not_measured]
    body = tag("ul", *entries) if entries else tag("p", screen.nothing_missing)
    quality = tag("p", no_break(" · ".join(screen.quality)), class_="note") if screen.quality else None
    return tag("section", tag("h2", "What was not measured"), body, quality, id="unknown")


def _foot(screen: FirstScreen) -> Html:
    text = f"Made by headrace {__version__} from a saved session, which holds every measurement on this page."
    if screen.simulated:
        text += f" {screen.simulated}: no such device ran; each step waited as long as the published rate says."
    return tag("footer", tag("p", text))


def _hover_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the data of the read-out under the pointer: numbers of five digits, cores averaged."""
    return {"steps": _steps(diagnosis.timeline), "heat": _heat(diagnosis.heat_map)}


def _steps(timeline: Timeline | None) -> dict[str, Any] | None:
    if timeline is None:
        return None
    return {name: _short(getattr(timeline, name)) for name in ("start_s", "wait_s", "compute_s")} | {"stride": timeline.stride}


def _heat(heat_map: HeatMap | None) -> dict[str, Any] | None:
    if heat_map is None:
        return None
    columns = [[value for value in column if value is not None] for column in zip(*heat_map.cores, strict=True)]
    cpu = [math.fsum(column) / len(column) if column else None for column in columns]
    return {"time_s": _short(heat_map.time_s), "cpu": _short(cpu), "gpus": [_short(row) for row in heat_map.gpus]}


def _short(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{value:.5g}") for value in values]
