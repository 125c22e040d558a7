"""Refusals: why headrace does not replace a loader, or a part of one.

A rule deep inside raises `Unsupported`. `attempt` makes a `Refusal` of it, the record that is kept and handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

__all__ = ["Refusal", "RefusalKind", "Unsupported", "attempt", "no_equivalent", "required"]

RefusalKind = Literal["rule", "code"]
"""Cause of a refusal: code that headrace does not know, or a rule.

"code": a dataset, image loader, transform, target or collate function that is not a known library class. Its items may still
be understood as code. "rule": anything else.
"""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a loader, dataset or transform cannot be replaced exactly.

    `text`: the reason that `run` prints. `remedy`: what the script could use instead, as a noun phrase; empty if nothing in the
    script would help.
    """

    text: str
    remedy: str = ""
    kind: RefusalKind = "rule"

    def __str__(self) -> str:
        return self.text


class Unsupported(Exception):
    """Raised where headrace cannot replace a loader, dataset or transform exactly. The arguments are those of `Refusal`."""

    def __init__(self, text: str, remedy: str = "", kind: RefusalKind = "rule") -> None:
        super().__init__(text)
        self.refusal = Refusal(text, remedy, kind)


def no_equivalent(what: str, remedy: str = "") -> Unsupported:
    """Return the error for a transform, or for an argument of one, that native code does not have: `what`, in words."""
    return Unsupported(f"{what} has no exact native equivalent", remedy)


def attempt(make: Callable[[], Result]) -> Result | Refusal:
    """Return `make()`, or the refusal if it raises `Unsupported`. The exception would keep the variables of all frames."""
    try:
        return make()
    except Unsupported as error:
        return error.refusal


def required(found: Result | Refusal) -> Result:
    """Return the result `found`. Raise `Unsupported` if it is a refusal."""
    if isinstance(found, Refusal):
        raise Unsupported(found.text, found.remedy, found.kind)
    return found
