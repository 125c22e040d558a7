"""Record keys: a file's name made safe for WebDataset readers, and back (docs/format.md, "Keys").

WebDataset readers take everything before a name's first dot as the key, so the dots inside are escaped; two files that
differ only in their extension would share a key, so their extension becomes part of it.
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
    """`text` with dots, percent signs, equal signs, backslashes, control characters and non-UTF-8 bytes as `%XX`."""
    return _UNSAFE.sub(lambda match: f"%{_raw(match[0])[0]:02X}", text)


def unescape(text: str) -> str:
    """What `escape` was given. Raises FormatError when `text` holds a percent sign that starts no escape."""
    raw = _raw(text)
    if raw.count(b"%") != len(_ESCAPED.findall(raw)):
        raise FormatError(f"key {text!r} holds a percent sign without two upper-case hex digits after it")
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), raw).decode("utf-8", "surrogateescape")


def keys_of(names: Sequence[str]) -> list[str]:
    """A unique key for each of the relative file names: `n01/a.b.JPEG` -> `n01/a%2Eb`.

    Names that differ only in what follows the last dot get it back behind an equal sign: `n01/a.jpg`, `n01/a.png` ->
    `n01/a=jpg`, `n01/a=png`; a name without extension ends in one: `n01/a` -> `n01/a=`. Equal names stay equal: the
    caller decides what duplicates mean.
    """
    parts = [_split(name) for name in names]
    different = set(zip(names, (stem for stem, _ in parts), strict=True))
    shared = {stem for stem, count in Counter(stem for _, stem in different).items() if count > 1}
    return [f"{escape(stem)}={escape(end)}" if stem in shared or not end else escape(stem) for stem, end in parts]


def name_of(key: str, extension: str) -> str:
    """The file name a key was made from; `extension` is used where the key does not hold its own.

    The case of an extension that is not in the key is lost (`.JPEG` and `.jpg` both pack as `.jpg`).
    """
    stem, mark, end = key.rpartition("=")
    if not mark:
        return f"{unescape(key)}.{extension}"
    return f"{unescape(stem)}.{unescape(end)}" if end else unescape(stem)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _split(name: str) -> tuple[str, str]:
    """The name before and after the last dot of its last part; a leading dot starts no extension."""
    stem, end = os.path.splitext(name)  # noqa: PTH122 (the names are not paths of this machine)
    return stem, end[1:]
