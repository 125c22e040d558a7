"""The result of `headrace verify`: the problems found, and what was checked."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Problem", "VerifyResult"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of a packed dataset: the file, the record's key (or ""), and the fault as a sentence."""

    file: str
    key: str
    detail: str


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of `headrace.verify`. `ok`: whether no problem was found."""

    path: str
    ok: bool
    records: int
    shards: int
    bytes: int  # size of all shards together
    decoded: bool  # whether the check decoded every image (`decode=True`)
    problems: tuple[Problem, ...]
