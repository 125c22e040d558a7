"""A quantity with an interval, its kind (given, measured, published, estimated) and its source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["Estimate", "Kind", "exactly", "weakest"]

Kind = Literal["given", "measured", "published", "estimated"]

KINDS: tuple[Kind, ...] = ("given", "measured", "published", "estimated")
"""Where a number comes from, the most certain kind first. A result has the kind of its least certain part."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with the interval that should contain the true value, and where the number comes from.

    `point` lies in [`low`, `high`]. All are in the unit that the name of the field says.
    """

    point: float
    low: float
    high: float
    kind: Kind
    source: str

    def __post_init__(self) -> None:
        if not self.low <= self.point <= self.high:
            raise ValueError(f"{self.point} is not in [{self.low}, {self.high}]")

    def times(self, factor: float, low: float | None = None, high: float | None = None, *, source: str = "") -> Estimate:
        """Return the product with a positive factor, whose own interval is [low, high] (default: exact).

        A factor with an interval makes the result estimated.
        """
        low, high = factor if low is None else low, factor if high is None else high
        kind: Kind = self.kind if low == factor == high else "estimated"
        return Estimate(
            self.point * factor, self.low * low, self.high * high, kind, "; ".join(filter(None, (self.source, source)))
        )

    def named(self, source: str) -> Estimate:
        """Return the same estimate with `source` in place of its source text."""
        return replace(self, source=source)


def exactly(value: float, source: str, kind: Kind = "given") -> Estimate:
    """Return an estimate whose interval is the number itself."""
    return Estimate(value, value, value, kind, source)


def weakest(kinds: Iterable[Kind]) -> Kind:
    """Return the least certain of the kinds, "given" if there are none."""
    return max(kinds, key=KINDS.index, default="given")
