"""`headrace.json`, the manifest of a packed dataset; a folder with a manifest is complete.

docs/reference/format.md, "Manifest", defines it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import FormatError
from headrace.system.files.regular_file import read_regular
from headrace.system.text.install_hints import UPDATE_HINT
from headrace.system.text.json import parse_json
from headrace.system.text.size_limits import DOCUMENT_BYTES
from headrace.system.text.utf8 import utf8_text

__all__ = ["ERRORS", "FORMAT", "INDEX", "MANIFEST", "VERSION", "FileFacts", "Manifest", "ShardFacts", "read_manifest"]

MANIFEST = "headrace.json"
INDEX = "index.safetensors"
ERRORS = "errors.jsonl"  # only where records were rejected
FORMAT = "headrace"
VERSION = 1
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # a file beside the manifest, never a path out of its folder


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file beside the manifest: its size in bytes and the SHA-256 of its bytes, 64 hex digits."""

    file: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """One shard file; its records are consecutive rows of the index."""

    file: str
    size: int
    sha256: str
    records: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `headrace.json`."""

    records: int
    image_bytes: int  # bytes of all images, without tar headers and padding
    rejected: int  # source records that are not in the shards; `errors.jsonl` lists them
    classes: tuple[str, ...]
    per_class: tuple[int, ...]  # records of each class
    shards: tuple[ShardFacts, ...]
    index: FileFacts
    options: Mapping[str, Any]  # the options that affect bytes
    source_kind: str
    source_fingerprint: str
    unmarked: int = 0  # JPEGs that keep their bytes because restart markers cannot be written

    def serialized(self) -> bytes:
        """Return the file's bytes: JSON with fixed order and spacing, UTF-8, one line feed at the end."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "counts": {
                "records": self.records,
                "image_bytes": self.image_bytes,
                "rejected": self.rejected,
                "per_class": list(self.per_class),
            }
            | ({"unmarked": self.unmarked} if self.unmarked else {}),
            "classes": list(self.classes),
            "index": _facts(self.index),
            "shards": [_facts(shard) | {"records": shard.records} for shard in self.shards],
            "options": dict(self.options),
            "source": {"kind": self.source_kind, "fingerprint": self.source_fingerprint},
        }
        return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def read_manifest(folder: Path) -> Manifest:
    """Read and check `folder/headrace.json`. Raise FormatError if it is missing, malformed or of another version."""
    path = folder / MANIFEST
    try:
        document = parse_json(read_regular(path, limit=DOCUMENT_BYTES))
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{path} is not valid JSON: {error}", hint="restore it from a copy, or pack again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f'{path} is not a manifest of a packed dataset: "format" is not {FORMAT!r}')
    if document.get("version") != VERSION:
        raise FormatError(
            f"{path} has format version {document.get('version')!r}; this headrace reads version {VERSION}",
            hint=UPDATE_HINT,
        )
    try:
        manifest = _parsed(document)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: {_words(error)}", hint="restore it from a copy, or pack again") from error
    return manifest


def _parsed(document: Mapping[str, Any]) -> Manifest:
    counts, source = document["counts"], document["source"]
    manifest = Manifest(
        records=_count(counts, "records"),
        image_bytes=_count(counts, "image_bytes"),
        rejected=_count(counts, "rejected"),
        classes=tuple(map(utf8_text, _texts(document["classes"]))),  # early packs hold lone surrogates
        per_class=tuple(_whole(count, "per_class") for count in counts["per_class"]),
        shards=tuple(
            ShardFacts(_file(entry), _count(entry, "size"), _digest(entry), _count(entry, "records"))
            for entry in document["shards"]
        ),
        index=FileFacts(_file(document["index"]), _count(document["index"], "size"), _digest(document["index"])),
        options=dict(document["options"]),
        source_kind=str(source["kind"]),
        source_fingerprint=str(source["fingerprint"]),
        unmarked=_whole(counts.get("unmarked", 0), "unmarked"),
    )
    if sum(shard.records for shard in manifest.shards) != manifest.records:
        raise ValueError("the shards' records do not add up to counts.records")
    names = [MANIFEST, ERRORS, manifest.index.file, *(shard.file for shard in manifest.shards)]
    if len({*names}) != len(names):
        raise ValueError("two of its files have one name")
    if len(manifest.per_class) != len(manifest.classes):
        raise ValueError("counts.per_class and classes differ in length")
    return manifest


def _facts(facts: FileFacts | ShardFacts) -> dict[str, Any]:
    return {"file": facts.file, "size": facts.size, "sha256": facts.sha256}


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value!r}, a number from 0 is expected")
    return value


def _count(entry: Mapping[str, Any], name: str) -> int:
    return _whole(entry[name], name)


def _file(entry: Mapping[str, Any]) -> str:
    name = entry["file"]
    if not isinstance(name, str) or not _SAFE_NAME.fullmatch(name):
        raise ValueError(f"file name {name!r} is not a plain name in this folder")
    return name


def _digest(entry: Mapping[str, Any]) -> str:
    digest = entry["sha256"]
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"sha256 of {entry.get('file')!r} is not 64 hex digits")
    return digest


def _texts(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("classes is not a list of names")
    return values


def _words(error: Exception) -> str:
    return f"field {error} is missing" if isinstance(error, KeyError) else str(error)
