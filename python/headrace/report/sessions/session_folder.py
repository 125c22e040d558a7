"""A session folder: its session and its diagnosis, read and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import SessionError
from headrace.session.kineto import is_trace, read_trace
from headrace.session.model import Session
from headrace.session.typed_json import converter
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.regular_file import read_regular
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.json import parse_json

__all__ = ["DIAGNOSIS_FILE", "diagnosis_from_json", "foreign_values", "read_session_folder", "write_diagnosis"]

DIAGNOSIS_FILE = "diagnosis.json"


def read_session_folder(folder: str | Path) -> tuple[Session, Diagnosis]:
    """Return the session in a folder and its diagnosis: the saved one, with gains measured by `--verify`, or a new one.

    `folder` may also be a trace file of PyTorch's profiler. Raises `SessionError` when it holds no session or the diagnosis is
    damaged.
    """
    folder = Path(folder)
    if is_trace(folder):
        session = read_trace(folder)
        return session, replace(_diagnose(session, folder), session=str(folder))
    session = Session.load(folder)
    file = folder / DIAGNOSIS_FILE
    if not file.is_file():
        return session, replace(_diagnose(session, folder), session=str(folder))
    try:
        return session, diagnosis_from_json(parse_json(read_regular(file)))
    except OSError as error:
        raise SessionError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise SessionError(
            f"{file} is not a diagnosis: {error}", hint="delete it to have the session diagnosed anew"
        ) from error


def _diagnose(session: Session, where: Path) -> Diagnosis:
    with foreign_values(where, "diagnosed"):
        return diagnose(session)


@contextmanager
def foreign_values(where: str | Path, done: str) -> Iterator[None]:
    """Context manager around work on a session that may come from anybody: values that contradict each other are an error.

    done: what cannot be done with the session, such as "shown". Raises `SessionError`.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        hint = "it was not written by headrace, or changed since; if it was, please report this"
        raise SessionError(
            f"{where} cannot be {done}: its values contradict each other ({first_line(error)})", hint=hint
        ) from error


def write_diagnosis(diagnosis: Diagnosis, folder: Path) -> None:
    """Write `diagnosis.json` into the session folder. Raises `OSError` if it cannot be written."""
    atomic_write(folder / DIAGNOSIS_FILE, json.dumps(diagnosis.to_json(), indent=1), private=True)


def diagnosis_from_json(document: Mapping[str, Any]) -> Diagnosis:
    """Return the diagnosis in a document that `Diagnosis.to_json` made. Unknown fields are ignored.

    Raises `ValueError` for a missing field, a value of another type, and a verdict that is none of headrace's.
    """
    if isinstance(document, Mapping) and isinstance(notes := document.get("notes"), list):
        # until version 0.1.0 a note was its text
        document = {**document, "notes": [{"kind": "", "text": note} if isinstance(note, str) else note for note in notes]}
    found: Diagnosis = converter(Diagnosis)(document)
    for kind in (found.verdict, *(finding.kind for finding in (*found.findings, *found.configuration))):
        if kind not in KINDS:
            raise ValueError(f"verdict: there is no kind {kind[:60]!r}")
    return found
