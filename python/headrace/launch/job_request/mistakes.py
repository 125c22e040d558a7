"""A mistake in a request: the field, what is wrong with it, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mistake"]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a request. field: path of the wrong field, such as `InputDataConfig[0].ChannelName`.

    `fatal`: whether AWS would refuse the request or the job would fail; False for what wastes time or money.
    `unfit`: the value has another type than it should have, or is longer than it may be: rules between fields would trip over
    it.
    """

    field: str
    problem: str
    remedy: str
    fatal: bool = True
    unfit: bool = False

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.remedy}"
