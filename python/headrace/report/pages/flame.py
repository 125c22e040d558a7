"""The flame charts of the report: which functions making a batch and the training step spend their time in."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.diagnosis.measure.hot_functions import place_words
from headrace.diagnosis.result.model import Diagnosis, FlameBar, FlameChart, HotFunction
from headrace.report.drawing.markup import Html, join, tag
from headrace.report.pages import tables
from headrace.report.text import numbers
from headrace.session.model import Session

__all__ = ["panel"]

TITLES = {"batch": "Making batches", "step": "Training step"}
ROLES = {"batch": "making batches", "collate": "collate", "step": "training step"}
LABEL_SHARE = 0.02
"""Write the function's name on bars at least this share of the chart wide. Narrower bars show it as a tooltip."""


def panel(diagnosis: Diagnosis, session: Session | None) -> Html:
    """Return both flame charts, and their functions as a table."""
    cwd = session.cwd if session is not None else ""
    charts = [_chart(chart, diagnosis.hot_functions, cwd) for chart in diagnosis.flame_charts]
    rows = [
        (
            one.function,
            ROLES.get(one.role, one.role),
            numbers.percent(one.share),
            numbers.percent(one.self_share),
            place_words(one.file, one.line, cwd),
        )
        for one in diagnosis.hot_functions
    ]
    headers = ("", "in", "with callees", "itself", "line")
    listed = tables.table("Share of the sampled stacks", headers, rows, numeric_from=2) if rows else None
    note = tag(
        "p", "Python stacks, sampled while the job ran. Native code counts for the function that calls it.", class_="note"
    )
    return join(*charts, listed, note)


def _chart(chart: FlameChart, functions: Sequence[HotFunction], cwd: str) -> Html:
    depth = 1 + max((bar.depth for bar in chart.bars), default=0)
    top = [one for one in functions if (one.role == "step") == (chart.name == "step")][:3]
    named = ", ".join(f"{one.function} {numbers.percent(one.share)}" for one in top)
    title = TITLES.get(chart.name, chart.name)
    bars = tag("div", *(_bar(bar, cwd) for bar in chart.bars), class_="flame", style=f"height:{1.45 * depth:.2f}rem",
               role="img", aria_label=f"{title}: {named}" if named else title)  # fmt: skip
    head = tag("h3", title, tag("span", f" {numbers.count(chart.samples)} samples", class_="samples"))
    return join(head, tag("div", bars, class_="scroll", tabindex=0, role="region", aria_label=f"Flame chart: {title}"))


def _bar(bar: FlameBar, cwd: str) -> Html:
    own = "" if bar.file.startswith(("/", "…/")) or not bar.file else " library"
    style = f"left:{100 * bar.left:.3f}%;width:{100 * bar.share:.3f}%;top:{1.45 * bar.depth:.2f}rem"
    where = f" · {place_words(bar.file, bar.line, cwd)}" if bar.file else ""
    text = f"{bar.function} {numbers.percent(bar.share)}" if bar.share >= LABEL_SHARE else None
    words = f"{bar.function} · {numbers.percent(bar.share, digits=1)}{where}"
    return tag("span", text, style=style, class_=f"bar-{bar.role}{own}", title=words)
