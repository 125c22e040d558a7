"""The exceptions for what `headrace run` does not take over."""

from __future__ import annotations

__all__ = ["UnknownCode", "Unsupported"]


class Unsupported(Exception):
    """headrace cannot replace this loader, dataset or transform exactly. The message is the reason that `run` prints.

    `remedy` says with what it could, as a noun phrase. It is empty where nothing in the script would help.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy

    def alone(self) -> Unsupported:
        """Return a copy without traceback and context. They keep frames alive, and all that the variables of these refer to."""
        return type(self)(str(self), self.remedy)


class UnknownCode(Unsupported):
    """The rules of folders do not know a dataset, image loader, transform, target or collate function of the loader.

    Its items may still be understood as code, so the hook looks into that next, and says what it found there too.
    """
