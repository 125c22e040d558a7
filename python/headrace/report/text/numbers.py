"""Numbers with their units, as text for people, the same on the terminal and in HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.system.text.sizes import number_text, percent_text

__all__ = [
    "NOT_MEASURED",
    "byte_size",
    "count",
    "gain",
    "hours",
    "image_rate",
    "milliseconds",
    "part_of",
    "percent",
    "rounded_to_whole",
    "seconds",
]

NOT_MEASURED = "not measured"

LEAST_S = 5e-7
"""Print durations below half a microsecond as `<0.001 ms`: the clocks used here do not resolve them."""

BINARY_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def gain(ratio: float) -> str:
    """Return a ratio of rates: `+3 %` for small gains, `×2.4` for large ones, `±0 %` for less than half a per cent."""
    if ratio >= 1.195:
        return f"×{number_text(ratio, digits=2)}"
    return f"{100 * (ratio - 1):+.0f} %" if abs(ratio - 1) >= 0.005 else "±0 %"


def hours(value: float) -> str:
    """Return hours as text, rounded to whole hours: `<1` for less than half an hour, `0` only for 0."""
    return "<1" if 0 < value < 0.5 else f"{value:.0f}"


def count(value: float) -> str:
    """Return a count with thousands separators."""
    return f"{value:,.0f}"


def image_rate(value: float | None) -> str:
    """Return images per second without the unit: three significant digits below 100, a whole number above."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float | None, *, digits: int = 0) -> str:
    """Return a share (0 to 1) in per cent; a share that would round to 0 is `<1 %`, and 0 is `0 %`."""
    if share is None or not math.isfinite(share):
        return NOT_MEASURED
    return percent_text(share, digits=digits)


def milliseconds(value_s: float | None, *, digits: int = 3) -> str:
    """Return a short duration in ms, or in s from 1 s on, with `digits` significant digits (default 3).

    Less than half a microsecond, which no clock here resolves, is `<0.001 ms`; a negative duration has a minus sign.
    """
    if value_s is None or not math.isfinite(value_s):
        return NOT_MEASURED
    if value_s < 0:
        return f"−{milliseconds(-value_s, digits=digits)}"
    if 0 < value_s < LEAST_S:
        return "<0.001 ms"
    if value_s >= 10:
        return seconds(value_s)
    if value_s >= 0.9995:
        return f"{value_s:.{digits}g} s"
    return f"{1000 * value_s:.0f} ms" if value_s >= 0.1 else f"{1000 * value_s:.{digits}g} ms"


def part_of(value_s: float | None, whole_s: float) -> str:
    """Return a part of a duration as text in ms, with as many decimals as the whole has with three digits.

    If the whole is 60 ms (60.0), a part reads `12.3 ms`, and one that would round to 0 reads `<0.1 ms`.
    """
    if value_s is None or not math.isfinite(value_s) or not whole_s > 0 or abs(value_s) >= 0.9995:
        return milliseconds(value_s)
    decimals = max(0, min(3, 2 - math.floor(math.log10(1000 * whole_s))))
    least = 10.0**-decimals
    if 0 < abs(1000 * value_s) < least / 2:
        return f"<{least:g} ms"
    return f"{1000 * value_s:.{decimals}f} ms".replace("-", "−")


def seconds(value_s: float | None) -> str:
    """Return a duration as `0.25 s`, `7.4 s`, `2 min 5 s` or `3 h 20 min`."""
    if value_s is None or not math.isfinite(value_s):
        return NOT_MEASURED
    if value_s < 10:
        return f"{value_s:.2g} s" if value_s < 1 else f"{value_s:.1f} s"
    whole = round(value_s)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def byte_size(value: float | None) -> str:
    """Return a number of bytes in binary units, three significant digits."""
    if value is None:
        return NOT_MEASURED
    for size, unit in BINARY_UNITS:
        if value >= size:
            return f"{value / size:.{3 if value < 999.5 * size else 4}g} {unit}"
    return f"{value:.0f} B"


def rounded_to_whole(shares: Sequence[float], *, total: int = 100) -> list[int]:
    """Return whole numbers in the proportion of `shares` whose sum is exactly `total` (largest remainder method)."""
    whole = math.fsum(shares)
    if whole <= 0:
        return [0] * len(shares)
    exact = [total * share / whole for share in shares]
    floors = [math.floor(value) for value in exact]
    order = sorted(range(len(shares)), key=lambda index: floors[index] - exact[index])
    for index in order[: total - sum(floors)]:
        floors[index] += 1
    return floors
