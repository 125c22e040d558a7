"""Record keys: conversion between file names and keys that WebDataset readers accept (docs/reference/format.md, "Keys").

WebDataset readers take everything before a name's first dot as the key, so dots in a key are escaped. Two files that differ
only in their extension would share a key, so the extension becomes part of theirs.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence

from headrace.errors import FormatError

__all__ = ["escape", "keys_of", "name_of", "unescape"]

# '.' would end the key, '%' starts an escape, '=' marks an extension that is part of the key.
_UNSAFE = re.compile(r"[.%=\\\x00-\x1f\x7f\udc80-\udcff]")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def escape(text: str) -> str:
    """Return `text` with dots, percent signs, equal signs, backslashes, control characters and non-UTF-8 bytes as `%XX`."""
    return _UNSAFE.sub(lambda match: f"%{_raw(match[0])[0]:02X}", text)


def unescape(text: str) -> str:
    """Undo `escape`. Raise FormatError if `text` holds a percent sign that starts no escape."""
    raw = _raw(text)
    if raw.count(b"%") != len(_ESCAPED.findall(raw)):
        raise FormatError(f"key {text!r} holds a percent sign without two upper-case hex digits after it")
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), raw).decode("utf-8", "surrogateescape")


def keys_of(names: Sequence[str]) -> list[str]:
    """Return a unique key for each of the relative file names: `n01/a.b.JPEG` -> `n01/a%2Eb`.

    Names that differ only in their extension get it after an equal sign: `n01/a.jpg`, `n01/a.png` -> `n01/a=jpg`,
    `n01/a=png`. A name without extension ends in an equal sign: `n01/a` -> `n01/a=`. Equal names give equal keys: the
    caller decides about duplicates.
    """
    parts = [_split(name) for name in names]
    different = set(zip(names, (stem for stem, _ in parts), strict=True))
    shared = {stem for stem, count in Counter(stem for _, stem in different).items() if count > 1}
    return [f"{escape(stem)}={escape(end)}" if stem in shared or not end else escape(stem) for stem, end in parts]


def name_of(key: str, extension: str) -> str:
    """Return the file name that a key was made from. `extension` is used if the key does not contain one.

    The case of an extension that is not in the key is lost (`.JPEG` and `.jpg` both pack as `.jpg`).
    """
    stem, mark, end = key.rpartition("=")
    if not mark:
        return f"{unescape(key)}.{extension}"
    return f"{unescape(stem)}.{unescape(end)}" if end else unescape(stem)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _split(name: str) -> tuple[str, str]:
    """Return stem and extension: the name before and after the last dot of its last part; a leading dot starts no extension."""
    stem, end = os.path.splitext(name)  # noqa: PTH122 (the names are not paths of this machine)
    return stem, end[1:]
