"""The tables of the report: percentiles, slow steps, loader stages, ranks, terms of the step model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.diagnosis.measure.series import percentiles
from headrace.diagnosis.result.model import Diagnosis, Percentiles, RankRow, StageRow
from headrace.report.drawing.charts import share_strip
from headrace.report.drawing.markup import Html, join, no_break, tag
from headrace.report.text import numbers
from headrace.report.text.slow_steps import SlowStep
from headrace.report.text.thresholds import Threshold
from headrace.session.machine import Sample
from headrace.session.model import Session
from headrace.system.text.sizes import number_text

__all__ = [
    "ABSENT",
    "definition_list",
    "percentile_rows",
    "percentile_table",
    "rank_table",
    "slow_step_table",
    "stage_table",
    "table",
    "term_table",
    "text_in_unit",
    "threshold_table",
]

ABSENT = tag("span", numbers.NOT_MEASURED, class_="absent")


def table(
    caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]], *, numeric_from: int = 1, quiet: bool = False
) -> Html:
    """Return an HTML table whose first column holds the row headings. On a narrow screen the table scrolls in its own box.

    `numeric_from`: first column that is aligned to the right (default 1). `quiet`: show the caption to screen readers only.
    """

    def side(column: int) -> str | None:
        return "n" if column >= numeric_from else None

    head = tag("tr", *(tag("th", name, scope="col", class_=side(at)) for at, name in enumerate(headers)))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", _whole(cell), class_=side(at)) for at, cell in enumerate(row[1:], 1)),
        )
        for row in rows
    ]
    title = tag("caption", caption, class_="screen-reader-only" if quiet else None)
    inner = tag("table", title, tag("thead", head), tag("tbody", *body))
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _whole(cell: str) -> str:
    """Return the text of a cell with numbers that stay on one line with their units."""
    return cell if isinstance(cell, Html) else no_break(cell)


def percentile_rows(diagnosis: Diagnosis, session: Session | None) -> tuple[Percentiles, ...]:
    """Return the diagnosis's percentiles, then those of machine counters in the session that the diagnosis lacks."""
    rows = list(diagnosis.percentiles)
    known = {row.name.lower() for row in rows}
    if "memory" in known:
        known.add("memory used")
    return (*rows, *(row for row in _machine_rows(diagnosis, session) if row.name.lower() not in known))


def _machine_rows(diagnosis: Diagnosis, session: Session | None) -> Iterable[Percentiles]:
    found: list[Percentiles | None] = []
    heat_map = diagnosis.heat_map
    if heat_map is not None:
        columns = [[value for value in column if value is not None] for column in zip(*heat_map.cores, strict=True)]
        found.append(percentiles("CPU", "share", [math.fsum(column) / len(column) for column in columns if column]))
        for number, row in enumerate(heat_map.gpus):
            name = "GPU" if len(heat_map.gpus) == 1 else f"GPU {number}"
            found.append(percentiles(name, "share", [value for value in row if value is not None]))
    if session is not None:
        for name, unit, read in SERIES:
            values = [value for value in map(read, session.samples) if value is not None]
            found.append(percentiles(name, unit, values))
    return (row for row in found if row is not None)


Read = Callable[[Sample], float | None]

SERIES: tuple[tuple[str, str, Read], ...] = (
    ("CPU of this job", "cores", lambda sample: sample.own_cores),
    ("CPU of other programs", "cores", lambda sample: sample.foreign_cores),
    ("some task waits for a core (PSI)", "share", lambda sample: sample.pressure_cpu),
    ("some task waits for I/O (PSI)", "share", lambda sample: sample.pressure_io),
    ("some task waits for memory (PSI)", "share", lambda sample: sample.pressure_memory),
    ("stopped by the CPU quota", "share", lambda sample: sample.throttled_share),
    ("disk reads", "bytes/s", lambda sample: sample.disk_read_bytes_s),
    ("disk busy", "share", lambda sample: sample.disk_busy),
    ("network in", "bytes/s", lambda sample: sample.network_receive_bytes_s),
    ("memory used", "bytes", lambda sample: sample.memory_used_bytes),
    ("memory of this job", "bytes", lambda sample: sample.own_memory_bytes),
    ("/dev/shm free", "bytes", lambda sample: sample.shared_memory_free_bytes),
)


def text_in_unit(value: float | None, unit: str) -> str:
    """Return a value with its unit, or "not measured"."""
    if value is None:
        return numbers.NOT_MEASURED
    if unit == "s":
        return numbers.milliseconds(value)
    if unit == "share":
        return numbers.percent(min(1.0, value))  # a rate over a short interval can be a little above 1
    if unit == "%":
        return f"{value:.0f} %"
    if unit.startswith("bytes"):
        return numbers.byte_size(value) + unit.removeprefix("bytes")
    text = number_text(value)
    return f"{text} {'core' if (text, unit) == ('1', 'cores') else unit}".rstrip()


POINTS = ("min", "p50", "p90", "p95", "p99", "max")


def percentile_table(rows: Sequence[Percentiles]) -> Html:
    """Return an HTML table with a row per series: minimum, percentiles, maximum."""
    cells = [
        (row.name, *(text_in_unit(getattr(row, point), row.unit) for point in POINTS), numbers.count(row.count)) for row in rows
    ]
    return table("Percentiles", ("", *POINTS, "count"), cells, quiet=True)


def slow_step_table(steps: Sequence[SlowStep], stride: int) -> Html:
    """Return an HTML table of the slow steps with their causes. stride: steps per entry of the timeline."""
    rows = [
        (f"step {step.number:,}", step.cause, _time(step.step_s), _time(step.wait_s), numbers.seconds(step.start_s))
        for step in steps
    ]
    caption = "Steps longer than twice the median" + (f" (means of {stride} steps)" if stride > 1 else "")
    return table(caption, ("", "cause", "step", "waiting", "start"), rows, numeric_from=2)


def stage_table(rows: Sequence[StageRow]) -> Html:
    """Return an HTML table of each worker's mean time per batch (CPU, run queue, blocked, collate, idle), with a bar."""
    body = [
        (
            row.name, _stage_strip(row), numbers.count(row.batches), numbers.milliseconds(row.wall_s), _time(row.cpu_s),
            _time(row.queue_s), _time(row.blocked_s), _time(row.collate_s), _time(row.idle_s), _bytes(row.bytes_per_batch),
            ABSENT if row.items_per_s is None else numbers.image_rate(row.items_per_s),
        )
        for row in rows
    ]  # fmt: skip
    split = ("wall", "on CPU", "run queue", "blocked", "collate", "idle")
    headers = ("", "one batch", "batches", *split, "read", "img/s")
    return table("Mean time per batch", headers, body, numeric_from=2)


def _stage_strip(row: StageRow) -> Html:
    if row.cpu_s is None or row.queue_s is None or row.blocked_s is None or row.wall_s <= 0:
        return ABSENT
    parts = (("input_cpu", row.cpu_s), ("input_queue", row.queue_s), ("input_storage", row.blocked_s))
    total = max(row.wall_s, math.fsum(value for _, value in parts))
    names = ("on CPU", "run queue", "blocked")
    label = ", ".join(f"{name} {numbers.percent(value / total)}" for name, (_, value) in zip(names, parts, strict=True))
    return share_strip([(key, value / total) for key, value in parts], label=label)


def _time(value_s: float | None) -> str:
    return ABSENT if value_s is None else numbers.milliseconds(value_s)


def _bytes(value: float | None) -> str:
    return ABSENT if value is None else numbers.byte_size(value)


def rank_table(rows: Sequence[RankRow]) -> Html:
    """Return an HTML table with a row per rank: its times, and the part of the step in which it is slower than the others."""
    body = [
        (
            f"rank {row.rank}", numbers.count(row.steps), numbers.milliseconds(row.step_s), numbers.milliseconds(row.wait_s),
            numbers.milliseconds(row.compute_s), _time(row.own_s), _time(row.collective_s),
            tag("b", row.slow_in, class_="warn") if row.slow_in else "–",
        )
        for row in rows
    ]  # fmt: skip
    headers = ("", "steps", "step", "waits for input", "after input", "own work", "waits for other ranks", "slow part")
    return table("Medians per step", headers, body)


TERM_WORDS = {
    "compute": "training process, one step after another",
    "workers": "workers, in parallel",
    "cpu": "CPU work, spread over all usable cores",
    "storage": "reads that storage serves one after another",
}


def term_table(terms_s: Mapping[str, float], step_s: float | None) -> Html:
    """Return an HTML table of the step model's terms (seconds); the largest sets the pace. A term of 0 does not apply."""
    used = {name: value for name, value in terms_s.items() if value > 0}
    greatest = max(used.values(), default=0.0)
    scale = max(greatest, step_s or 0.0)

    def row(name: str, value: float, kind: str, remark: str) -> tuple[str, ...]:
        text = numbers.milliseconds(value)
        return (name, text, share_strip([(kind, value / scale if scale > 0 else 0.0)], label=text), remark)

    rows = [
        row(
            TERM_WORDS.get(name, name.replace("_", " ")),
            value,
            "binding" if value == greatest else "term",
            "sets the pace" if value == greatest else "",
        )
        for name, value in sorted(used.items(), key=lambda item: -item[1])
    ]
    if step_s is not None:
        rows.append(row("measured step, mean", step_s, "measured", ""))
    return table("A step takes as long as the longest of these terms", ("", "per step", "", ""), rows, numeric_from=9)


def threshold_table(rows: Sequence[Threshold]) -> Html:
    """Return an HTML table with a row per threshold of the rules: name, value, what it decides."""
    body = [(row.name, _text(row.value), row.note) for row in rows]
    return table("Thresholds", ("", "value", "what it decides"), body, numeric_from=3, quiet=True)


def definition_list(pairs: Iterable[tuple[str, object]]) -> Html:
    """Return an HTML list of (name, value) pairs; None becomes "not measured"."""
    rows = (join(tag("dt", name), tag("dd", ABSENT if value is None else no_break(_text(value)))) for name, value in pairs)
    return tag("dl", *(tag("div", row, class_="pair") for row in rows))


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_text(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and abs(value) < 10_000:
        return f"{value:,.4g}"
    if isinstance(value, int | float):
        return f"{value:,.0f}"
    return str(value)
