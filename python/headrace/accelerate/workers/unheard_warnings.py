"""Suppress warnings of script code that headrace runs a second time, without making Python forget which it has shown.

`warnings.catch_warnings` does not serve here. It makes Python forget which warnings it has shown, so that the script's own come
again, and it concerns all threads.
"""

from __future__ import annotations

import threading
import warnings
from types import TracebackType

__all__ = ["unheard_warnings"]


class _OfOneThread(type):
    """Metaclass of a warning category that contains all warnings of one thread, and no others.

    Python asks each filter whether the category of a warning is a subclass of the filter's, in the thread that warns.
    """

    thread: int
    given: int

    def __subclasscheck__(cls, category: type) -> bool:
        if threading.get_ident() != cls.thread:
            return False
        cls.given += 1
        return True


class unheard_warnings:
    """Context manager: warnings of this thread are neither shown nor raised, nor remembered as shown.

    with unheard_warnings() as unheard:
        image = Image.open(path)
    if unheard.given: ...  # number of warnings
    """

    def __init__(self) -> None:
        self._category = _OfOneThread("warning", (Warning,), {"thread": threading.get_ident(), "given": 0})

    @property
    def given(self) -> int:
        """How many warnings this thread has issued in the `with` block so far; none of them is shown."""
        return self._category.given

    def __enter__(self) -> unheard_warnings:
        self._filter = ("ignore", None, self._category, None, 0)
        self._filters = warnings.filters
        self._filters.insert(0, self._filter)  # type: ignore[attr-defined]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for filters in (warnings.filters, self._filters):  # the code may have replaced the list
            if self._filter in filters:
                filters.remove(self._filter)  # type: ignore[attr-defined]
