"""The table of GPU counters. "busy" means only that some kernel ran; the other counters tell how much of the GPU it used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headrace.diagnosis.measure.stats import mean, median
from headrace.report.drawing.markup import Html, join, tag
from headrace.report.pages.tables import table
from headrace.report.text import numbers
from headrace.session.machine import GpuSample
from headrace.session.model import Session

__all__ = ["MISLEADING", "panel"]

MISLEADING = (0.85, 0.5)
"""Warn that "busy" misleads when it is at least the first share while at most the second share of the units is active."""

Read = Callable[[GpuSample], float | None]

COLUMNS: tuple[tuple[str, Read, Callable[[float], str]], ...] = (
    ("busy", lambda sample: sample.busy, numbers.percent),
    ("units active", lambda sample: sample.sm_active, numbers.percent),
    ("tensor cores", lambda sample: sample.tensor_active, numbers.percent),
    ("memory bus", lambda sample: sample.dram_active, numbers.percent),
    ("memory used", lambda sample: sample.memory_used_bytes, numbers.byte_size),
    ("SM clock", lambda sample: sample.sm_clock_mhz, lambda value: f"{value:,.0f} MHz"),
    ("temperature", lambda sample: sample.temperature_c, lambda value: f"{value:.0f} °C"),
    ("power", lambda sample: sample.power_w, lambda value: f"{value:.0f} W"),
    ("PCIe in", lambda sample: sample.pcie_receive_bytes_s, lambda value: f"{numbers.byte_size(value)}/s"),
)


def panel(session: Session) -> Html | None:
    """Return the means of each GPU over the run, the reasons for lowered clocks, and a warning where "busy" misleads.

    None when no GPU was sampled.
    """
    by_index: dict[int, list[GpuSample]] = {}
    for sample in session.samples:
        for one in sample.gpus:
            by_index.setdefault(one.index, []).append(one)
    if not by_index:
        return None
    names = {gpu.index: gpu.name for gpu in session.host.gpus}
    rows = [_row(f"GPU {index} {names.get(index, '')}".strip(), seen) for index, seen in sorted(by_index.items())]
    warnings = [
        tag("p", sentence, class_="note") for index, seen in sorted(by_index.items()) if (sentence := _misleads(index, seen))
    ]
    headers = ("", *(name for name, _, _ in COLUMNS), "clock lowered by")
    return join(table("Means over the run (memory: median)", headers, rows), *warnings)


def _row(name: str, seen: list[GpuSample]) -> tuple[str, ...]:
    cells = []
    for column, read, as_text in COLUMNS:
        known = [value for value in map(read, seen) if value is not None]
        value = median(known) if column == "memory used" else mean(known)
        cells.append(tag("span", numbers.NOT_MEASURED, class_="absent") if value is None else as_text(value))
    return (name, *cells, _throttle(seen))


def _throttle(seen: list[GpuSample]) -> str:
    known = [one.throttle for one in seen if one.throttle is not None]
    if not known:
        return tag("span", numbers.NOT_MEASURED, class_="absent")
    reasons = Counter(reason for reasons in known for reason in reasons)
    return (
        ", ".join(
            f"{reason.replace('_', ' ')} {numbers.percent(count / len(known))}" for reason, count in reasons.most_common()
        )
        or "–"
    )


def _misleads(index: int, seen: list[GpuSample]) -> str | None:
    busy = mean([one.busy for one in seen if one.busy is not None])
    active = mean([one.sm_active for one in seen if one.sm_active is not None])
    if busy is None or active is None or busy < MISLEADING[0] or active > MISLEADING[1]:
        return None
    return (
        f"GPU {index} counts as busy {numbers.percent(busy)} of the time because some kernel ran, "
        f"but on average only {numbers.percent(active)} of its units worked."
    )
