"""Types of number for argparse options. Their errors quote the word that was given and say which numbers are allowed."""

from __future__ import annotations

import argparse
import math

__all__ = ["positive_count", "positive_number"]


def positive_number(text: str) -> float:
    """Return the number that an option holds. Raises `ArgumentTypeError` unless it is finite and above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def positive_count(text: str) -> int:
    """Return the whole number that an option holds, such as `1_281_167` or `1e6`. Raises `ArgumentTypeError` below 1."""
    try:
        value = positive_number(text.replace("_", ""))
    except argparse.ArgumentTypeError:
        value = 0.5
    if value != round(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return round(value)
