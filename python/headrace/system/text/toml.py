"""Parse TOML from strangers: values that cannot be printed are refused here, not by the first message that prints them."""

from __future__ import annotations

import tomllib
from typing import Any

__all__ = ["parse_toml"]

MOST_DOTS = 200
"""Points in one line. A name of many parts (`a.a.a. … = 1`) takes quadratic time and memory: 40 kB of one took 1.6 GB."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the parsed table of a TOML document, after refusing what cannot be printed.

    Raises ValueError if it is none, is nested deeply, has a line of more than `MOST_DOTS` points, or holds a number of
    thousands of digits: written in hexadecimal, it is read, and Python refuses to print it.
    """
    for number, line in enumerate(text.split("\n"), 1):  # as TOML counts lines: a name has no line feed
        if line.count(".") > MOST_DOTS:
            raise ValueError(f"line {number} holds more than {MOST_DOTS} points, and no name of an option has so many parts")
    try:
        table = tomllib.loads(text)
        repr(table)
    except RecursionError as error:
        raise ValueError("the document is nested too deeply") from error
    return table
