"""A session folder: its session and its diagnosis, read and written."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.model import Diagnosis
from headrace.errors import SessionError
from headrace.session.kineto import is_trace, read_trace
from headrace.session.model import Session
from headrace.system.atomic_write import atomic_write

__all__ = ["DIAGNOSIS_FILE", "diagnosis_from_json", "read_session_folder", "write_diagnosis"]

DIAGNOSIS_FILE = "diagnosis.json"


def read_session_folder(folder: str | Path) -> tuple[Session, Diagnosis]:
    """Return the session and its saved diagnosis, which holds measured gains of fixes; without one, diagnose now.

    `folder` may also be a trace file of PyTorch's profiler. Raises `SessionError` when it holds no session or the diagnosis is
    damaged.
    """
    folder = Path(folder)
    if is_trace(folder):
        session = read_trace(folder)
        return session, replace(diagnose(session), session=str(folder))
    session = Session.load(folder)
    file = folder / DIAGNOSIS_FILE
    if not file.is_file():
        return session, replace(diagnose(session), session=str(folder))
    try:
        return session, diagnosis_from_json(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise SessionError(
            f"{file} is not a diagnosis: {error}", hint="delete it to have the session diagnosed anew"
        ) from error


def write_diagnosis(diagnosis: Diagnosis, folder: Path) -> None:
    """Write `diagnosis.json` into the session folder. Raises `OSError`."""
    atomic_write(folder / DIAGNOSIS_FILE, json.dumps(diagnosis.to_json(), indent=1), private=True)


def diagnosis_from_json(document: Mapping[str, Any]) -> Diagnosis:
    """Return the diagnosis that `Diagnosis.to_json` wrote. Ignore unknown fields. Raises `TypeError` for a missing one."""
    return typing.cast(Diagnosis, _build(Diagnosis, document))


def _build(kind: Any, value: Any) -> Any:
    """Convert `value`, as JSON gives it, to the type `kind`: dataclasses, tuples, unions with None, plain values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _build(next(one for one in arguments if one is not types.NoneType), value)
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"expected an object, found {type(value).__name__}")
        hints = typing.get_type_hints(kind)
        known = {item.name: value[item.name] for item in fields(kind) if item.name in value}
        return typing.cast(Any, kind)(**{name: _build(hints[name], item) for name, item in known.items()})
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"expected a list, found {type(value).__name__}")
        return tuple(_build(arguments[0], item) for item in value)
    return value
