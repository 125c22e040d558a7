"""Texts for sizes in bytes, for counts, numbers and shares."""

from __future__ import annotations

import re

__all__ = ["count_text", "number_text", "parse_size", "percent_text", "size_text"]

_FACTORS = {"": 1, "K": 10**3, "KI": 2**10, "M": 10**6, "MI": 2**20, "G": 10**9, "GI": 2**30, "T": 10**12, "TI": 2**40}


def parse_size(text: str) -> int:
    """Return the number of bytes for a text such as `128MiB`, `1.5 GB` or `4096`. Raise `ValueError` for other texts."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", text.strip().upper())
    if not match:
        raise ValueError(f"{text!r} is not a size; for example 128MiB or 1GB")
    return int(float(match[1]) * _FACTORS[match[2] or ""])


def size_text(size: float) -> str:
    """Return a number of bytes with a binary unit: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def count_text(number: int, noun: str) -> str:
    """Return a count that agrees with its noun: `1 shard`, `2,000 shards`, `2 batches`, `2 classes`, `2 epochs`."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "ss")) and not noun.endswith("epoch") else "s"
    return f"{number:,} {noun}{ending}"


def number_text(value: float, *, digits: int = 3) -> str:
    """Return a number with `digits` significant digits, large ones as whole numbers: `11,250`, never `1.125e+04`."""
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"


def percent_text(share: float, *, digits: int = 0) -> str:
    """Return a finite share (0 to 1) in per cent: `28 %`. A share that would round to 0 is `<1 %`, and 0 is `0 %`."""
    least = 10.0**-digits
    return f"<{least:g} %" if 0 < 100 * share < least / 2 else f"{100 * share:.{digits}f} %"
