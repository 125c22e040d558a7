"""Compare the first results of native code in a process with those of the library that it replaces."""

from __future__ import annotations

from collections.abc import Hashable

from headrace.attach.record.log import log_line

__all__ = ["FirstResults"]


class FirstResults:
    """Counts compared results per way (such as a filter or a flag), and remembers whether all were equal.

    `count`: number of results to compare for each way. `words`: log text for a result that differs. `equal`: whether all
    results were equal so far; if not, the caller uses the library's own code.
    """

    def __init__(self, count: int, words: str) -> None:
        self.equal = True
        self._count = count
        self._words = words
        self._compared: dict[Hashable, int] = {}

    def wants(self, way: Hashable = None) -> bool:
        """Return whether fewer than `count` results that were made in this way (such as a filter) have been compared."""
        return self._compared.get(way, 0) < self._count

    def note(self, equal: bool, way: Hashable = None, what: object = None) -> None:
        """Count a compared result. `what`: description of the result, logged if it differs."""
        self._compared[way] = self._compared.get(way, 0) + 1
        if not equal:
            self.equal = False
            log_line(f"headrace run: {self._words}" + ("" if what is None else f": {what}"))

    def compare_again(self) -> None:
        """Reset the counts, so that a forked worker compares its own first results."""
        self._compared.clear()
