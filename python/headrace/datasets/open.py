"""Open a dataset by path or URL: detect its kind and call the module in `sources` that reads it.

`open` is `headrace.open`. `open_stored` is for callers that need records in any order. Modules that only object stores and
pipes need are imported when one is opened: they are a fifth of what `headrace pack` loads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from headrace.datasets.records.dataset import Dataset, existing, joined, of_classes
from headrace.datasets.records.labels import labelled_by
from headrace.datasets.records.splits import TRAIN, split_place
from headrace.datasets.records.table import Kind
from headrace.datasets.shards.manifest import ERRORS, INDEX, MANIFEST, read_manifest
from headrace.datasets.sources.archives.container_index_cache import cache_folder
from headrace.datasets.sources.archives.containers import ContainerRecords
from headrace.datasets.sources.archives.recordio import open_recordio, scan_recordio
from headrace.datasets.sources.archives.shards import is_packed, open_shards
from headrace.datasets.sources.archives.tar import open_tar, scan_tar
from headrace.datasets.sources.archives.tfrecord import open_tfrecord, scan_tfrecord
from headrace.datasets.sources.fifo import find_pipe
from headrace.datasets.sources.folders.folder import OnListed, open_folder
from headrace.datasets.sources.lst import open_lst
from headrace.datasets.sources.remote.store import Bucket, RemoteObject, is_url, is_web, open_bucket
from headrace.datasets.sources.table import TABLES, open_table
from headrace.errors import SourceError, UsageError
from headrace.system.files.private_cache import make_cache_folder
from headrace.system.files.regular_file import check_regular
from headrace.system.text.arguments import suggest_arguments
from headrace.system.text.other_libraries import OF_OPEN

__all__ = ["LISTS", "local_copy", "open", "open_list", "open_split", "open_stored"]

LISTS = (".lst", *TABLES)

# Container kinds by file name, and what opens them. TensorFlow's own scripts end names in -00000-of-01024.
_CONTAINERS = (
    (re.compile(r".*\.tar"), open_tar),
    (re.compile(r".*\.rec"), open_recordio),
    (re.compile(r".*\.tfrecords?(-\d+-of-\d+)?|.*-\d{5}-of-\d{5}"), open_tfrecord),
)
_KINDS: tuple[tuple[Kind, Callable[[Sequence[Path]], Callable[[Path], ContainerRecords]]], ...] = (
    ("tar", scan_tar),
    ("rec", scan_recordio),
    ("tfrecord", scan_tfrecord),
)
_SCANNERS = tuple((pattern, *kind_and_scan) for (pattern, _), kind_and_scan in zip(_CONTAINERS, _KINDS, strict=True))


@suggest_arguments(OF_OPEN)
def open(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    classes: Iterable[str] | None = None,
    records: int | None = None,
    part: bool = False,
    root: str | os.PathLike[str] | None = None,
    split: str | None = None,
    on_listed: OnListed | None = None,
) -> Dataset:
    """Open the dataset at `path`, of any kind, for a Loader.

    Kinds: a packed dataset (`headrace pack`); an image folder (`ROOT/CLASS/*.jpg`, or images alone, which have no labels); tar
    archives, in WebDataset's layout or plain; MXNet RecordIO (`.rec`); TFRecord; an im2rec list (`.lst`); a table of paths and
    labels (`.csv`, `.tsv`, `.parquet`). Of containers: one file, a folder of them, or a pattern with `*`. Each also as the URL
    of an object store (`s3:// gs:// az:// https://`). A SageMaker channel in Pipe mode (`CHANNEL`, beside a named pipe
    `CHANNEL_0`) is a stream: each pass reads the next pipe, and nothing is stored on disk.

    path: file, folder, pattern or URL; or a list of these, whose records come one after the other (`Dataset.__add__`).
    classes: names of the classes to keep, numbered in this order, as by `headrace pack --classes`. Default: None, all.
    records: number of records of the dataset. `len(loader)` over a stream without a manifest needs it; of other kinds the
        number is checked. Default: None, the dataset's own number.
    part: open the shards of a packed dataset that are on this host (SageMaker's ShardedByS3Key), even without manifest or
        index. `Loader(parts=…)` then gives every rank the same number of batches. Default: False.
    root: folder or URL that the paths of a list are relative to. Default: None, the folder of the list.
    split: open this folder of `path`: "train", "val" (also valid or validation), "test". Labels of "val" and "test" are numbers
        of the classes of "train", of which they may lack some. Default: None, `path` itself.
    on_listed: called with the number of images just found, while an image folder or a list is read: for a progress display.
        Default: None.

    Returns a Dataset; no image is decoded. Raises SourceError if nothing readable is at `path` or the number of records is not
    `records`, FormatError for a damaged file, UsageError for an unknown class or split, an empty list of paths and a `root`
    without a list, MissingDependencyError without obstore (object stores) or pyarrow (Parquet).
    Example: `data = headrace.open("photos/"); print(len(data), data.classes)`.
    """

    def opened(one: str | os.PathLike[str]) -> Dataset:
        if split is not None:
            return open_split(one, split, on_listed=on_listed)
        return open_stored(one, root, part=part, on_listed=on_listed)

    if not isinstance(path, str | os.PathLike):
        dataset = _open_all(path, opened)
    else:
        pipe = None if split is not None or is_url(path) else find_pipe(Path(path).expanduser().absolute())
        if pipe is not None:
            return _open_pipe(pipe, records, classes)
        dataset = opened(path)
    if classes is not None:
        dataset = of_classes(dataset, classes)
    if records not in (None, len(dataset)):
        raise SourceError(f"{dataset.root} has {len(dataset)} records, not {records}")
    return dataset


def _open_all(paths: Sequence[str | os.PathLike[str]], opener: Callable[[str | os.PathLike[str]], Dataset]) -> Dataset:
    """Open each of these paths, and return all records as one dataset."""
    if (
        not isinstance(paths, Iterable)
        or not (given := list(paths))
        or not all(isinstance(p, str | os.PathLike) for p in given)
    ):
        raise UsageError(f"open takes a path, a URL, or a list of these, not {paths!r}", hint='headrace.open(["a", "b"])')
    return joined([opener(one) for one in given])


def _open_pipe(pipe: Path, records: int | None, classes: Iterable[str] | None) -> Dataset:
    from headrace.datasets.sources.pipe import open_pipe

    if classes is not None:
        raise UsageError(f"{pipe} is a stream, whose classes cannot be chosen", hint="headrace pack --classes copies it first")
    return open_pipe(pipe, records)


def open_split(
    path: str | os.PathLike[str], split: str, *, list_unreadable: bool = False, on_listed: OnListed | None = None
) -> Dataset:
    """Open one of the splits below `path`; the labels of all are numbers of the classes of `train`.

    Raises UsageError for a name that is no split, SourceError if there is no such folder.
    """
    place = split_place(path, split)
    dataset = open_stored(place, list_unreadable=list_unreadable, empty_classes=split != TRAIN, on_listed=on_listed)
    if split == TRAIN or not dataset.classes:
        return dataset
    training = split_place(path, TRAIN)
    if not is_url(training) and not Path(training).is_dir():
        return dataset
    classes = open_stored(training, list_unreadable=True).classes
    return dataset if classes == dataset.classes else labelled_by(dataset, classes)


def open_stored(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    part: bool = False,
    list_unreadable: bool = False,
    empty_classes: bool = False,
    on_listed: OnListed | None = None,
) -> Dataset:
    """Open the dataset at `path` so that its records can be read in any order; a pipe is copied to the cache first.

    From an object store, records of packed datasets and of containers larger than the cache are fetched when they are
    read; other kinds are copied to the cache first. `list_unreadable`, `empty_classes`: see `open_folder`; other arguments and
    errors are those of `open`.
    """
    if root is not None:
        return _open_list_with_root(path, root, on_listed)
    if is_url(path):
        return _open_url(str(path), on_listed)
    if "*" in os.fspath(path) and not Path(path).exists():
        return _open_pattern(Path(path).expanduser().absolute())
    pipe = find_pipe(Path(path).expanduser().absolute())
    if pipe is not None:
        from headrace.datasets.sources.pipe import copy_pipe

        return copy_pipe(pipe)
    found = existing(path)
    if found.is_file():
        return _open_file(found, on_listed)
    if not found.is_dir():
        _check_all_regular([found])
    if is_packed(found) and not (part and not (found / INDEX).exists()):
        return open_shards(found, part=part)
    entries = sorted(entry for entry in found.iterdir() if not entry.is_dir()) if os.access(found, os.R_OK) else []
    for pattern, opener in _CONTAINERS:
        matching = [entry for entry in entries if pattern.fullmatch(entry.name)]
        if matching:
            _check_all_regular(matching)
            return opener(found, matching)
    return open_folder(found, list_unreadable=list_unreadable, empty_classes=empty_classes, on_listed=on_listed)


def _check_all_regular(files: Sequence[Path]) -> None:
    """Raise SourceError for a container that is a pipe, a device or a dangling link: it must not be left out silently."""
    for file in files:
        try:
            check_regular(file)
        except OSError as error:
            raise SourceError(
                f"cannot read {file}: {error.strerror}", hint="remove it, or put the file in its place"
            ) from error


def open_list(path: Path, root: Path | None = None, on_listed: OnListed | None = None) -> Dataset:
    """Open a list of images (one of LISTS); its paths are relative to `root`, by default the folder of the list."""
    return (open_lst if path.suffix == ".lst" else open_table)(path, root, on_listed)


def local_copy(url: str) -> Path:
    """Return the local copy of everything below the URL of an object store; make the copy if there is none.

    A plain web server cannot list its files: from one, the files that a packed dataset's manifest names are copied.
    """
    bucket = open_bucket(url)
    if not is_web(url):
        return _copied(bucket)
    manifest = read_manifest(_copied(bucket, _find_objects(bucket, [MANIFEST])))
    names = [MANIFEST, ERRORS, manifest.index.file, *(shard.file for shard in manifest.shards)]
    return _copied(bucket, _find_objects(bucket, names))


def _open_file(path: Path, on_listed: OnListed | None) -> Dataset:
    if path.suffix in LISTS:
        return open_list(path, on_listed=on_listed)
    for pattern, opener in _CONTAINERS:
        if pattern.fullmatch(path.name):
            return opener(path, [path])
    if path.name.endswith((".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")):
        raise SourceError(
            f"{path} is compressed: one image cannot be reached without unpacking all", hint="unpack it first (gunzip, unzstd)"
        )
    return open_folder(path)  # raises the error that names the layout of an image folder


def _open_pattern(pattern: Path) -> Dataset:
    files: Sequence[Path] = sorted(pattern.parent.glob(pattern.name))
    if not files:
        raise SourceError(f"no file matches {pattern}")
    for name, opener in _CONTAINERS:
        if all(name.fullmatch(file.name) for file in files):
            return opener(pattern, files)
    raise SourceError(f"{pattern} matches {files[0].name}, which is no container of images (.tar, .rec, .tfrecord)")


def _open_list_with_root(path: str | os.PathLike[str], root: str | os.PathLike[str], on_listed: OnListed | None) -> Dataset:
    if not os.fspath(path).endswith(LISTS):
        raise UsageError(f"root is the folder of the images of a list ({' '.join(LISTS)}); {path} is not a list")
    if is_url(path):
        return _open_list_url(str(path), root, on_listed)
    return open_list(existing(path), _local_root(root), on_listed)


def _open_url(url: str, on_listed: OnListed | None) -> Dataset:
    folder, _, name = url.rstrip("/").rpartition("/")
    if name.endswith(LISTS):
        return _open_list_url(url, None, on_listed)
    if any(pattern.fullmatch(name) for pattern, _ in _CONTAINERS):
        bucket = open_bucket(folder)
        index_names = [f"{name.removesuffix('.rec')}.idx"] if name.endswith(".rec") else []
        objects = _find_objects(bucket, [name, *index_names])
        if not objects:
            raise SourceError(f"{url} does not exist", hint="check the address")
        if (large := _open_larger_than_cache(bucket, objects)) is not None:
            return replace(large, root=url)
        return replace(open_stored(_copied(bucket, objects) / name), root=url)
    bucket = open_bucket(url)
    manifest = bucket.read(MANIFEST)
    if manifest is not None:
        from headrace.datasets.sources.remote.shards import open_remote_shards

        return open_remote_shards(bucket, manifest, _remote_cache())
    objects = bucket.list()
    if (large := _open_larger_than_cache(bucket, objects)) is not None:
        return large
    return replace(open_stored(_copied(bucket, objects), on_listed=on_listed), root=url)


def _open_list_url(url: str, root: str | os.PathLike[str] | None, on_listed: OnListed | None) -> Dataset:
    """Open the list at `url`. Without a `root`, everything beside the list is copied with it."""
    folder, _, name = url.rpartition("/")
    bucket = open_bucket(folder)
    objects = bucket.list() if root is None else _find_objects(bucket, [name])
    if all(entry.path != name for entry in objects):
        raise SourceError(f"{url} does not exist", hint="check the address")
    copy = _copied(bucket, objects)
    return replace(open_list(copy / name, None if root is None else _local_root(root), on_listed), root=url)


def _local_root(root: str | os.PathLike[str]) -> Path:
    """Return the folder of a list's images; one in an object store is copied."""
    return local_copy(str(root)) if is_url(root) else existing(root)


def _find_objects(bucket: Bucket, names: Sequence[str]) -> list[RemoteObject]:
    """Return those of the named objects that exist; a name may be a pattern with `*`."""
    if any("*" in name for name in names):  # other names are asked for one by one: a plain web server cannot list
        candidates = [entry for entry in bucket.list() if "/" not in entry.path]
        return [entry for entry in candidates if any(fnmatchcase(entry.path, name) for name in names)]
    return [entry for name in names if (entry := bucket.find(name)) is not None]


def _open_larger_than_cache(bucket: Bucket, objects: Sequence[RemoteObject]) -> Dataset | None:
    """Open the containers among `objects` by ranged reads if a copy of all objects would not fit into the cache."""
    from headrace.datasets.sources.remote.containers import open_remote_containers
    from headrace.datasets.sources.remote.eviction import cache_limit_bytes

    cache = _remote_cache()
    make_cache_folder(cache)
    if sum(entry.size for entry in objects) <= cache_limit_bytes(cache):
        return None
    for pattern, kind, scanner in _SCANNERS:
        matching = [entry for entry in objects if "/" not in entry.path and pattern.fullmatch(entry.path)]
        if matching:
            return open_remote_containers(bucket, matching, cache, kind, scanner)
    return None


def _copied(bucket: Bucket, objects: list[RemoteObject] | None = None) -> Path:
    """Return the cache's copy of these objects, by default of all."""
    from headrace.datasets.sources.remote.mirror import mirror

    return mirror(bucket, _remote_cache(), objects)


def _remote_cache() -> Path:
    return cache_folder() / "remote"
