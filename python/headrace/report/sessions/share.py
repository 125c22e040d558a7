"""A session and its diagnosis for strangers: without host name, folders and addresses.

Paths keep their last part (`/home/me/data/train` becomes `…/train`), so that a reader still sees what is what.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from headrace.diagnosis.result.model import Diagnosis
from headrace.session.model import Session
from headrace.system.text.redaction import redact_text

__all__ = ["without_places"]

T = TypeVar("T")

# No scheme is longer; without a bound, each word of a long text would be read to its end.
_ADDRESS = re.compile(r"\b(?P<scheme>[a-z][a-z0-9+.-]{0,60})://(?P<rest>[^\s\"'<>,;)]*)")
_PATH = re.compile(
    r"(?<![\w…:/.<-])(?:~|\.{1,2})?(?:/[\w.@+~%-]+)+/(?P<name>[\w.@+~%=-]+)|(?<![\w…:/.<-])/(?P<only>[\w.@+~%-]+)"
)
_IP = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")


def without_places(session: Session, diagnosis: Diagnosis) -> tuple[Session, Diagnosis]:
    """Return session and diagnosis without host name, user's folders, bucket names, IP addresses and image paths.

    Secrets were masked when the session was written; older sessions are masked here too.
    """
    words = {name for name in (session.host.hostname, diagnosis.environment.get("host"), session.cwd, str(Path.home())) if name}
    names = sorted((str(word) for word in words), key=len, reverse=True)
    session = replace(
        _strip(session, names),
        cwd="",
        host=replace(_strip(session.host, names), hostname=""),
        loaders=tuple(replace(_strip(loader, names), sample_paths=()) for loader in session.loaders),
    )
    diagnosis = replace(_strip(diagnosis, names), session=None, report=None)
    return session, replace(
        diagnosis, environment={name: value for name, value in diagnosis.environment.items() if name not in ("host", "cwd")}
    )


def _strip(value: T, names: list[str]) -> T:
    """Return the value with every string in it stripped, through dataclasses, mappings, tuples and lists."""
    result: Any = value
    if isinstance(value, str):
        result = _strip_text(value, names)
    elif is_dataclass(value) and not isinstance(value, type):
        result = replace(value, **{field.name: _strip(getattr(value, field.name), names) for field in fields(value)})
    elif isinstance(value, Mapping):
        result = {key: _strip(item, names) for key, item in value.items()}
    elif isinstance(value, tuple | list):
        result = type(value)(_strip(item, names) for item in value)
    return result  # type: ignore[no-any-return]


def _strip_text(text: str, names: list[str]) -> str:
    text = redact_text(text)
    text = _ADDRESS.sub(_without_host, text)
    text = _PATH.sub(lambda found: f"…/{found['name'] or found['only']}", text)
    for name in names:
        text = text.replace(name, "…")
    return _IP.sub("…", text)


def _without_host(address: re.Match[str]) -> str:
    name = address["rest"].removesuffix("/").rpartition("/")[2]
    return f"{address['scheme']}://…/{name}".rstrip("/")
