"""The page of a training run: figures and curves from metrics.jsonl, as one HTML file that needs no network."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import SessionError
from headrace.report.drawing.markup import Html, no_break, tag
from headrace.report.drawing.plot import ends, line, scale, stretched
from headrace.report.pages.page import figure, footer, header, html_page, write_page
from headrace.system.files.regular_file import read_regular
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.json import check_values
from headrace.system.text.sizes import count_text, number_text, percent_text
from headrace.system.text.toml import parse_toml
from headrace.training.settings.options import Options
from headrace.training.settings.options_file import MOST_BYTES, flatten

__all__ = ["render", "write"]

SMOOTHED_FROM = 40
"""Draw a moving mean over a loss curve of more points than this."""

MAX_POINTS = 400
"""Draw at most this many points of a curve, so that the page of a long run is no larger than that of a short one."""

STYLE = """
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 2.2rem 2rem; }
.curve svg { display: block; width: 100%; height: 9rem; overflow: visible; border-bottom: 1px solid var(--hair); }
.curve h2 { margin-bottom: 0.2rem; }
.line.second { stroke: var(--decode); stroke-dasharray: 5 3; }
.curve .key { font-weight: 400; color: var(--quiet); }
.curve .key.second { color: var(--warn); }
.curve .now { float: right; font-weight: 620; font-size: 0.875rem; }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 0 2.5rem; margin: 0; }
.pairs { font-size: 0.875rem; }
.pairs div { display: flex; justify-content: space-between; gap: 1rem; padding: 0.3rem 0; }
.pairs div { border-bottom: 1px solid var(--hair); }
.pairs dt { color: var(--quiet); flex: 1 1 auto; }
.pairs dd { margin: 0; text-align: right; overflow-wrap: break-word; flex: 0 1 auto; max-width: 75%; }
#configuration .default { opacity: 0.65; }
"""

Row = Mapping[str, Any]

Form = Callable[[float], str]
WHOLE: Form = "{:,.0f}".format
THREE_DIGITS: Form = "{:.3g}".format
PERCENT_1: Form = partial(percent_text, digits=1)
PERCENT_2: Form = partial(percent_text, digits=2)

DEFAULTS = flatten(Options("", "", ""))


def write(metrics: Path, path: Path, *, title: str, diagnosis: Diagnosis | None = None) -> Path:
    """Write the page of the run recorded in `metrics` (metrics.jsonl) to `path`, in one piece. Return `path`.

    `diagnosis`: of the run itself; its report is linked as a path relative to the page. Raises `SessionError` when `metrics`
    cannot be read or the page cannot be written.
    """
    hint = "--out FOLDER chooses another place"
    try:
        rows = _rows(metrics)
        text = render(rows, title=title, diagnosis=diagnosis, folder=path.parent, configuration=_saved_options(metrics.parent))
    except OSError as error:
        raise SessionError(f"cannot write the report {path}: {error.strerror or error}", hint=hint) from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        what = f"{metrics} holds lines that no training wrote ({first_line(error)})"
        raise SessionError(f"cannot write the report {path}: {what}", hint="remove them") from error
    return write_page(path, text, name="report", error=SessionError, hint=hint)


def _rows(metrics: Path) -> list[Row]:
    data = read_regular(metrics)
    check_values(data)
    return [json.loads(line) for line in data.decode("utf-8").splitlines()]


def render(
    rows: Sequence[Row],
    *,
    title: str,
    diagnosis: Diagnosis | None = None,
    folder: Path = Path(),
    configuration: Mapping[str, object] | None = None,
) -> str:
    """Return the HTML text of the page. Where a resumed run repeated steps, the last figures count.

    `rows`: the lines of metrics.jsonl. `folder`: where the page will stand. `configuration`: the options of the run.
    """
    starts = [row for row in rows if "resumed_from_step" in row]
    steps = _last_of_each_step(row for row in rows if "loss" in row)
    scores = _last_of_each_step({**row["evaluation"], "step": row["step"]} for row in rows if "evaluation" in row)
    curves = _curves(steps, scores)
    return html_page(
        f"{title} · headrace",
        header(title, _scope(starts)),
        tag(
            "main",
            _interrupted(rows),
            _figures(steps, scores),
            _diagnosis(diagnosis, folder),
            tag("section", tag("div", *curves, class_="curves")) if curves else None,
            _configuration(configuration),
            _environment(starts),
        ),
        footer(f"{count_text(len(steps), 'report')} in metrics.jsonl"),
        css=STYLE,
    )


def _last_of_each_step(rows: Any) -> list[Row]:
    by_step: dict[int, Row] = {row["step"]: row for row in rows}
    return [by_step[step] for step in sorted(by_step)]


def _scope(starts: Sequence[Row]) -> str | None:
    if not starts:
        return None
    facts = starts[-1]
    parts = [str(facts["device"]), f"{count_text(facts['images'], 'image')} of {facts['classes']} classes"]
    parts.append(f"batch {facts['batch_size']} × {count_text(facts['world_size'], 'rank')}")
    resumed = [str(row["resumed_from_step"]) for row in starts if row["resumed_from_step"] is not None]
    if resumed:
        parts.append(f"resumed from step {', '.join(resumed)}")
    return " · ".join(parts)


def _interrupted(rows: Sequence[Row]) -> Html | None:
    """Say that the last process of the run was stopped by a signal; nothing if a later one went on."""
    told = {"interrupted_by", "loss", "evaluation", "resumed_from_step"}
    last: Row = next((row for row in reversed(rows) if told & row.keys()), {})
    if "interrupted_by" not in last:
        return None
    total = f" of {last['total_steps']:,}" if last.get("total_steps") else ""
    what = f"Interrupted by {last['interrupted_by']} after step {last['step']:,}{total}; --resume auto continues it."
    return tag("section", tag("p", tag("b", what)))


def _figures(steps: Sequence[Row], scores: Sequence[Row]) -> Html:
    last, score = steps[-1] if steps else {}, scores[-1] if scores else {}
    cells = [
        figure(_number(last.get("img_s"), WHOLE), "images per second (training steps alone, all ranks)"),
        figure(_number(_highest_rate(steps), THREE_DIGITS), "highest learning rate used"),
        figure(_number(last.get("wait_share"), PERCENT_1), "of the time waiting for input"),
        figure(_number(last.get("loss"), "{:.3f}".format), f"loss at step {last.get('step', 0):,}"),
        figure(_number(score.get("top1"), PERCENT_2), "top-1 accuracy"),
        figure(_number(score.get("top5"), PERCENT_2), "top-5 accuracy"),
    ]
    return tag("section", tag("div", *cells, class_="money"), id="verdict")


def _highest_rate(steps: Sequence[Row]) -> float | None:
    """Return the highest learning rate of all steps, those between two lines included (older runs recorded no such)."""
    rates = [row.get("highest_learning_rate", row.get("learning_rate")) for row in steps]
    return max((rate for rate in rates if rate is not None), default=None)


def _diagnosis(diagnosis: Diagnosis | None, folder: Path) -> Html | None:
    """Return the verdict on the last process of the run, with a link to its report; None without a diagnosis."""
    if diagnosis is None:
        return None
    steps = f" Measured over {count_text(diagnosis.steps, 'step')} of the last process."
    link = None
    if diagnosis.report is not None:
        link = tag(
            "p",
            tag(
                "a",
                "full diagnosis: step timeline, shares and evidence",
                href=os.path.relpath(diagnosis.report, folder.absolute()),
            ),
        )
    return tag(
        "section",
        tag("h2", "bottleneck"),
        tag("p", no_break(f"{diagnosis.verdict}: {diagnosis.summary.rstrip('.')}.{steps}")),
        link,
    )


def _saved_options(folder: Path) -> dict[str, object]:
    """Return the options that the run saved in config.toml; empty where the file is missing or damaged."""
    try:
        return parse_toml(read_regular(folder / "config.toml", limit=MOST_BYTES).decode())
    except (OSError, ValueError):
        return {}


def _configuration(options: Mapping[str, object] | None) -> Html | None:
    """Return a section with all options of the run, defaults dimmed; None without options."""
    if not options:
        return None
    pairs = [(name.replace("_", " "), _option(value), DEFAULTS.get(name) == value) for name, value in options.items()]
    note = tag("p", "The same options in a file: config.toml beside this page (headrace train --config FILE)", class_="note")
    return tag("section", tag("h2", "configuration"), _pairs(pairs), note, id="configuration")


def _option(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return number_text(value, digits=4) if isinstance(value, float) else str(value)


def _environment(starts: Sequence[Row]) -> Html | None:
    facts = starts[-1].get("environment") if starts else None
    if not facts:
        return None
    return tag("section", tag("h2", "environment"), _pairs([(name, str(value), False) for name, value in facts.items()]))


def _pairs(pairs: Sequence[tuple[str, str, bool]]) -> Html:
    rows = [tag("div", tag("dt", name), tag("dd", value), class_="default" if usual else None) for name, value, usual in pairs]
    return tag("dl", *rows, class_="pairs")


def _number(value: object, form: Form) -> str | None:
    return form(value) if isinstance(value, int | float) else None


def _curves(steps: Sequence[Row], scores: Sequence[Row]) -> list[Html]:
    validated = [{"step": row["step"], "loss": row["loss"]} for row in scores]
    sizes = {row.get("image_size") for row in steps}
    numbers = [row["step"] for row in (*steps, *scores)]
    curve = partial(_curve, between=(min(numbers, default=0), max(numbers, default=0)))
    wanted = [
        curve("loss", steps, "loss", THREE_DIGITS, unit="(cross entropy)", second=("in validation", validated)),
        curve("top-1 accuracy", scores, "top1", PERCENT_1, unit="of images"),
        curve("images per second", steps, "img_s", WHOLE, unit="img/s", from_zero=True),
        curve("share of time waiting for input", steps, "wait_share", PERCENT_1, unit="of the time", from_zero=True),
        curve("learning rate", steps, "learning_rate", THREE_DIGITS, unit="per update", from_zero=True,
              high=_highest_rate(steps)),
        curve("pixels of training images", steps, "image_size", WHOLE, unit="pixels", from_zero=True)
        if len(sizes) > 1
        else None,
    ]  # fmt: skip
    return [curve for curve in wanted if curve is not None]


def _curve(
    title: str,
    rows: Sequence[Row],
    field: str,
    form: Form,
    *,
    between: tuple[int, int],
    unit: str = "",
    from_zero: bool = False,
    high: float | None = None,
    second: tuple[str, Sequence[Row]] | None = None,
) -> Html | None:
    """Return the curve of `field` over the steps `between`, which all curves share; None for fewer than two values.

    `high`: upper end of the axis (default: the largest value). `second`: name and rows of a dashed line. Where that line
    begins far above the first, it is cut off, so that the first stays readable.
    """
    points = _points(rows, field)
    if len(points) < 2:
        return None
    others = _points(second[1], field) if second else []
    others = others if len(others) > 1 else []
    values = [value for _, value in points]
    low = 0.0 if from_zero else min(values + [value for _, value in others])
    high = max(values + [value for _, value in others[-1:]]) if high is None else high
    beyond = max((value for _, value in others), default=high)
    noisy = second is not None and len(points) > SMOOTHED_FROM
    drawn = [("line raw", points), ("line", _smoothed(points))] if noisy else [("line", points)]
    drawn += [("line second", others)] if others else []
    x, y = scale(*between, 0, 100), scale(low, high, 100, 0)
    (first, begin), (last, end) = points[0], points[-1]
    description = f"{title}: {_number(begin, form)} at step {first}, {_number(end, form)} at step {last}"
    lines = [line([(x(step), y(value)) for step, value in found], class_=kind) for kind, found in drawn]
    drawing = stretched(*lines, label=description)
    cut = f", dashed from {_number(beyond, form)}" if beyond > high else ""
    words = f"{_number(low, form)} to {_number(high, form)} {unit}".strip()
    labels = ends(f"{words}{cut}", f"steps {between[0]:,} to {between[1]:,}")
    heading = [title, tag("span", _number(end, form), class_="now")]
    if second and others:
        heading[1:1] = [tag("span", f", dashed {second[0]} {_number(others[-1][1], form)}", class_="key second")]
    return tag("div", tag("h2", *heading), drawing, labels, class_="curve")


def _points(rows: Sequence[Row], field: str) -> list[tuple[int, float]]:
    """Return (step, value) of at most MAX_POINTS + 1 rows that have a value, the last one included."""
    points = [(row["step"], row[field]) for row in rows if isinstance(row.get(field), int | float)]
    stride = math.ceil(len(points) / MAX_POINTS) or 1
    return points[::stride] + ([points[-1]] if (len(points) - 1) % stride else [])


def _smoothed(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the moving mean over a twentieth of the points."""
    half_width = max(1, len(points) // 40)
    parts = [points[max(0, index - half_width) : index + half_width + 1] for index in range(len(points))]
    return [(step, sum(value for _, value in part) / len(part)) for (step, _), part in zip(points, parts, strict=True)]
