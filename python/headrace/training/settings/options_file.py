"""Options of a training run as a TOML file: read for `--config`, written as config.toml into the run's folder."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.regular_file import read_regular
from headrace.system.text.redaction import without_url_secrets
from headrace.system.text.toml import parse_toml
from headrace.system.text.utf8 import name_from_utf8, utf8_text
from headrace.training.settings.options import Options

__all__ = ["MOST_BYTES", "flatten", "read", "shown", "toml_text", "write"]

_HEAD = "# headrace train --config THIS_FILE uses the same options; the command line overrides them\n"
_NOT_UTF8 = "# bytes of names that are not UTF-8 are written as %XX, a percent sign before such digits as %25\n"
MOST_BYTES = 1 << 20  # largest file of options that is read; usual ones have about 3 kB
_NOT_SAVED = ("resume",)  # options left out of config.toml: they belong to one process, not to the run


def read(path: Path, known: Sequence[str]) -> dict[str, Any]:
    """Read the options in `path`, by names with underscores. Raise UsageError if it is not TOML or has an unknown option."""
    try:
        text = read_regular(path, limit=MOST_BYTES).decode()
        table = parse_toml(text)
    except OSError as error:
        raise UsageError(f"cannot read --config {path}: {error.strerror or error}") from error
    except ValueError as error:
        hint = 'lines like: epochs = 16, model = "resnet50"'
        raise UsageError(f"--config {path} is not TOML: {error}", hint=hint) from error
    found = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "the options of `headrace train`, without their dashes in front"
            raise UsageError(f"--config {path}: there is no option {key!r}", hint=hint)
        if isinstance(value, dict):
            raise UsageError(f"--config {path}: {key} is a table", hint="options stand at the top, one a line")
        if name in found:
            raise UsageError(f"--config {path}: {name} is given twice, with dashes and with underscores")
        found[name] = _restored(value) if _NOT_UTF8 in text else value
    return found


def flatten(options: Options) -> dict[str, Any]:
    """Return all options, optimization included, as one flat table by name; options that are None are absent."""
    values = asdict(options)
    values |= values.pop("optimization")
    return {name: value for name, value in values.items() if value is not None and name not in _NOT_SAVED}


def shown(options: Options) -> dict[str, Any]:
    """Return the same table as `flatten` without the secrets in URLs, for files, pages and logs that others may read."""
    return {name: without_url_secrets(value) if isinstance(value, str) else value for name, value in flatten(options).items()}


def toml_text(values: Mapping[str, Any]) -> str:
    """Format `values` as TOML."""
    return "".join(f"{name} = {_value(value)}\n" for name, value in values.items())


def write(options: Options, path: Path, *, secrets: bool = False) -> None:
    """Write the options to `path`. Raise UsageError if the file cannot be written.

    secrets: also write passwords in URLs, which otherwise become `***`, as in a file for a process of one's own.
    """
    values = flatten(options) if secrets else shown(options)
    try:
        atomic_write(path, _HEAD + _utf8_only(toml_text(values)))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="choose another --out") from error


def _utf8_only(text: str) -> str:
    """Return TOML as valid UTF-8: as it is, or with a line that tells `read` to restore the bytes of names."""
    clean = utf8_text(text)
    return text if clean == text else _NOT_UTF8 + clean


def _restored(value: object) -> object:
    if isinstance(value, list):
        return [_restored(one) for one in value]
    return name_from_utf8(value) if isinstance(value, str) else value


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
