"""The interface of an engine, which packs units: `local.LocalEngine` here, `ray_cluster.RayEngine` on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.packing.engines.work import WorkFolder
from headrace.packing.planning.listing import Listing
from headrace.packing.planning.pack_plan import PackPlan

__all__ = ["Engine", "OnProgress"]

OnProgress = Callable[[int, int], None]
"""Progress callback: takes the number of records just finished, and the bytes written for them."""


class Engine(Protocol):
    """The packing of units. The bytes do not depend on the engine, nor on its number of workers."""

    @property
    def workers(self) -> int:
        """Return the number of images that are packed at the same time."""

    def pack_units(
        self,
        part: str,
        listing: Listing,
        plan: PackPlan,
        units: Sequence[int],
        work: WorkFolder,
        on_progress: OnProgress,
    ) -> None:
        """Pack the given units of the plan and mark them done in `work`.

        part: "", or the split that `listing` is: train, val or test.
        """
