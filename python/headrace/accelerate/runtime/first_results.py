"""Comparison of native code's first results in a process with those of the library that it stands for."""

from __future__ import annotations

from collections.abc import Hashable

from headrace.attach.record.log import log_line

__all__ = ["FirstResults"]


class FirstResults:
    """Counts and judges the first results of each way through native code.

    `count`: compare so many results of each way. `words`: what the log says of a result that differs. `equal`: whether all
    results were equal so far; where one was not, the library's own code has to go on.
    """

    def __init__(self, count: int, words: str) -> None:
        self.equal = True
        self._count = count
        self._words = words
        self._compared: dict[Hashable, int] = {}

    def wants(self, way: Hashable = None) -> bool:
        """Return whether the next result of a way is to be compared."""
        return self._compared.get(way, 0) < self._count

    def note(self, equal: bool, way: Hashable = None, what: object = None) -> None:
        """Count a comparison. `what`: said of a result that differs."""
        self._compared[way] = self._compared.get(way, 0) + 1
        if not equal:
            self.equal = False
            log_line(f"headrace run: {self._words}" + ("" if what is None else f": {what}"))

    def compare_again(self) -> None:
        """Compare the next results, as at the start: a forked worker compares its own."""
        self._compared.clear()
