"""Names that are not UTF-8, as text that is: each byte that is not UTF-8 becomes `%XX`, upper-case hex.

Python holds such bytes as lone surrogates (PEP 383), which JSON, TOML and UTF-8 files cannot hold. docs/reference/format.md,
"Names that are not UTF-8", defines this form. Record keys have their own, stricter escapes (`datasets.records.packed_keys`).
"""

from __future__ import annotations

import re

__all__ = ["name_from_utf8", "utf8_name", "utf8_text"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"%(?=25|[89A-F][0-9A-F])")
_ESCAPED = re.compile(rb"%(25|[89A-F][0-9A-F])")


def utf8_name(name: str) -> str:
    """Return a file name as valid UTF-8: other bytes become `%XX`, and `%` before such digits `%25` (see `name_from_utf8`).

    >>> utf8_name("caf\udce9")
    'caf%E9'
    """
    if name.isascii() and "%" not in name:  # most names, of which there are millions
        return name
    return _SURROGATE.sub(_bytes_escaped, _ESCAPE.sub("%25", name))


def utf8_text(text: str) -> str:
    """Return a text in which bytes that are not UTF-8 become `%XX`, as in `utf8_name`: for paths, URLs and messages."""
    return utf8_name(text) if _SURROGATE.search(text) else text


def name_from_utf8(name: str) -> str:
    """Return the original file name of a name that `utf8_name` made."""
    if name.isascii() and "%" not in name:
        return name
    raw = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "surrogateescape")


def _bytes_escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"%{code - 0xDC00:02X}"
    return "".join(
        f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")
    )  # from a JSON escape, no byte of a name
