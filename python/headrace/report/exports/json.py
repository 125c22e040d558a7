"""The diagnosis as one JSON document with a published schema (`docs/reference/diagnosis.schema.json`)."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import SHARES, Diagnosis

__all__ = ["FORMAT_VERSION", "PANELS", "document", "schema"]

FORMAT_VERSION = 2
"""Version of the document: raised when a field changes its meaning or is removed, not when one is added."""

PANELS = ("heat_map", "timeline", "flame_charts")
"""Fields that hold long series; `document` leaves them out by default."""

SCHEMA_ID = f"headrace-diagnosis-{FORMAT_VERSION}"


def document(diagnosis: Diagnosis, *, panels: bool = False, report: str | None = None) -> dict[str, Any]:
    """Return the diagnosis as the JSON document of `headrace diagnose --json` and `headrace report --json`.

    `panels`: include the long series (default: no). `report`: path of the page, which replaces the one in `diagnosis`.
    """
    values = diagnosis.to_json() | ({"report": report} if report is not None else {})
    return {"format_version": FORMAT_VERSION} | {name: value for name, value in values.items() if panels or name not in PANELS}


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of `document`, made from the dataclasses."""
    definitions: dict[str, Any] = {}
    root = _object(Diagnosis, definitions)
    root["properties"] = {"format_version": {"const": FORMAT_VERSION}, **root["properties"]}
    root["properties"]["verdict"] = {"enum": list(KINDS)}
    shares = {key: {"type": "number", "minimum": 0, "maximum": 1, "description": label} for key, label in SHARES.items()}
    root["properties"]["share_of_step"] = {
        "type": "object",
        "properties": shares,
        "description": "sums to 1; empty: not measured",
    }
    root["required"] = ["format_version", *root["required"]]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, "title": "headrace diagnosis"}
    return {**head, **root, "$defs": dict(sorted(definitions.items()))}


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of one dataclass. Fields with a default may be absent; further fields are allowed."""
    hints = typing.get_type_hints(kind)
    own = dataclasses.fields(kind)
    absent = (dataclasses.MISSING, dataclasses.MISSING)
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": {item.name: _type(hints[item.name], definitions) for item in own},
        "required": [item.name for item in own if (item.default, item.default_factory) == absent],
    }


PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if one is types.NoneType else _type(one, definitions) for one in arguments]}
    if dataclasses.is_dataclass(kind):
        name = typing.cast(type, kind).__name__
        if name not in definitions:
            definitions[name] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin is tuple and arguments[-1:] == (Ellipsis,):
        return {"type": "array", "items": _type(arguments[0], definitions)}
    if origin is tuple:
        return {"type": "array", "prefixItems": [_type(one, definitions) for one in arguments], "minItems": len(arguments),
                "maxItems": len(arguments)}  # fmt: skip
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {"type": "object", "additionalProperties": _type(arguments[1], definitions)}
    raise TypeError(f"no schema for {kind}")


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
