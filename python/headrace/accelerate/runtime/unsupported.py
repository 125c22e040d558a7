"""The exception for what `headrace run` does not take over."""

from __future__ import annotations

__all__ = ["Unsupported"]


class Unsupported(Exception):
    """headrace cannot replace this loader, dataset or transform exactly. The message is the reason that `run` prints.

    `remedy` says with what it could, as a noun phrase. It is empty where nothing in the script would help.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy

    def alone(self) -> Unsupported:
        """Return a copy without traceback and context. They keep frames alive, and all that the variables of these refer to."""
        return Unsupported(str(self), self.remedy)
