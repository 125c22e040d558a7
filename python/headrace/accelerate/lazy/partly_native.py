"""The result of taking a loader over in part: a changed copy of the script's DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.accelerate.lazy.trial import Trial

__all__ = ["PartlyNative"]


@dataclass(frozen=True, slots=True)
class PartlyNative:
    """A changed copy of the script's DataLoader: headrace decodes its images, the script's own iterator and workers run.

    `loader`: the copy; its items are equal bit for bit. `native`: the native steps, as the subject of a sentence ("decode and
    RandomResizedCrop"). `check`: the result of the comparison, in words. `prepare`: changes the iterator that the script's
    class has made, and returns it (default: no change). `trial`: measurements of lazy images; `native` is then empty, because
    only the items tell which steps are native.
    """

    loader: Any
    native: str
    check: str
    prepare: Callable[[Any], Any] = lambda iterator: iterator
    trial: Trial | None = None
