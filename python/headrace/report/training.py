"""The page of a training run: its figures and curves, from metrics.jsonl, as one HTML file without network."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from headrace import _native
from headrace.diagnosis import Diagnosis
from headrace.errors import SessionError
from headrace.report.markup import Html, join, prose, tag

__all__ = ["render", "write"]

MOST_POINTS = 400  # of one curve: a long run's page is as small as a short one's
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 2.2rem 2rem; }
.curve svg { display: block; width: 100%; height: 9rem; overflow: visible; border-bottom: 1px solid var(--hair); }
.curve polyline { fill: none; stroke: var(--compute); stroke-width: 1.6; vector-effect: non-scaling-stroke; }
.curve h2 { margin-bottom: 0.2rem; }
.curve p { display: flex; justify-content: space-between; margin: 0.2rem 0 0; font-size: 0.8125rem; color: var(--quiet); }
"""

Row = Mapping[str, Any]


def write(metrics: Path, path: Path, *, title: str, diagnosis: Diagnosis | None = None) -> Path:
    """Writes the page of the run whose lines are in `metrics` to `path`, in one piece. Raises SessionError.

    `diagnosis` is that of the run itself; its report is linked as a path relative to the page.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        unfinished.write_text(render(rows, title=title, diagnosis=diagnosis, folder=path.parent), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        what = f"cannot write the report {path}: {error.strerror or error}"
        raise SessionError(what, hint="--out FOLDER chooses another place") from error
    return path


def render(rows: Sequence[Row], *, title: str, diagnosis: Diagnosis | None = None, folder: Path = Path()) -> str:
    """The whole page. Where a resumed run repeated steps, their last figures count."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", f"{title} · headrace"),
        tag("style", Html(resources.files("headrace.report").joinpath("page.css").read_text(encoding="utf-8") + STYLE)),
    )
    starts = [row for row in rows if "resumed_from_step" in row]
    steps = _last_of_each_step(row for row in rows if "loss" in row)
    scores = _last_of_each_step({**row["evaluation"], "step": row["step"]} for row in rows if "evaluation" in row)
    body = tag(
        "body",
        tag("header", tag("span", "headrace", class_="brand"), tag("code", title, class_="command"), _scope(starts)),
        tag(
            "main",
            _figures(steps, scores),
            _diagnosis(diagnosis, folder),
            tag("section", tag("div", *_curves(steps, scores), class_="curves")),
        ),
        tag("footer", tag("p", f"headrace {_native.__version__} · {len(steps)} reports of metrics.jsonl")),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _last_of_each_step(rows: Any) -> list[Row]:
    by_step: dict[int, Row] = {row["step"]: row for row in rows}
    return [by_step[step] for step in sorted(by_step)]


def _scope(starts: Sequence[Row]) -> Html | None:
    if not starts:
        return None
    facts = starts[-1]
    said = [str(facts["device"]), f"{facts['images']:,} images of {facts['classes']} classes"]
    said.append(f"batch {facts['batch_size']} × {facts['world_size']} ranks")
    resumed = [str(row["resumed_from_step"]) for row in starts if row["resumed_from_step"] is not None]
    if resumed:
        said.append(f"resumed from step {', '.join(resumed)}")
    return tag("span", prose(" · ".join(said)), class_="scope")


def _figures(steps: Sequence[Row], scores: Sequence[Row]) -> Html:
    last, score = steps[-1] if steps else {}, scores[-1] if scores else {}
    cells = [
        _figure(_number(last.get("img_s"), ",.0f"), "images per second"),
        _figure(_number(last.get("wait_share"), ".1%"), "of the time waiting for input"),
        _figure(_number(last.get("loss"), ".3f"), f"loss at step {last.get('step', 0):,}"),
        _figure(_number(score.get("top1"), ".2%"), "top-1 accuracy"),
        _figure(_number(score.get("top5"), ".2%"), "top-5 accuracy"),
    ]
    return tag("section", tag("div", *cells, class_="money"), id="verdict")


def _diagnosis(diagnosis: Diagnosis | None, folder: Path) -> Html | None:
    """What binds this run, of the last process that trained, and where the whole diagnosis is."""
    if diagnosis is None:
        return None
    steps = f" Measured over {diagnosis.steps:,} steps of the last process."
    link = None
    if diagnosis.report is not None:
        link = tag(
            "p", tag("a", "step timeline, shares and evidence", href=os.path.relpath(diagnosis.report, folder.absolute()))
        )
    return tag("section", tag("h2", "what binds"), tag("p", prose(f"{diagnosis.verdict}: {diagnosis.summary}{steps}")), link)


def _figure(value: str | None, label: str) -> Html:
    kind = "value" if value else "value absent"
    return tag("p", tag("span", value or "not measured", class_=kind), tag("span", label, class_="label"))


def _number(value: object, form: str) -> str | None:
    return format(value, form).replace("%", " %") if isinstance(value, int | float) else None


def _curves(steps: Sequence[Row], scores: Sequence[Row]) -> list[Html]:
    wanted = (
        ("loss", steps, "loss", ".3g", False),
        ("top-1 accuracy", scores, "top1", ".1%", False),
        ("images per second", steps, "img_s", ",.0f", True),
        ("share of time waiting for input", steps, "wait_share", ".1%", True),
        ("learning rate", steps, "learning_rate", ".3g", True),
    )
    curves = [_curve(*one) for one in wanted]
    return [curve for curve in curves if curve is not None]


def _curve(title: str, rows: Sequence[Row], field: str, form: str, from_zero: bool) -> Html | None:
    """A line over the steps; None where there are fewer than two values."""
    points = [(row["step"], row[field]) for row in rows if isinstance(row.get(field), int | float)]
    if len(points) < 2:
        return None
    stride = math.ceil(len(points) / MOST_POINTS)
    points = points[:: stride or 1] + ([points[-1]] if (len(points) - 1) % stride else [])
    first, last = points[0][0], points[-1][0]
    values = [value for _, value in points]
    low, high = (0.0 if from_zero else min(values)), max(values)
    span = (high - low) or 1.0
    line = " ".join(
        f"{100 * (step - first) / max(1, last - first):.2f},{100 - 100 * (value - low) / span:.2f}" for step, value in points
    )
    said = f"{title}: {_number(values[0], form)} at step {first}, {_number(values[-1], form)} at step {last}"
    drawing = tag("svg", tag("polyline", points=line), viewbox="0 0 100 100", preserveaspectratio="none", role="img",
                  aria_label=said)  # fmt: skip
    scale = join(tag("span", f"{_number(low, form)} to {_number(high, form)}"), tag("span", f"steps {first:,} to {last:,}"))
    return tag("div", tag("h2", title), drawing, tag("p", scale), class_="curve")
