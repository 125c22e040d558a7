"""Parse TOML from strangers: values that cannot be printed are refused here, not by the first message that prints them."""

from __future__ import annotations

import tomllib
from typing import Any

__all__ = ["parse_toml"]


def parse_toml(text: str) -> dict[str, Any]:
    """Return the parsed table of a TOML document, after refusing what cannot be printed.

    Raises ValueError if it is none, is nested deeply, or holds a number of thousands of digits: written in hexadecimal, it is
    read, and Python refuses to print it.
    """
    try:
        table = tomllib.loads(text)
        repr(table)
    except RecursionError as error:
        raise ValueError("the document is nested too deeply") from error
    return table
