"""Where datasets come from: one file for each kind of source; `open_dataset` tells them apart.

What only object stores and pipes need is imported when one is opened: it is a fifth of what `headrace pack` loads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from headrace.datasets.records import Dataset, Kind, existing
from headrace.datasets.shards.manifest import ERRORS, INDEX, MANIFEST, read_manifest
from headrace.datasets.sources.container_index_cache import cache_folder
from headrace.datasets.sources.containers import Found
from headrace.datasets.sources.fifo import pipe_of
from headrace.datasets.sources.folder import open_folder
from headrace.datasets.sources.lst import open_lst
from headrace.datasets.sources.recordio import open_recordio, scan_recordio
from headrace.datasets.sources.remote.store import Bucket, RemoteObject, is_url, is_web, open_bucket
from headrace.datasets.sources.shards import is_packed, open_shards
from headrace.datasets.sources.table import TABLES, open_table
from headrace.datasets.sources.tar import open_tar, scan_tar
from headrace.datasets.sources.tfrecord import open_tfrecord, scan_tfrecord
from headrace.errors import SourceError, UsageError

__all__ = ["LISTS", "local_copy", "open_dataset", "open_list", "open_source", "open_to_load"]

LISTS = (".lst", *TABLES)

# Container kinds by file name, and what opens them. TensorFlow's own scripts end names in -00000-of-01024.
_CONTAINERS = (
    (re.compile(r".*\.tar"), open_tar),
    (re.compile(r".*\.rec"), open_recordio),
    (re.compile(r".*\.tfrecords?(-\d+-of-\d+)?|.*-\d{5}-of-\d{5}"), open_tfrecord),
)
_KINDS: tuple[tuple[Kind, Callable[[Sequence[Path]], Callable[[Path], Found]]], ...] = (
    ("tar", scan_tar),
    ("rec", scan_recordio),
    ("tfrecord", scan_tfrecord),
)
_SCANNERS = tuple((pattern, *found) for (pattern, _), found in zip(_CONTAINERS, _KINDS, strict=True))


def open_dataset(path: str | os.PathLike[str], *, part: bool = False) -> Dataset:
    """Opens the dataset at `path`; with `part`, the shards of a packed one that are there.

    A packed dataset (`headrace pack`), an image folder (`root/CLASS/*.jpg`), tar archives in WebDataset's layout or plain,
    MXNet RecordIO (.rec), TFRecord, an im2rec list (.lst), a table of paths and labels (.csv, .tsv, .parquet); for
    containers a file, a folder of them, or a pattern with `*`. A SageMaker channel in Pipe mode (`CHANNEL` where there is
    a named pipe `CHANNEL_0`) is read to the cache first.
    All of them also by the URL of an object store (`s3:// gs:// az:// https://`): of a packed dataset each image is
    fetched when it is needed, also of containers that are larger than the cache; anything else is copied to the cache first.
    Raises SourceError when there is nothing that can be read, with what was found instead, FormatError when a
    container is damaged or contradicts itself.
    """
    if is_url(path):
        return _remote(str(path))
    if "*" in os.fspath(path) and not Path(path).exists():
        return _matching(Path(path).expanduser().absolute())
    pipe = pipe_of(Path(path).expanduser().absolute())
    if pipe is not None:
        from headrace.datasets.sources.pipe import open_stored

        return open_stored(pipe)
    found = existing(path)
    if found.is_file():
        return _file(found)
    if is_packed(found) and not (part and not (found / INDEX).exists()):
        return open_shards(found, part=part)
    files = sorted(entry for entry in found.iterdir() if entry.is_file()) if os.access(found, os.R_OK) else []
    for pattern, opener in _CONTAINERS:
        matching = [file for file in files if pattern.fullmatch(file.name)]
        if matching:
            return opener(found, matching)
    return open_folder(found)


def open_to_load(
    path: str | os.PathLike[str],
    *,
    records: int | None = None,
    part: bool = False,
    root: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Opens the dataset at `path` for a Loader: as `open_dataset`, but a SageMaker channel in Pipe mode is a stream.

    A channel is `CHANNEL` where there is a named pipe `CHANNEL_0`; each pass reads the next pipe, and nothing is kept on disk.
    `records`: how many records each pass has, for streams in which no manifest says so; `len(loader)` needs it.
    `part`: this host was given only some of the shards of a packed dataset (SageMaker's ShardedByS3Key), perhaps without its
    manifest and index; `Loader(parts=…)` makes equally many batches of such parts.
    `root`: the folder, or the URL, that the paths of a list (.lst, .csv, …) are relative to, by default that of the list.
    """
    pipe = None if is_url(path) else pipe_of(Path(path).expanduser().absolute())
    if pipe is not None:
        from headrace.datasets.sources.pipe import open_pipe

        return open_pipe(pipe, records)
    dataset = open_dataset(path, part=part) if root is None else open_source(path, root)
    if records not in (None, len(dataset)):
        raise SourceError(f"{path} has {len(dataset)} records, not {records}")
    return dataset


def open_source(path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Dataset:
    """As `open_dataset`; `root` is the folder that the paths of a list (LISTS) are relative to.

    Raises UsageError for a root with anything but a list.
    """
    if root is None:
        return open_dataset(path)
    if not os.fspath(path).endswith(LISTS):
        raise UsageError(f"root says where the images of a list ({' '.join(LISTS)}) are; {path} is none")
    if is_url(path):
        return _remote_list(str(path), root)
    return open_list(existing(path), _root(root))


def local_copy(url: str) -> Path:
    """The local copy of everything below the URL of an object store, made when it is not there yet.

    A plain web server cannot say what that is: of one it is what a packed dataset's manifest names.
    """
    bucket = open_bucket(url)
    if not is_web(url):
        return _copied(bucket)
    manifest = read_manifest(_copied(bucket, _named(bucket, [MANIFEST])))
    names = [MANIFEST, ERRORS, manifest.index.file, *(shard.file for shard in manifest.shards)]
    return _copied(bucket, _named(bucket, names))


def _remote(url: str) -> Dataset:
    folder, _, name = url.rstrip("/").rpartition("/")
    if name.endswith(LISTS):
        return _remote_list(url, None)
    if any(pattern.fullmatch(name) for pattern, _ in _CONTAINERS):
        bucket = open_bucket(folder)
        objects = _named(bucket, [name, *([f"{name.removesuffix('.rec')}.idx"] if name.endswith(".rec") else [])])
        if not objects:
            raise SourceError(f"{url} does not exist", hint="check the address")
        if (large := _too_large(bucket, objects)) is not None:
            return replace(large, root=url)
        return replace(open_dataset(_copied(bucket, objects) / name), root=url)
    bucket = open_bucket(url)
    manifest = bucket.read(MANIFEST)
    if manifest is not None:
        from headrace.datasets.sources.remote.shards import open_remote_shards

        return open_remote_shards(bucket, manifest, _remote_cache())
    objects = bucket.list()
    if (large := _too_large(bucket, objects)) is not None:
        return large
    return replace(open_dataset(_copied(bucket, objects)), root=url)


def _named(bucket: Bucket, names: Sequence[str]) -> list[RemoteObject]:
    """Those of the objects that there are; a name may be a pattern with `*`."""
    if any("*" in name for name in names):  # asked for by name otherwise: a plain web server cannot list
        here = [entry for entry in bucket.list() if "/" not in entry.path]
        return [entry for entry in here if any(fnmatchcase(entry.path, name) for name in names)]
    return [found for name in names if (found := bucket.find(name)) is not None]


def _remote_list(url: str, root: str | os.PathLike[str] | None) -> Dataset:
    """The list at `url`; where no `root` says where its images are, everything beside the list is copied with it."""
    folder, _, name = url.rpartition("/")
    bucket = open_bucket(folder)
    objects = bucket.list() if root is None else _named(bucket, [name])
    if all(entry.path != name for entry in objects):
        raise SourceError(f"{url} does not exist", hint="check the address")
    copy = _copied(bucket, objects)
    return replace(open_list(copy / name, None if root is None else _root(root)), root=url)


def _root(root: str | os.PathLike[str]) -> Path:
    """The folder of a list's images; that of a store is copied."""
    return local_copy(str(root)) if is_url(root) else existing(root)


def _too_large(bucket: Bucket, objects: Sequence[RemoteObject]) -> Dataset | None:
    """The containers among `objects`, to be read by ranges, where a copy of all would not fit into the cache; else None."""
    from headrace.datasets.sources.remote.containers import open_remote_containers
    from headrace.datasets.sources.remote.eviction import bound

    cache = _remote_cache()
    cache.mkdir(parents=True, exist_ok=True)
    if sum(entry.size for entry in objects) <= bound(cache):
        return None
    for pattern, kind, scanner in _SCANNERS:
        matching = [entry for entry in objects if "/" not in entry.path and pattern.fullmatch(entry.path)]
        if matching:
            return open_remote_containers(bucket, matching, cache, kind, scanner)
    return None


def _copied(bucket: Bucket, objects: list[RemoteObject] | None = None) -> Path:
    """The cache's copy of these objects, or of all."""
    from headrace.datasets.sources.remote.mirror import mirror

    return mirror(bucket, _remote_cache(), objects)


def _remote_cache() -> Path:
    return cache_folder() / "remote"


def _file(path: Path) -> Dataset:
    if path.suffix in LISTS:
        return open_list(path)
    for pattern, opener in _CONTAINERS:
        if pattern.fullmatch(path.name):
            return opener(path, [path])
    if path.name.endswith((".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")):
        raise SourceError(
            f"{path} is compressed: one image cannot be reached without unpacking all", hint="unpack it first (gunzip, unzstd)"
        )
    return open_folder(path)  # says what was expected


def open_list(path: Path, root: Path | None = None) -> Dataset:
    """Opens a list of images (one of LISTS); its paths are relative to `root`, by default the list's own folder."""
    return open_lst(path, root) if path.suffix == ".lst" else open_table(path, root)


def _matching(pattern: Path) -> Dataset:
    files: Sequence[Path] = sorted(pattern.parent.glob(pattern.name))
    if not files:
        raise SourceError(f"no file matches {pattern}")
    for name, opener in _CONTAINERS:
        if all(name.fullmatch(file.name) for file in files):
            return opener(pattern, files)
    raise SourceError(f"{pattern} matches {files[0].name}, which is no container of images (.tar, .rec, .tfrecord)")
