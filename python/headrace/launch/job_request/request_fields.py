"""Check each field of a request against botocore's description of the service: types, lengths, patterns, allowed values.

botocore itself checks types, required fields and minima when it sends a request. Its description also holds maxima, patterns
and lists of values, which only the service would check, minutes later.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from headrace.errors import MissingDependencyError
from headrace.launch.job_request.mistakes import Mistake
from headrace.system.text.install_hints import extra_hint

__all__ = ["field_mistakes"]

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "long": (int,),
    "boolean": (bool,),
    "double": (int, float),
    "float": (int, float),
    "structure": (dict,),
    "map": (dict,),
    "list": (list, tuple),
}
WORDS = {"string": "a string", "integer": "a whole number", "long": "a whole number", "boolean": "true or false",
         "structure": "an object", "map": "an object", "list": "a list"}  # fmt: skip

DEEPEST, MOST_VALUES = 50, 1000
"""Look for secrets in the value of an unknown field up to so many levels and values."""

NOT_TEXT = re.compile(r"[\0\ud800-\udfff]")
"""What neither an environment variable nor a word of a command line can hold; a service's pattern may allow it."""


@functools.cache
def request_shape(operation: str = "CreateTrainingJob") -> Any:
    """Return botocore's description of an operation's request. Raises `MissingDependencyError` without botocore."""
    try:
        session = importlib.import_module("botocore.session").get_session()
    except ImportError:
        raise MissingDependencyError("checking a request needs botocore", hint=extra_hint("aws")) from None
    return session.get_service_model("sagemaker").operation_model(operation).input_shape


def field_mistakes(request: Any) -> Iterator[Mistake]:
    """Yield the mistakes in the fields of a CreateTrainingJob request, each field checked by itself."""
    return _check(request, request_shape(), "")


def _check(value: Any, shape: Any, at: str) -> Iterator[Mistake]:
    kinds: Any = TYPES.get(shape.type_name, (object,))
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds and object not in kinds):
        yield _wrong_type(value, shape, at)
    elif shape.type_name == "structure":
        yield from _structure(value, shape, at)
    elif shape.type_name == "map":
        yield from _bounds(len(value), shape, at, "entries")
        for key, inner in value.items():
            yield from _check(key, shape.key, f"{at}[{key!r}]")
            yield from _check(inner, shape.value, f"{at}[{key!r}]")
    elif shape.type_name == "list":
        yield from _bounds(len(value), shape, at, "entries")
        for place, inner in enumerate(value):
            yield from _check(inner, shape.member, f"{at}[{place}]")
    elif shape.type_name == "string":
        yield from _string(value, shape, at)
    elif shape.type_name in ("integer", "long", "double", "float"):
        yield from _bounds(value, shape, at, "")


def _wrong_type(value: Any, shape: Any, at: str) -> Mistake:
    wanted = WORDS.get(shape.type_name, shape.type_name)
    shown = json.dumps(value, default=str)[:60]
    remedy = f"write {json.dumps(str(value))[:60]}" if shape.type_name == "string" and not isinstance(value, dict | list) else (
        f"write {wanted} in its place"
    )  # fmt: skip
    return Mistake(at or "request", f"{shown} is not {wanted}", remedy, unfit=True)


def _structure(value: dict[str, Any], shape: Any, at: str) -> Iterator[Mistake]:
    for name in shape.required_members:
        if name not in value:
            yield Mistake(_join(at, name), "is missing", f"add it: {_expected(shape.members[name])}")
    for name, inner in value.items():
        if name in shape.members:
            yield from _check(inner, shape.members[name], _join(at, str(name)))
        else:
            near = difflib.get_close_matches(str(name), shape.members, n=1, cutoff=0.6)
            remedy = f"write {near[0]}" if near else "remove it"
            # Its value may hold anything, for nothing says what it should be.
            yield Mistake(_join(at, str(name)), "there is no such field", remedy, unfit=_is_boundless(inner))


def _is_boundless(value: Any) -> bool:
    """Return whether a value is deeper, or holds more, than rules between fields can look through."""
    level, count = [value], 0
    for _ in range(DEEPEST):
        lists = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list | tuple))
        level = list(itertools.chain.from_iterable(lists))
        count += len(level)
        if not level or count > MOST_VALUES:
            break
    return bool(level)


def _string(value: str, shape: Any, at: str) -> Iterator[Mistake]:
    if NOT_TEXT.search(value):
        yield Mistake(at, "holds a zero byte or half a character", "write it without: no command line can hold it", unfit=True)
        return
    allowed = shape.metadata.get("enum")
    if allowed and value not in allowed:
        value = value[:80]
        near = difflib.get_close_matches(value, allowed, n=3, cutoff=0.5) or difflib.get_close_matches(
            f"ml.{value}", allowed, n=3
        )
        words = (
            ", ".join(near or allowed)
            if near or len(allowed) <= 8
            else f"{len(allowed)} values are allowed: see the API reference"
        )
        yield Mistake(
            at, f"{value!r} is not one of the allowed values", f"near values: {words}" if near else f"allowed: {words}"
        )
        return
    before = list(_bounds(len(value), shape, at, "characters"))
    yield from before
    pattern = _pattern(shape.metadata.get("pattern"))
    if not before and pattern is not None and pattern.fullmatch(value) is None:
        yield Mistake(at, f"{value[:80]!r} does not have the form of {_name(at)}", f"it must match {shape.metadata['pattern']}")


def _bounds(size: float, shape: Any, at: str, unit: str) -> Iterator[Mistake]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    words = f" {unit}" if unit else ""
    shown = f"{min(max(size, -1e300), 1e300):g}"  # a whole number of JSON may be larger than any float
    if low is not None and size < low:
        yield Mistake(at, f"{shown}{words} is below the least, {low:g}", f"give at least {low:g}{words}")
    if high is not None and size > high:
        remedy = f"give at most {high:g}{words}"
        yield Mistake(at, f"{shown}{words} is above the most, {high:g}", remedy, unfit=bool(unit))


@functools.cache
def _pattern(text: str | None) -> re.Pattern[str] | None:
    """Return the service's pattern for Python, which has no \\p{…}; None where there is none, or Python cannot read it."""
    if text is None:
        return None
    for category, words in ((r"\p{L}", r"\w"), (r"\p{N}", r"\d"), (r"\p{Z}", r"\s")):
        text = text.replace(category, words)
    try:
        return re.compile(text)
    except re.error:
        return None


def _expected(shape: Any) -> str:
    allowed = shape.metadata.get("enum")
    if allowed:
        return " or ".join(allowed) if len(allowed) <= 4 else f"such as {allowed[0]}"
    return WORDS.get(shape.type_name) or str(shape.type_name)


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _name(at: str) -> str:
    return at.rpartition(".")[2]
