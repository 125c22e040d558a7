"""The seam between what is to be packed and who does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.packing.listing import Listing
from headrace.packing.pack_plan import PackPlan
from headrace.packing.work import WorkFolder

__all__ = ["Engine", "OnProgress"]

OnProgress = Callable[[int, int], None]
"""Is told how many more records are done, and how many bytes were written for them."""


class Engine(Protocol):
    """Packs units; the bytes do not depend on which engine does it, nor on its number of workers."""

    @property
    def workers(self) -> int:
        """How many images are worked on at once."""

    def pack_units(
        self,
        part: str,
        listing: Listing,
        plan: PackPlan,
        units: Sequence[int],
        work: WorkFolder,
        on_progress: OnProgress,
    ) -> None:
        """Packs the given units of the plan and marks them done in `work`.

        `part` is "" or which part of the split `listing` is.
        """
