"""Exceptions for loaders that `headrace run` does not take over."""

from __future__ import annotations

__all__ = ["UnknownCode", "Unsupported"]


class Unsupported(Exception):
    """Raised where headrace cannot replace a loader, dataset or transform exactly. The message is the reason that `run` prints.

    `remedy`: what the script could use instead, as a noun phrase; empty if nothing in the script would help.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy

    def alone(self) -> Unsupported:
        """Return a copy without traceback and context, which would keep the variables of all frames in memory."""
        return type(self)(str(self), self.remedy)


class UnknownCode(Unsupported):
    """Raised for a dataset, image loader, transform, target or collate function that is not a known library class.

    Its items may still be understood as code, so the hook looks into that next, and says what it found there too.
    """
