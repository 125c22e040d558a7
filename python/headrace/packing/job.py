"""`headrace.pack`: lists the source, plans units, has an engine pack the missing ones, commits."""

from __future__ import annotations

import errno
import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.datasets.open import open_stored
from headrace.datasets.records import Dataset
from headrace.datasets.shards.index import read_columns
from headrace.datasets.shards.manifest import INDEX, MANIFEST, Manifest, read_manifest
from headrace.datasets.sources.remote.store import Bucket, is_url, open_bucket
from headrace.errors import HeadraceError, UsageError
from headrace.packing.engine import Engine, OnProgress
from headrace.packing.estimate import Estimate, estimate
from headrace.packing.image_encoder import image_encoder
from headrace.packing.listing import Listing, list_records, split
from headrace.packing.local import LocalEngine
from headrace.packing.options import PackOptions
from headrace.packing.pack_plan import PackPlan, make_pack_plan
from headrace.packing.ray_cluster import RayEngine
from headrace.packing.upload import check_free, staging_folder, upload
from headrace.packing.work import WorkFolder, check_empty
from headrace.system import machine

__all__ = ["ENGINES", "PackResult", "pack"]

ENGINES = ("local", "ray")


@dataclass(frozen=True, slots=True)
class PackResult:
    """What a pack did. `img_s` is None when there was nothing left to do."""

    path: str
    complete: bool  # False: other units, packed elsewhere, are still missing
    records: int
    shards: int
    bytes: int  # of the shards
    errors: int  # rejected records: see errors.jsonl
    renamed: int  # records whose key had to be numbered
    img_s: float | None
    seconds: float
    source_bytes: int
    extras: Mapping[str, int]  # members kept beside the images, by name, of what the source has
    parts: tuple[PackResult, ...] = ()  # one for each of train, val, test
    framing_bytes: int = 0  # of `bytes`: tar headers, labels and padding; 0 while others are still missing
    repacked: int = 0  # shards of an earlier run that were packed again, because files of the source had changed since


def pack(
    src: str | os.PathLike[str] | Dataset,
    dst: str | os.PathLike[str],
    *,
    workers: int | None = None,
    engine: str = "local",
    unit: tuple[int, int] | None = None,
    root: str | os.PathLike[str] | None = None,
    sync: bool = False,
    on_start: Callable[[int], None] | None = None,
    on_progress: OnProgress | None = None,
    on_estimate: Callable[[Estimate], None] | None = None,
    **options: Any,
) -> PackResult:
    """Packs the dataset `src` into shards in the folder or object store `dst`; `options` are the fields of PackOptions.

    A pack that was interrupted continues where it stopped, with the same bytes as an undisturbed one; shards of files whose
    time of change is another one now are packed again. A complete pack is left as it is. `sync` waits until all is on the
    disk, so that the commit holds when the power fails. `engine` "local" packs with `workers` threads of this process
    (default: one for each core), "ray" with `workers` processes on a Ray cluster (default: one for each of its cores), which
    all see the source; the destination is written here. `unit` (i, N) packs every N-th shard from the i-th, for N independent
    jobs; the last one commits. The bytes are the same by each of these ways. `root` is the folder that the paths of a list
    (.lst, .csv, …) are relative to. `on_start` is told how many records there are to pack,
    `on_progress` how many more are done and how many bytes were written for them.

    Raises UsageError for options that contradict or a destination that holds something else, SourceError when the
    source cannot be opened or nothing of it can be packed.
    """
    try:
        chosen = PackOptions(**options)
    except TypeError as error:
        raise UsageError(f"pack: {error}") from error
    if unit is not None and not (unit[1] >= 1 and 0 <= unit[0] <= unit[1]):
        raise UsageError(f"unit {unit[0]}/{unit[1]}: i/N with i from 0 to N is expected")
    if workers is not None and workers < 1:
        raise UsageError(f"workers is {workers}; at least 1 is needed")
    if engine not in ENGINES:
        raise UsageError(f"engine is {engine!r}; possible: {', '.join(ENGINES)}")
    store = _store(dst, unit)
    dataset = src if isinstance(src, Dataset) else open_stored(src, root)
    dataset.check_stored()
    _refuse_inside(dataset, dst, store)
    listing = list_records(dataset, chosen)
    parts = split(listing, chosen)
    target = Path(dst).expanduser().absolute() if store is None else staging_folder(store.url)
    if store is not None:
        check_free(store, sorted({"", *parts}), target)
    if on_start:
        on_start(len(listing))
    encoder = image_encoder(chosen)
    chosen_engine: Engine
    if engine == "local":
        chosen_engine = LocalEngine(encoder, chosen, workers or max(1, round(machine.cores().usable)))
    else:
        chosen_engine = RayEngine(src, root, chosen, listing, workers)

    @functools.cache
    def expected() -> Estimate | None:
        found = estimate(listing, encoder, chosen_engine.workers) if chosen.reencodes else None
        if found and on_estimate:
            on_estimate(found)
        return found

    job = _Job(chosen, chosen_engine, unit, sync, on_progress or (lambda _count, _size: None), expected)
    try:
        if chosen.splits:
            check_empty(target, parts)
        results = [job.run(name, part, target / name if name else target) for name, part in parts.items()]
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what, hint = f"no space left for {target}", "free some space"
        else:
            what, hint = f"cannot write to {target}: {error.strerror or error}", "see to the folder"
        raise HeadraceError(what, hint=f"{hint} and give the same command again: it continues") from error
    result = results[0] if "" in parts else _sum(str(target), results)
    if store is None:
        return result
    upload(store, target)
    return _moved(result, str(target), store.url)


def _refuse_inside(dataset: Dataset, dst: str | os.PathLike[str], store: Bucket | None) -> None:
    """Raises UsageError for a destination that is the source, or in an image folder, one of whose classes it would become."""
    here, root = Path(os.path.realpath(Path(dst).expanduser())), os.path.realpath(dataset.root)
    if store is None and str(here) == root:
        raise UsageError(f"{dst} is the source itself", hint="give a new folder")
    if dataset.kind != "folder":
        return
    if store is not None:
        inside = f"{store.url}/".startswith(f"{dataset.root.rstrip('/')}/")
    else:
        inside = here.is_relative_to(root)
    if inside:
        raise UsageError(f"{dst} lies inside the source {dataset.root}, and would become a class of it", hint="pack beside it")


def _store(dst: str | os.PathLike[str], unit: tuple[int, int] | None) -> Bucket | None:
    if not is_url(dst):
        return None
    if unit is not None:
        raise UsageError("unit: jobs of an array need a folder that all of them see as the destination, not a store")
    return open_bucket(str(dst))


def _moved(result: PackResult, folder: str, url: str) -> PackResult:
    """The result with places in the store instead of those in the local folder."""
    parts = tuple(_moved(part, folder, url) for part in result.parts)
    return replace(result, path=url + result.path.removeprefix(folder), parts=parts)


@dataclass(frozen=True, slots=True)
class _Job:
    options: PackOptions
    engine: Engine
    unit: tuple[int, int] | None
    sync: bool
    on_progress: OnProgress
    expected: Callable[[], Estimate | None]  # of the whole source, measured when first asked for; None: nothing is re-encoded

    def run(self, name: str, listing: Listing, destination: Path) -> PackResult:
        """Packs one dataset (`name`: "", or which part of the split it is), or what is missing of it."""
        started_s = time.perf_counter()
        work = WorkFolder(destination, sync=self.sync)
        plan = self._plan(listing, work)
        if (destination / MANIFEST).exists():
            work.remove()  # left by a process that died between the commit's last two steps
            self.on_progress(len(listing), 0)
            return _result(destination, read_manifest(destination), listing, 0, started_s)
        mine = [number for number in range(plan.units) if self._is_mine(number)]
        done = {n for n in mine if work.is_done(n, listing.mark(plan.cuts[n], plan.cuts[n + 1]))}
        missing = [number for number in mine if number not in done]
        stale = [number for number in missing if work.is_done(number)]
        for number in stale:  # files of it have changed since: the other shards will hold the new ones
            work.forget(number)
        self.on_progress(sum(plan.cuts[number + 1] - plan.cuts[number] for number in done), 0)
        try:
            self.engine.pack_units(name, listing, plan, missing, work, self.on_progress)
        except FileNotFoundError:  # another process packed the same units, committed, and has removed the work folder
            if not (destination / MANIFEST).exists():
                raise
        packed = sum(plan.cuts[number + 1] - plan.cuts[number] for number in missing)
        manifest = self._commit(listing, plan, work)
        if manifest is None:
            return replace(_partial(destination, listing, packed, len(mine), started_s), repacked=len(stale))
        return replace(_result(destination, manifest, listing, packed, started_s), repacked=len(stale))

    def _commit(self, listing: Listing, plan: PackPlan, work: WorkFolder) -> Manifest | None:
        """Commits when all units are done, here or elsewhere; None when some are missing."""
        try:
            if all(work.is_done(number) for number in range(plan.units)):
                return work.commit(plan, listing)
        except FileNotFoundError:  # another job committed at the same moment, and has removed the marks
            if not (work.destination / MANIFEST).exists():
                raise
        return read_manifest(work.destination) if (work.destination / MANIFEST).exists() else None

    def _is_mine(self, number: int) -> bool:
        # i = N means 0, so that jobs may be counted from 0 or from 1.
        return self.unit is None or number % self.unit[1] == self.unit[0] % self.unit[1]

    def _plan(self, listing: Listing, work: WorkFolder) -> PackPlan:
        """The plan to follow: the one that was begun, when it is for the same thing, else a new one."""
        if (work.destination / MANIFEST).exists():
            there = read_manifest(work.destination)
            new = make_pack_plan(listing, self.options, 1.0)
            old = replace(new, options=there.options, source_fingerprint=there.source_fingerprint)
            why = new.difference(old)
            if why:
                raise UsageError(f"{work.destination} already holds a packed dataset: {why}", hint="give a new folder")
            return new
        begun = work.plan()
        if begun is None:
            expected = self.expected()
            ratio = expected.packed_bytes / max(1, expected.source_bytes) if expected else None
            begun = work.begin(make_pack_plan(listing, self.options, ratio))
        why = make_pack_plan(listing, self.options, begun.ratio).difference(begun)
        if why:
            raise UsageError(
                f"{work.destination} holds an unfinished pack that cannot be continued: {why}",
                hint=f"give the same options as before, or start again:  rm -r {work.destination}",
            )
        return begun


def _result(destination: Path, manifest: Manifest, listing: Listing, packed: int, started_s: float) -> PackResult:
    seconds = time.perf_counter() - started_s
    return PackResult(
        path=str(destination),
        complete=True,
        records=manifest.records,
        shards=len(manifest.shards),
        bytes=sum(shard.size for shard in manifest.shards),
        errors=manifest.rejected,
        renamed=listing.renamed,
        img_s=packed / seconds if packed else None,
        seconds=seconds,
        source_bytes=int(listing.sizes.sum()),
        extras={} if manifest.options.get("extras") == "drop" else listing.sidecar_counts(),
        framing_bytes=_framing(destination, manifest),
    )


def _framing(destination: Path, manifest: Manifest) -> int:
    """Bytes of the shards that are neither an image nor what the source has beside it."""
    columns = read_columns(destination / INDEX)
    beside = 0 if columns.json_size is None else int(columns.json_size.sum())
    beside += 0 if columns.sidecars is None else int(columns.sidecars.size.sum())
    return sum(shard.size for shard in manifest.shards) - manifest.image_bytes - beside


def _partial(destination: Path, listing: Listing, packed: int, shards: int, started_s: float) -> PackResult:
    """The result of a job whose sister jobs have not finished; records and bytes are known at the commit."""
    seconds = time.perf_counter() - started_s
    rate = packed / seconds if packed else None
    size = sum(path.stat().st_size for path in destination.glob("shard-*.tar"))
    return PackResult(str(destination), False, packed, shards, size, 0, listing.renamed, rate, seconds, 0, {})


def _sum(path: str, parts: list[PackResult]) -> PackResult:
    seconds = sum(part.seconds for part in parts)
    packed = [part.img_s * part.seconds for part in parts if part.img_s is not None]
    return PackResult(
        path=path,
        complete=all(part.complete for part in parts),
        records=sum(part.records for part in parts),
        shards=sum(part.shards for part in parts),
        bytes=sum(part.bytes for part in parts),
        errors=sum(part.errors for part in parts),
        renamed=parts[0].renamed,
        img_s=sum(packed) / seconds if packed else None,
        seconds=seconds,
        source_bytes=sum(part.source_bytes for part in parts),
        extras=dict(sum((Counter(part.extras) for part in parts), Counter())),
        parts=tuple(parts),
        framing_bytes=sum(part.framing_bytes for part in parts),
        repacked=sum(part.repacked for part in parts),
    )
