"""Text for a terminal or a page: characters that would act on it, or hide what is written, become visible escapes.

Names of files and classes, and answers of servers, may hold an escape sequence that clears the screen, a carriage return
that overwrites a line, or a direction mark that reverses it (Unicode TR 36, "Bidirectional Text Spoofing").

Standard library only: the hooks in the user's process use this module too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["ACTIVE", "printable", "printable_lines", "value_text"]

_ACTIVE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls and DEL, but tab and line feed
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks, embeddings, overrides and isolates
    r"\u2028\u2029"  # line and paragraph separators
    r"\ud800-\udfff"  # bytes that are not UTF-8 (PEP 383)
)
ACTIVE = re.compile(f"[{_ACTIVE}]")
_ACTIVE_OR_NEW_LINE = re.compile(rf"[\n{_ACTIVE}]")
_SHORT = {"\n": "\\n", "\r": "\\r"}


def printable(line: str) -> str:
    r"""Return one line with active characters as Python writes them: `\x1b[2J`, `\r`, `\n`, `\u202e`; not UTF-8: `\xff`."""
    return _ACTIVE_OR_NEW_LINE.sub(_escaped, line)


def printable_lines(text: str) -> str:
    """Return a text of several lines with active characters escaped, as `printable` does; its line feeds stay."""
    return ACTIVE.sub(_escaped, text)


def value_text(value: object) -> str:
    """Return a value of a JSON document as text for an error message: its kind if it is a container, else 60 characters."""
    text = f"a {type(value).__name__}" if isinstance(value, Mapping | list) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if found[0] in _SHORT:
        return _SHORT[found[0]]
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
