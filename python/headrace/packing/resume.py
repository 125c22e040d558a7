"""Pack one dataset, or the units of it that are still missing: the module that continues an interrupted pack.

The first run writes a pack plan (`pack_plan`) into `DST/.packing` (`work`) and marks each unit there when its shard is in
place. A later run with the same source and options finds the plan, skips the marked units whose source files have not changed
and whose shards have the recorded digest, packs the others again, and commits when all units are marked. A unit's bytes depend
on the plan alone, so the shards are the same however often the pack was interrupted. With a manifest in the destination the
pack is complete and nothing is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.datasets.shards.manifest import MANIFEST, Manifest, read_manifest
from headrace.errors import FormatError, UsageError
from headrace.packing.engines.engine import Engine, OnProgress
from headrace.packing.engines.work import WorkFolder
from headrace.packing.estimate import Estimate
from headrace.packing.planning.listing import Listing
from headrace.packing.planning.options import PackOptions
from headrace.packing.planning.pack_plan import PackPlan, make_pack_plan
from headrace.packing.planning.result import PackResult, complete_result, incomplete_result

__all__ = ["MissingUnits"]


@dataclass(frozen=True, slots=True)
class MissingUnits:
    """The packing of what is missing in a destination, with the options of one call of `pack`."""

    options: PackOptions
    engine: Engine
    unit: tuple[int, int] | None  # (i, N): this job's share of the units; None: all
    sync: bool
    on_progress: OnProgress
    estimate: Callable[[], Estimate | None]  # of the whole source, measured at the first call; None: nothing is re-encoded

    def pack(self, part: str, listing: Listing, destination: Path) -> PackResult:
        """Pack what is missing of one dataset. `part`: "" or train, val, test."""
        started_s = time.perf_counter()
        work = WorkFolder(destination, sync=self.sync)
        work.check_owner()
        plan = self._plan_to_follow(listing, work)
        if (destination / MANIFEST).exists():
            work.remove()  # left by a process that died between the commit's last two steps
            self.on_progress(len(listing), 0)
            return complete_result(destination, read_manifest(destination), listing, 0, started_s)
        mine = [unit for unit in range(plan.units) if self._is_mine(unit)]
        done = self._taken_over(mine, listing, plan, work)
        missing = [unit for unit in mine if unit not in done]
        outdated = [unit for unit in missing if work.is_done(unit)]
        for unit in outdated:  # its source files have changed since, or its own: nobody may commit it as it is
            work.forget(unit)
        self.on_progress(plan.records(done), 0)
        try:
            self.engine.pack_units(part, listing, plan, missing, work, self.on_progress)
        except FileNotFoundError:  # another process packed the same units, committed, and has removed the work folder
            if not (destination / MANIFEST).exists():
                raise
        packed = plan.records(missing)
        manifest = self._commit(listing, plan, work)
        if manifest is None:
            result = incomplete_result(destination, listing, packed, len(mine), started_s)
        else:
            result = complete_result(destination, manifest, listing, packed, started_s)
        return replace(result, repacked=len(outdated))

    def _taken_over(self, mine: list[int], listing: Listing, plan: PackPlan, work: WorkFolder) -> set[int]:
        """Return the done units whose source files have not changed, and whose shards have the bytes that were written."""
        done = [unit for unit in mine if work.is_done(unit, listing.change_digest(*plan.rows(unit)))]
        if not done:
            return set()
        with ThreadPoolExecutor(min(self.engine.workers, len(done)), thread_name_prefix="headrace-check") as pool:
            intact = pool.map(lambda unit: work.is_intact(unit, listing, plan), done)
            return {unit for unit, whole in zip(done, intact, strict=True) if whole}

    def _commit(self, listing: Listing, plan: PackPlan, work: WorkFolder) -> Manifest | None:
        """Commit when all units are done, here or elsewhere; return None when some are missing."""
        try:
            if all(work.is_done(unit) for unit in range(plan.units)):
                return work.commit(plan, listing)
        except (FileNotFoundError, FormatError):  # another job committed at the same moment, and has removed the marks
            if not (work.destination / MANIFEST).exists():
                raise
        return read_manifest(work.destination) if (work.destination / MANIFEST).exists() else None

    def _is_mine(self, unit: int) -> bool:
        # i = N means 0, so that jobs may be counted from 0 or from 1.
        return self.unit is None or unit % self.unit[1] == self.unit[0] % self.unit[1]

    def _plan_to_follow(self, listing: Listing, work: WorkFolder) -> PackPlan:
        """Return the plan of the pack that was begun here, else a new one. Raise UsageError when they do not agree."""
        if (work.destination / MANIFEST).exists():
            return self._plan_of_complete_pack(listing, work.destination)
        begun = work.plan()
        if begun is None:
            expected = self.estimate()
            ratio = expected.packed_bytes / max(1, expected.source_bytes) if expected else None
            begun = work.begin(make_pack_plan(listing, self.options, ratio))
        difference = make_pack_plan(listing, self.options, begun.ratio).difference(begun)
        if difference:
            raise UsageError(
                f"{work.destination} holds an unfinished pack that cannot be continued: {difference}",
                hint=f"give the same options as before, or start again:  rm -r {work.destination}",
            )
        return begun

    def _plan_of_complete_pack(self, listing: Listing, destination: Path) -> PackPlan:
        manifest = read_manifest(destination)
        plan = make_pack_plan(listing, self.options, 1.0)
        packed = replace(plan, options=manifest.options, source_fingerprint=manifest.source_fingerprint)
        difference = plan.difference(packed)
        if difference:
            raise UsageError(f"{destination} already holds a packed dataset: {difference}", hint="give a new folder")
        return plan
