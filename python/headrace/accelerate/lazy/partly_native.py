"""The result of taking a loader over in part: a changed copy of the script's DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.accelerate.lazy.trial import Trial

__all__ = ["PartlyNative"]


@dataclass(frozen=True, slots=True)
class PartlyNative:
    """A changed copy of the script's DataLoader, over which the script's own iterator runs (`hook.PARTIAL_WAYS`).

    `loader`: a copy of the script's DataLoader whose items are equal bit for bit. `native`: what is native in it, as the
    subject of a sentence ("decode and RandomResizedCrop"). `check`: the result of the comparison, in words. `prepare`: what
    changes the iterator that the script's own class has made for the loader, and returns it (default: nothing). `trial`: where
    only the items tell what is native, what the processes that make them have found out so far; `native` is then empty.
    """

    loader: Any
    native: str
    check: str
    prepare: Callable[[Any], Any] = lambda iterator: iterator
    trial: Trial | None = None
