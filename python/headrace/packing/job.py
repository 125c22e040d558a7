"""`headrace.pack`: list the source, divide it by the split ratios, have an engine pack the missing units, commit, upload."""

from __future__ import annotations

import errno
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, Unpack

from headrace.datasets.open import open_split, open_stored
from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.splits import splits_below
from headrace.datasets.sources.folders.folder import OnListed
from headrace.datasets.sources.remote.store import Bucket, is_url, open_bucket
from headrace.errors import HeadraceError, UsageError
from headrace.packing.encoding.image_encoder import image_encoder
from headrace.packing.engines.engine import Engine, OnProgress
from headrace.packing.engines.local import LocalEngine
from headrace.packing.engines.ray_cluster import RayEngine
from headrace.packing.engines.work import check_empty
from headrace.packing.estimate import Estimate, estimate
from headrace.packing.folder_copy import copy_folder
from headrace.packing.planning.listing import Listing, list_records, split
from headrace.packing.planning.options import PackKeywords, PackOptions
from headrace.packing.planning.result import PackResult, relocated, summed
from headrace.packing.resume import MissingUnits
from headrace.packing.upload import check_free, staging_folder, upload
from headrace.system.hardware import machine
from headrace.system.text.arguments import unknown_argument

__all__ = ["ENGINES", "pack"]

ENGINES = ("local", "ray")


def pack(
    src: str | os.PathLike[str] | Dataset,
    dst: str | os.PathLike[str],
    *,
    workers: int | None = None,
    engine: str = "local",
    layout: Literal["shards", "folder"] = "shards",
    unit: tuple[int, int] | None = None,
    root: str | os.PathLike[str] | None = None,
    follow_links: Sequence[str | os.PathLike[str]] = (),
    sync: bool = False,
    on_listed: OnListed | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: OnProgress | None = None,
    on_estimate: Callable[[Estimate], None] | None = None,
    **options: Unpack[PackKeywords],
) -> PackResult:
    """Pack the dataset `src` into shards in the folder or object store `dst`; continue a pack that was interrupted.

    These do not change the bytes:
    workers: threads, with Ray processes. Default: one for each core.
    engine: "local" or "ray" (the Ray cluster; every node must see the source). Default: "local".
    layout: "shards", or "folder" for a copy of the tree SRC that any script reads: only its JPEGs change. Default: "shards".
    unit: (i, N) packs every N-th shard from the i-th, for an array of N jobs; the last one commits. Default: all.
    root: folder or URL that the paths of a list are relative to. Default: the folder of the list.
    follow_links: with layout="folder", folders outside SRC into which its links are followed. Default: none.
    sync: wait until every file is on the disk: the commit survives a power failure. Default: False.
    on_listed, on_start, on_progress, on_estimate: called with the number of images or files just listed; of all records;
        with (records, bytes) just finished; with the `Estimate` of what re-encoding gives. Default: None.

    These do; the defaults keep every pixel:
    max_side, short_side: reduce larger images to this longer, shorter side in pixels. Default: None.
    resize: give every image this shorter side in pixels, also smaller ones. Default: None.
    quality: JPEG quality, 1 to 100, of re-encoded images (None: 95); if given, images above it are re-encoded too.
    transform: deterministic operations for every image: "Resize(256), CenterCrop(224)". Default: None.
    keep_bytes: copy every file byte for byte. Default: False.
    restart_markers: insert restart markers, losslessly, so that crops decode faster. Default: True.
    shard_size: size of a shard in bytes, about. Default: 128 MiB.
    shuffle: seed of a random order of records. Default: None, the order of the source.
    train_ratio, test_ratio: shares in DST/train, DST/test; DST/val gets the rest. Default: 1, 0. seed: chooses others (0).
    classes: pack only these classes, in this order. Default: all.
    unlabeled, undecodable: "skip" such records and list them in errors.jsonl, or "stop". Default: "skip".
    duplicates: "stop" at a second record with the same key, "skip" it, or "rename" it. Default: "stop".
    extras: "keep" or "drop" sidecar files. Default: "keep". codec: how images are stored; only "jpeg" exists.

    A folder of `train` beside `val` or `test` becomes `dst/train`, `dst/val`, …, each with the classes of `train`.
    Returns counts, sizes and the rate. Raises UsageError for options that contradict or a destination with other content,
    SourceError if the source cannot be opened or nothing in it can be packed, DecodeError if undecodable="stop".
    Example: `headrace.pack("photos/", "packed/", max_side=500, quality=90)`.
    """
    chosen = _checked(options, engine, workers, unit)
    callbacks = _Callbacks(on_listed, on_start, on_progress, on_estimate)
    if layout == "folder":
        tree = _tree_to_copy(src, engine=engine, unit=unit, root=root)
        return _copy(tree, dst, chosen, callbacks, workers, follow_links)
    if layout != "shards":
        raise UsageError(f"layout is {layout!r}; possible: shards, folder")
    if follow_links:
        raise UsageError("--follow-links belongs to --layout folder", hint="leave it out")
    return _pack_all(src, dst, chosen, callbacks, _How(engine, workers, unit, root, sync))


@dataclass(frozen=True, slots=True)
class _How:
    """The arguments of `pack` that do not change the bytes."""

    engine: str
    workers: int | None
    unit: tuple[int, int] | None
    root: str | os.PathLike[str] | None
    sync: bool


def _pack_all(
    src: str | os.PathLike[str] | Dataset,
    dst: str | os.PathLike[str],
    options: PackOptions,
    callbacks: _Callbacks,
    how: _How,
) -> PackResult:
    """Pack the dataset at `src`, or each split below it into a folder of its name below `dst`."""
    names = () if isinstance(src, Dataset) or is_url(src) else splits_below(Path(src).expanduser())
    if isinstance(src, Dataset) or not names:
        return _pack(src, dst, options, callbacks, how)
    if options.splits or how.engine != "local":
        option = "--train-ratio and --test-ratio" if options.splits else "--engine ray"
        raise UsageError(f"{src} holds the splits {', '.join(names)}, which are packed without {option}", hint="leave it out")
    datasets = [open_split(src, name, list_unreadable=True, on_listed=callbacks.on_listed) for name in names]
    callbacks.start(sum(map(len, datasets)))
    callbacks = replace(callbacks, on_start=None)
    place = os.fspath(dst).rstrip("/")
    parts = [_pack(dataset, f"{place}/{name}", options, callbacks, how) for name, dataset in zip(names, datasets, strict=True)]
    return summed(place, parts)


def _tree_to_copy(
    src: str | os.PathLike[str] | Dataset, *, engine: str, unit: tuple[int, int] | None, root: object
) -> str | os.PathLike[str]:
    """Return `src`. Raise UsageError if it is no path, and for arguments that a copy of a tree does not have."""
    if engine != "local" or unit is not None or root is not None:
        raise UsageError("--layout folder has no --engine, --unit or --root", hint="--layout shards has them")
    if isinstance(src, Dataset):
        raise UsageError("--layout folder copies a folder: give its path")
    return src


@dataclass(frozen=True, slots=True)
class _Callbacks:
    on_listed: OnListed | None
    on_start: Callable[[int], None] | None
    on_progress: OnProgress | None
    on_estimate: Callable[[Estimate], None] | None

    def start(self, records: int) -> None:
        if self.on_start:
            self.on_start(records)

    def progress(self, records: int, size: int) -> None:
        if self.on_progress:
            self.on_progress(records, size)

    def estimate(self, expected: Estimate) -> None:
        if self.on_estimate:
            self.on_estimate(expected)


def _copy(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    options: PackOptions,
    callbacks: _Callbacks,
    workers: int | None,
    follow_links: Sequence[str | os.PathLike[str]],
) -> PackResult:
    return copy_folder(
        src,
        dst,
        options,
        workers=workers,
        follow_links=follow_links,
        on_listed=callbacks.on_listed,
        on_start=callbacks.start,
        on_progress=callbacks.progress,
    )


def _checked(options: PackKeywords, engine: str, workers: int | None, unit: tuple[int, int] | None) -> PackOptions:
    """Return the options that change bytes. Raise UsageError for any argument that is unknown or out of range."""
    known = [one.name for one in fields(PackOptions)]
    for name in options:
        if name not in known:
            own = [one for one in inspect.signature(pack).parameters if one not in ("src", "dst", "options")]
            raise unknown_argument("pack", name, [*known, *own])
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
    return chosen


def _pack(
    src: str | os.PathLike[str] | Dataset,
    dst: str | os.PathLike[str],
    options: PackOptions,
    callbacks: _Callbacks,
    how: _How,
) -> PackResult:
    unit, root = how.unit, how.root
    store = _open_store(dst, unit)
    dataset = src if isinstance(src, Dataset) else open_stored(src, root, list_unreadable=True, on_listed=callbacks.on_listed)
    dataset.check_stored()
    _refuse_overlap(dataset, dst, store)
    listing = list_records(dataset, options, callbacks.on_listed)
    parts = split(listing, options)
    folder = Path(dst).expanduser().absolute() if store is None else staging_folder(store.url)
    if store is not None:
        check_free(store, sorted({"", *parts}), folder)
    callbacks.start(len(listing))
    encoder = image_encoder(options)
    chosen_engine: Engine
    if how.engine == "local":
        chosen_engine = LocalEngine(encoder, options, how.workers or max(1, round(machine.cores().usable)))
    else:
        chosen_engine = RayEngine(src, root, options, listing, how.workers)

    @functools.cache
    def estimate_once() -> Estimate | None:
        if not options.reencodes:
            return None
        expected = estimate(listing, encoder, chosen_engine.workers)
        callbacks.estimate(expected)
        return expected

    missing = MissingUnits(options, chosen_engine, unit, how.sync, callbacks.progress, estimate_once)
    result = _pack_parts(missing, parts, folder)
    if store is None:
        return result
    upload(store, folder)
    return relocated(result, str(folder), store.url)


def _pack_parts(missing: MissingUnits, parts: Mapping[str, Listing], folder: Path) -> PackResult:
    """Pack each part of the split into its folder. Raise HeadraceError if the folder cannot be written."""
    try:
        if missing.options.splits:
            check_empty(folder, parts)
        results = [missing.pack(name, listing, folder / name if name else folder) for name, listing in parts.items()]
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what, hint = f"no space left for {folder}", "free some space"
        else:
            what, hint = f"cannot write to {folder}: {error.strerror or error}", "check the folder and its permissions"
        raise HeadraceError(what, hint=f"{hint} and give the same command again: it continues") from error
    return results[0] if "" in parts else summed(str(folder), results)


def _open_store(dst: str | os.PathLike[str], unit: tuple[int, int] | None) -> Bucket | None:
    """Return the object store of `dst`, or None for a local folder."""
    if not is_url(dst):
        return None
    if unit is not None:
        raise UsageError("unit: jobs of an array need a folder that all of them see as the destination, not a store")
    return open_bucket(str(dst))


def _refuse_overlap(dataset: Dataset, dst: str | os.PathLike[str], store: Bucket | None) -> None:
    """Raise UsageError if `dst` is the source, or lies in an image folder, of which it would become a class."""
    target, root = Path(os.path.realpath(Path(dst).expanduser())), os.path.realpath(dataset.root)
    if store is None and str(target) == root:
        raise UsageError(f"{dst} is the source itself", hint="give a new folder")
    if dataset.kind != "folder":
        return
    if store is not None:
        inside = f"{store.url}/".startswith(f"{dataset.root.rstrip('/')}/")
    else:
        inside = target.is_relative_to(root)
    if inside:
        raise UsageError(f"{dst} lies inside the source {dataset.root}, and would become a class of it", hint="pack beside it")
