"""Misspelt keyword arguments of public functions: an error of ours that names the argument that was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

from headrace.errors import UnknownArgumentError

__all__ = ["suggest_arguments", "unknown_argument"]

P = ParamSpec("P")
R = TypeVar("R")


def suggest_arguments(others: Mapping[str, str] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator with which a call with an unknown keyword raises UnknownArgumentError, whose hint names a near one.

    others: hints for names that other libraries use, by name. Default: None, no hints but near names.

    Signature and documentation stay those of the function. Example: `@suggest_arguments({"num_workers": "threads=4 …"})`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        owner, _, name = function.__qualname__.rpartition(".")
        called = owner if name == "__init__" else name
        known = [one for one in inspect.signature(function).parameters if one != "self"]
        names = frozenset(known)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not names.issuperset(kwargs):
                wrong = next(one for one in kwargs if one not in names)
                raise unknown_argument(called, wrong, known, others)
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
