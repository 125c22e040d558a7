"""Record keys: conversion between file names and keys that WebDataset readers accept (docs/reference/format.md, "Keys").

WebDataset readers take everything before a name's first dot as the key, so dots in a key are escaped. Two files that differ
only in their extension would share a key, so the extension becomes part of theirs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace._native import keys_of_names
from headrace.datasets.records.keys import Keys, repeated_values
from headrace.datasets.records.table import Kind
from headrace.errors import FormatError

__all__ = ["escape", "keys_of", "name_of", "packed_keys", "split_name", "unescape", "wrong_key"]

# '.' would end the key, '%' starts an escape, '=' marks an extension that is part of the key.
_UNSAFE = re.compile(r"[.%=\\\x00-\x1f\x7f\udc80-\udcff]")
_NEVER_IN_KEYS = np.zeros(256, dtype=bool)  # by byte
_NEVER_IN_KEYS[[*range(0x20), 0x7F, *b".\\"]] = True
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


def wrong_key(keys: Keys) -> int | None:
    """Return the row of the first key of an index that no packing makes: an empty or absolute one, or with an unescaped byte.

    As a member of a tar archive, `../x` or `/x` is written outside the folder by a program that unpacks carelessly.
    """
    at = 0
    for blob, start in keys.chunks():
        wrong = np.diff(start) == 0
        wrong[~wrong] = blob[start[:-1][~wrong]] == ord("/")
        wrong[np.searchsorted(start, np.flatnonzero(_NEVER_IN_KEYS[blob]), side="right") - 1] = True
        if wrong.any():
            return at + int(wrong.argmax())
        at += len(wrong)
    return None


def packed_keys(kind: Kind, names: Keys) -> Keys:
    """Return the keys that `headrace pack` gives to the records `names` of a dataset, as docs/reference/format.md defines them.

    They come from file names if records are files, else from the container's keys, escaped. Those of packed records stay.
    """
    if kind == "shards":
        return names
    if kind in ("folder", "lst"):
        return keys_of(names if kind == "folder" or _are_relative(names) else Keys.of(map(_relative, names)))
    if kind == "tar":
        return Keys.of(_key_of_member(name).lstrip("/") for name in names)
    return Keys.of(escape(name).lstrip("/") for name in names)


def _key_of_member(name: str) -> str:
    """Return the key of an archive's record. A name with an extension is one of several that share their stem."""
    folder, slash, base = name.rpartition("/")
    stem, end = split_name(base)
    if not end:
        return escape(name)
    return f"{escape(folder + slash + stem)}={escape(base[len(stem) + 1 :])}"


def _are_relative(names: Keys) -> bool:
    """Return whether `_relative` would change none of these names: a changed copy of all takes as much memory again."""
    for blob, start in names.chunks():
        data, slash = blob.tobytes(), blob == ord("/")
        sizes = np.diff(start)
        ends = slash[start[:-1][sizes > 0]].any() or slash[start[1:][sizes > 0] - 1].any()
        if ends or (sizes == 1).any() or any(odd in data for odd in (b"//", b"./", b"/.")):  # one byte: perhaps "."
            return False
    return True


def _relative(name: str) -> str:
    """Make a path of a list relative: a tar member whose name begins with a slash is unsafe to extract."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def split_name(name: str) -> tuple[str, str]:
    """Return key and extension (in lower case) of a member; the last part of its name is split at the first inner dot."""
    folder, slash, base = name.rpartition("/")
    rest = base.lstrip(".")
    stem, _, end = rest.partition(".")
    return folder + slash + base[: len(base) - len(rest)] + stem, end.lower()


def keys_of(names: Sequence[str]) -> Keys:
    """Return a unique key for each of the relative file names: `n01/a.b.JPEG` -> `n01/a%2Eb`.

    Names that differ only in their extension get it after an equal sign: `n01/a.jpg`, `n01/a.png` -> `n01/a=jpg`,
    `n01/a=png`. A name without extension ends in an equal sign: `n01/a` -> `n01/a=`. Equal names give equal keys: the
    caller decides about duplicates.
    """
    texts = names if isinstance(names, Keys) else Keys.of(names)
    shared, at = _shares_stem(texts), 0
    blob, lengths = bytearray(), bytearray()
    for data, start in texts.chunks():
        keys, sizes = keys_of_names(data, start, shared[at : at + len(start) - 1])
        blob += keys
        lengths += sizes
        at += len(start) - 1
    return Keys.of_lengths(blob, lengths)


def _shares_stem(names: Keys) -> npt.NDArray[np.uint8]:
    """Return 1 for each name whose stem is that of another name."""
    shared = np.zeros(len(names), dtype=np.uint8)
    rows = repeated_values(names.hashes(of_stems=True)).tolist()  # few: of these, equal hashes are compared as texts
    found: dict[str, set[str]] = {}
    for row in rows:
        name = names[row]
        found.setdefault(_stem(name), set()).add(name)
    for row in rows:
        shared[row] = len(found[_stem(names[row])]) > 1
    return shared


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


def _stem(name: str) -> str:
    """Return the name before the last dot of its last part; a leading dot starts no extension."""
    return os.path.splitext(name)[0]  # noqa: PTH122 (the names are not paths of this machine)
