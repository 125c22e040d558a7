"""Misspelt arguments and names: an error of ours that names what was meant, or what another library's name is called here."""

from __future__ import annotations

import difflib
import functools
import inspect
import opcode
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

from headrace.errors import UnknownArgumentError, UnknownNameError, UsageError

__all__ = ["suggest_arguments", "unknown_argument", "unknown_name"]

_IMPORT_FROM = opcode.opmap["IMPORT_FROM"]

P = ParamSpec("P")
R = TypeVar("R")


def suggest_arguments(others: Mapping[str, str] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator with which a call with an unknown keyword raises UnknownArgumentError, whose hint names a near one.

    Values beyond the last argument that has a place raise it, too.

    others: hints for names that other libraries use, by name; "*": for too many values. Default: None, no hints but near names.

    Signature and documentation stay those of the function. Example: `@suggest_arguments({"num_workers": "threads=4 …"})`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        owner, _, name = function.__qualname__.rpartition(".")
        called = owner if name == "__init__" else name
        parameters = inspect.signature(function).parameters
        known = [one for one in parameters if one != "self"]
        names = frozenset(known)
        places = sum(one.kind is not one.KEYWORD_ONLY for one in parameters.values())  # "self" among them

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not names.issuperset(kwargs):
                wrong = next(one for one in kwargs if one not in names)
                raise unknown_argument(called, wrong, known, others)
            if len(args) > places:
                hint = (others or {}).get("*") or f"it takes {', '.join(known)}"
                raise UnknownArgumentError(f"{called} takes no value {args[places]!r} behind the others", hint=hint)
            return function(*args, **kwargs)

        return checked

    return decorate


def unknown_argument(
    called: str, wrong: str, known: Iterable[str], others: Mapping[str, str] | None = None
) -> UnknownArgumentError:
    """Return the error for the keyword `wrong` of `called`, which takes the arguments `known`."""
    known = list(known)
    near = difflib.get_close_matches(wrong.lower(), known, n=1)
    hint = (others or {}).get(wrong) or (f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}")
    return UnknownArgumentError(f"{called} takes no argument {wrong!r}", hint=hint)


def unknown_name(owner: str, name: str, known: Iterable[str], others: Mapping[str, str]) -> UsageError:
    """Return the error for the attribute `name` that `owner` lacks, for its `__getattr__` to raise.

    known: the names that it has. others: what to use for names of other libraries.

    Python hides an AttributeError of `from headrace import name` behind an ImportError without a hint. There the error is no
    AttributeError, so that it is seen.
    """
    public = {one.lower(): one for one in known if not one.startswith("_")}
    near = [] if name.startswith("_") else difflib.get_close_matches(name.lower(), public, n=1)  # Python asks for "__…" often
    use = others.get(name) or (f"did you mean {public[near[0]]}?" if near else None)
    if use is None:
        return UnknownNameError(f"{owner} has no attribute {name!r}")
    frame = sys._getframe(2)  # of what asks `__getattr__`
    imports = frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM
    return (UsageError if imports else UnknownNameError)(f"{owner} has no {name}: {use}")
