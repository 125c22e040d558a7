"""Make foreign names safe in CSV files: a spreadsheet would compute a cell that begins like a formula."""

from __future__ import annotations

import re

__all__ = ["cell_text"]

_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def cell_text(name: str) -> str:
    """Return a name as the text of a CSV cell: with an apostrophe in front if a spreadsheet would take it for a formula.

    >>> cell_text("=1+1"), cell_text("-1"), cell_text("cat")
    ("'=1+1", '-1', 'cat')
    """
    return f"'{name}" if _FORMULA.match(name) and not _NUMBER.fullmatch(name) else name
