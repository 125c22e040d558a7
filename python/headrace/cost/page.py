"""The HTML page of a cost estimate: the choice, a chart of time against money, all rows, the arithmetic, the sources."""

from __future__ import annotations

from pathlib import Path

from headrace.cost import page_chart
from headrace.cost.answer import Answer, total_text, usd
from headrace.errors import UsageError
from headrace.report.drawing.markup import Html, join, tag
from headrace.report.pages.page import figure, footer, header, html_page, write_page
from headrace.report.pages.tables import table
from headrace.report.text import numbers

__all__ = ["render", "write"]

STYLE = """
details { margin: 0.3rem 0; } details ul { margin: 0.3rem 0 0.6rem; }
"""

PARTS = ("start, USD", "storage", "requests", "total", "total, spot")
"""Columns of the table of all rows: parts of the total beside the training, and both totals."""


def write(found: Answer, path: Path, *, title: str) -> Path:
    """Write the page to `path` in one piece and return `path`. Raises `UsageError` if it cannot be written."""
    return write_page(path, render(found, title=title), name="page", error=UsageError, hint="--html FILE chooses another place")


def render(found: Answer, *, title: str) -> str:
    """Return the HTML text of the page."""
    return html_page(
        f"{title} · headrace",
        header(title),
        tag(
            "main",
            _head(found),
            page_chart.chart(found),
            _rows(found),
            _fixes(found),
            _arithmetic(found),
            _modes(found),
            _sensitivity(found),
            _sources(found),
        ),
        footer(f"prices of {found.region}, {found.price_date}"),
        css=STYLE + page_chart.STYLE,
    )


def _head(found: Answer) -> Html:
    row = found.choice.row
    cells = []
    if row is not None:
        cells = [
            figure(total_text(row, row.best_usd).replace(" ", "\u00a0"), found.choice_words(row), accent=True),
            figure(f"{row.total_hours:.1f} h", "from the order to the last step"),
            figure(row.binds, "binds"),
        ]
    return tag("section", tag("div", *cells, class_="money"), *(tag("p", line) for line in found.sentences(page=True)))


def _rows(found: Answer) -> Html:
    ordered = sorted(found.rows, key=lambda row: row.best_usd)
    headers = ("instance", "img/s", "interval", "binds", "an epoch", "training", "on demand", "spot", "start", *PARTS)
    cells = [
        (
            found.label(row),
            numbers.image_rate(row.img_s) if row.img_s else "–",
            f"{numbers.image_rate(row.img_s_low)} to {numbers.image_rate(row.img_s_high)}" if row.img_s else "–",
            row.binds,
            numbers.seconds(row.seconds_per_epoch) if row.seconds_per_epoch else "–",
            numbers.seconds(row.hours * 3600),
            usd(row.on_demand_usd),
            usd(row.spot_usd),
            numbers.seconds(row.start_s),
            usd(row.start_usd),
            usd(row.storage_usd + row.copy_usd),
            usd(row.requests_usd),
            total_text(row, row.total_usd),
            total_text(row, row.spot_total_usd),
        )
        for row in ordered
    ]
    return tag("section", tag("h2", "all rows, the cheapest first"), table("cost by instance type", headers, cells))


def _arithmetic(found: Answer) -> Html:
    parts = []
    for row in sorted(found.rows, key=lambda row: row.best_usd):
        lines = [
            tag("li", f"{floor.resource}: {floor.arithmetic} = {numbers.image_rate(floor.img_s.point)} img/s "
                      f"({floor.img_s.kind}; {floor.img_s.source})")
            for floor in row.floors
        ]  # fmt: skip
        if row.input_mode is not None:
            lines.append(tag("li", f"data, {row.input_mode}: {row.data_arithmetic}"))
        lines.append(
            tag("li", f"price: ${row.usd_per_hour:,.4f} an hour, {row.price_kind}, {row.price_date} ({row.price_source})")
        )
        if row.spot_expected_usd is not None and row.spot_interruptions is not None:
            level = (
                f"; spot pays if interruptions are rarer than one in {row.break_even_hours:.2f} h"
                if row.break_even_hours
                else ""
            )
            discount = numbers.percent(row.spot_discount)
            words = f"spot: {discount} off ({row.spot_kind}), {row.spot_interruptions:.1f} interruptions{level}"
            lines.append(tag("li", words))
        parts.append(tag("details", tag("summary", f"{found.label(row)}: {usd(row.best_usd)}"), tag("ul", *lines)))
    return tag("section", tag("h2", "arithmetic"), *parts)


def _fixes(found: Answer) -> Html | None:
    watched = found.watched
    if watched is None:
        return None
    now, *_ = watched.lines()
    cells = [
        (
            fix.id,
            numbers.image_rate(fix.img_s),
            fix.kind,
            usd(fix.usd_per_epoch),
            f"{usd(fix.usd_low)} to {usd(fix.usd_high)}" if fix.kind == "predicted" else "–",
            usd(fix.saved_usd_run),
        )
        for fix in watched.fixes
    ]
    headers = ("fix", "img/s", "rate", "an epoch", "interval", "saved in the run")
    if not cells:
        return tag("section", tag("h2", "what the session's fixes save"), tag("p", f"{now} No fix has a known rate."))
    changes = [tag("li", tag("code", fix.id), f": {fix.change}") for fix in watched.fixes]
    return tag(
        "section",
        tag("h2", "what the session's fixes save"),
        tag("p", now),
        tag("ul", *changes),
        table("fixes of the session", headers, cells),
    )


def _modes(found: Answer) -> Html | None:
    if not found.input_modes:
        return None
    cells = [
        (
            plan.mode,
            numbers.seconds(plan.row.start_s),
            numbers.seconds(plan.row.seconds_per_epoch or 0.0),
            plan.row.binds,
            usd(plan.row.storage_usd + plan.row.copy_usd),
            usd(plan.row.requests_usd),
            total_text(plan.row, plan.row.total_usd),
            total_text(plan.row, plan.row.spot_total_usd),
        )
        if plan.row is not None
        else (plan.mode, plan.refused or "", *"–" * 6)
        for plan in found.input_modes
    ]
    headers = ("input mode", "first batch after", "an epoch", "binds", *PARTS[1:])
    return tag("section", tag("h2", "input modes"), table("input modes on the chosen instance", headers, cells))


def _sensitivity(found: Answer) -> Html | None:
    if not found.sensitivity:
        return None
    cells = [
        (
            change.input,
            f"× {change.factor:g}",
            change.instance or "none",
            change.purchase or "–",
            usd(change.usd),
            "yes" if change.changes_choice else "no",
        )
        for change in found.sensitivity
    ]
    headers = ("input", "changed", "choice then", "purchase", "run", "another choice")
    return tag("section", tag("h2", "which inputs change the choice"), table("sensitivity", headers, cells))


def _sources(found: Answer) -> Html:
    named = dict.fromkeys(f"{row.price_source} ({row.price_date})" for row in found.rows)
    rates = dict.fromkeys(floor.img_s.source for row in found.rows for floor in row.floors)
    items = [tag("li", line) for line in (*named, *rates)]
    return tag("section", tag("h2", "sources"), join(tag("ul", *items)))
