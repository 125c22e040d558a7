"""Image folders: `root/CLASS/…/image.jpg`, classes by sorted folder name as in torchvision's ImageFolder, or images alone.

Hidden folders (`.ipynb_checkpoints`, `.git`) and `__MACOSX` of a Mac's archives are ignored; ImageFolder reads them.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headrace._native import change_number, list_images
from headrace.datasets.records.dataset import Dataset, fingerprint
from headrace.datasets.records.file_paths import FilesBelow
from headrace.datasets.records.keys import Keys
from headrace.datasets.records.splits import holds_splits
from headrace.datasets.records.table import RecordTable
from headrace.errors import SourceError
from headrace.system.files.regular_file import check_regular
from headrace.system.text.utf8 import utf8_name

__all__ = [
    "IMAGE_EXTENSIONS",
    "THREADS",
    "OnListed",
    "change_of_file",
    "counted",
    "open_folder",
    "walked",
]

OnListed = Callable[[int], None]
"""Progress callback while a source is listed: takes the number of images found since its last call."""
_COUNTED = 1 << 12  # images of a list between two calls of it

# torchvision.datasets.folder.IMG_EXTENSIONS
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Other extensions of images, which ImageFolder ignores silently; headrace reports them.
_IGNORED_EXTENSIONS = (
    *(".gif", ".jfif", ".jpe", ".heic", ".heif", ".avif", ".jp2", ".jxl"),
    *(".pbm", ".pnm", ".dib", ".apng", ".hif", ".j2k", ".jpx", ".pcx", ".qoi", ".sgi", ".tga"),
)
THREADS = 16
"""Folders that are listed at a time: a network file system answers each request after a wait."""
_MOST_LINKS = 100  # that lead from one class to the same folder
_Item = TypeVar("_Item")
_SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that is not UTF-8


def open_folder(
    root: Path, *, list_unreadable: bool = False, empty_classes: bool = False, on_listed: OnListed | None = None
) -> Dataset:
    """Open an image folder: the same classes, files and order as torchvision's `ImageFolder(root)`, without hidden folders.

    A folder of images without class folders is a dataset without classes: all its labels are -1.

    list_unreadable: list dangling links, pipes and devices with an image's name among the strays. Default: False, an error.
    empty_classes: open a folder with classes that hold no image. Default: False, an error as in ImageFolder.
    on_listed: called with the number of images just listed, from one thread. Default: None.

    Raises SourceError if `root` has no images, an empty class or an unreadable folder, or if it holds splits (`train` and
    `val` or `test`) with class folders inside them.
    """
    if not root.is_dir():
        raise SourceError(
            f"{root} is a file, not an image folder",
            hint="give the folder that holds one folder for each class: FOLDER/CLASS/image.jpg",
        )
    folders = sorted(entry.name for entry in _entries(root) if entry.is_dir())
    classes = tuple(name for name in folders if not is_ignored(name))
    if not classes:
        return _open_flat(root, list_unreadable=list_unreadable, on_listed=on_listed)
    if holds_splits(root, classes):
        raise SourceError(
            f"{root} holds {len(classes)} datasets, not classes: {', '.join(classes)}",
            hint=f'give one of them, for example {root / "train"}; headrace.open(…, split="train")',
        )
    names, lengths, sizes, changes = bytearray(), bytearray(), bytearray(), bytearray()
    strays: list[str] = []
    ignored = [name for name in folders if is_ignored(name)]
    others = 0
    counts: list[int] = []
    with _listed_classes(root, classes, list_unreadable=list_unreadable) as listed:
        for images in listed:
            names += images.names
            lengths += images.lengths
            sizes += images.sizes
            changes += images.changes
            strays += images.strays
            ignored += images.ignored
            others += images.others
            counts.append(len(images.sizes) // 8)
            if on_listed is not None:
                on_listed(counts[-1])
    _refuse_empty(root, classes, counts, empty_classes=empty_classes)
    label, keys = np.repeat(np.arange(len(classes)), counts), Keys.of_lengths(names, lengths)
    found = _dataset(root, classes, label, keys, sizes, changes, strays)
    return replace(found, other_files=others, ignored_folders=tuple(ignored))


def is_ignored(name: str) -> bool:
    """Return whether a folder of this name is no class: hidden, or what archives from a Mac bring."""
    return name.startswith(".") or name == "__MACOSX"


def _open_flat(root: Path, *, list_unreadable: bool, on_listed: OnListed | None) -> Dataset:
    """Open a folder of images without class folders. Raise SourceError for no images."""
    found = _looked_at(root, root, list_unreadable=list_unreadable)
    keys = Keys.of_lengths(found.names, found.lengths)
    if not keys:
        raise SourceError(
            f"{root} holds no class folders and no images", hint="expected FOLDER/CLASS/image.jpg, or images in FOLDER itself"
        )
    if on_listed is not None:
        on_listed(len(keys))
    label = np.full(len(keys), -1, dtype=np.int64)
    flat = _dataset(root, (), label, keys, bytearray(found.sizes), bytearray(found.changes), found.strays)
    return replace(flat, other_files=found.others, ignored_folders=tuple(found.ignored))


def _refuse_empty(root: Path, classes: Sequence[str], counts: Sequence[int], *, empty_classes: bool) -> None:
    """Raise SourceError if there is no image, or a class has none."""
    if not any(counts):
        raise SourceError(
            f"no images in {root}: {len(classes)} class folders, none holds a file ending in {' '.join(IMAGE_EXTENSIONS)}",
            hint="check the path: it must be the folder above the class folders",
        )
    empty = [name for name, count in zip(classes, counts, strict=True) if not count]
    if empty and not empty_classes:
        raise SourceError(
            f"class folders without images in {root}: {', '.join(empty[:5])}{' …' if len(empty) > 5 else ''}",
            hint="add images or remove the empty folders (torchvision's ImageFolder refuses them too)",
        )


def _dataset(
    root: Path,
    classes: Sequence[str],
    label: npt.NDArray[np.int64],
    keys: Keys,
    sizes: bytearray,
    changes: bytearray,
    strays: Sequence[str],
) -> Dataset:
    file_size = np.frombuffer(sizes, dtype=np.int64)
    table = RecordTable(
        files=FilesBelow(os.path.join(root, ""), keys),  # noqa: PTH118 (a text that ends in a slash)
        file=np.arange(len(keys), dtype=np.int32),
        offset=np.zeros(len(keys), dtype=np.int64),
        size=np.full(len(keys), -1, dtype=np.int64),
        label=label,
        keys=keys,
        file_size=file_size,
        file_change=np.frombuffer(changes, dtype=np.int64),
    )
    mark = fingerprint(keys, file_size, label)
    names = tuple(map(utf8_name, classes))
    return Dataset(root=str(root), kind="folder", table=table, classes=names, fingerprint=mark, strays=tuple(strays))


def counted(items: Iterator[_Item], on_listed: OnListed | None) -> Iterator[_Item]:
    """Yield the items, and report how many came."""
    count = 0
    for item in items:
        yield item
        count += 1
        if count == _COUNTED and on_listed is not None:
            on_listed(count)
            count = 0
    if count and on_listed is not None:
        on_listed(count)


@dataclass(frozen=True, slots=True)
class _Images:
    """The images of a class, in ImageFolder's order. Names and strays begin with the class; other columns are int64."""

    names: bytes  # one after the other
    lengths: bytes  # of the names, in bytes
    sizes: bytes  # of the files, in bytes
    changes: bytes  # `change_of_file`
    strays: Sequence[str]  # with words in brackets behind it where it cannot be read
    others: int  # files of other endings
    ignored: Sequence[str] = ()  # folders that are not entered; the native listing declines where there are any


@contextlib.contextmanager
def _listed_classes(root: Path, classes: Sequence[str], *, list_unreadable: bool) -> Iterator[Iterator[_Images]]:
    """Yield the images of each class, in order. Several folders are listed at a time."""

    def listed(name: str) -> _Images:
        folder = root / name
        quick = list_images(folder, name, IMAGE_EXTENSIONS, _IGNORED_EXTENSIONS) if _is_utf8(name) else None
        return _Images(*quick) if quick is not None else _looked_at(folder, root, list_unreadable=list_unreadable)

    with ThreadPoolExecutor(min(THREADS, len(classes)), thread_name_prefix="headrace-list") as pool:
        try:
            yield pool.map(listed, classes)
        finally:
            pool.shutdown(cancel_futures=True)


def _is_utf8(name: str) -> bool:
    """Return whether native code sees the same name as Python."""
    return not _SURROGATE.search(name) and sys.getfilesystemencoding() == "utf-8"


def _looked_at(folder: Path, root: Path, *, list_unreadable: bool) -> _Images:
    """Return the images of a class that the native listing declines: their names, links or errors need a closer look."""
    strays: list[str] = []
    others: list[int] = []
    ignored: list[str] = []
    found = list(_images(folder, strays, others, ignored, list_unreadable=list_unreadable))
    prefix_length = len(os.path.join(root, ""))  # noqa: PTH118 (bytes of text, not a path)
    names = [os.fsencode(path[prefix_length:]) for path, _ in found]
    return _Images(
        names=b"".join(names),
        lengths=np.array([len(name) for name in names], dtype=np.int64).tobytes(),
        sizes=np.array([facts.st_size for _, facts in found], dtype=np.int64).tobytes(),
        changes=np.array([change_of_file(facts) for _, facts in found], dtype=np.int64).tobytes(),
        strays=[path[prefix_length:] for path in strays],
        others=sum(others),
        ignored=[path[prefix_length:] for path in ignored],
    )


def change_of_file(facts: os.stat_result, *, copied: bool = False) -> int:
    """Return a number that changes with the file. No inode: some mounts of object stores number files anew each time.

    copied: the file is a copy from an object store. Its modification time is its object's; its ctime is that of the copy.
    """
    return change_number(_int64(facts.st_mtime_ns), 0 if copied else _int64(facts.st_ctime_ns))


def _int64(number: int) -> int:
    """Return the lowest 64 bits, for times that a file system makes up."""
    return (number + 2**63) % 2**64 - 2**63


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise SourceError(f"cannot list {folder}: {error.strerror}", hint=f"check the permissions:  ls -ld {folder}") from error


def _images(
    folder: Path, strays: list[str], others: list[int], ignored: list[str], *, list_unreadable: bool
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and facts of each image below `folder`, in ImageFolder's order (by folder, then by name).

    Images that ImageFolder ignores are added to `strays`, the number of other files to `others`, and folders that are not
    entered to `ignored`.
    """

    for parent, names in sorted(walked(folder, ignored)):
        others.append(sum(not name.lower().endswith((*IMAGE_EXTENSIONS, *_IGNORED_EXTENSIONS)) for name in names))
        for name in sorted(names):
            if name.lower().endswith(IMAGE_EXTENSIONS):
                path = os.path.join(parent, name)  # noqa: PTH118 (a million Path objects are slow)
                try:
                    yield path, check_regular(path)
                except OSError as error:
                    if not list_unreadable:
                        hint = "remove it, or repair the broken link"
                        raise SourceError(f"cannot read {path}: {error.strerror}", hint=hint) from error
                    strays.append(f"{path} ({error.strerror})")
            elif name.lower().endswith(_IGNORED_EXTENSIONS):
                strays.append(os.path.join(parent, name))  # noqa: PTH118 (as above)


def walked(folder: str | os.PathLike[str], ignored: list[str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder from `folder` down, and the names of its files. Links to folders are followed.

    ignored: gets the folders that `is_ignored`, which are not entered. Default: None, all are entered.

    Raises SourceError for a folder that cannot be listed, and for links that never end: one to a folder above it, or folders
    of two links to the next one, which are 2^40 paths after forty.
    """

    def fail(error: OSError) -> None:
        raise SourceError(f"cannot list {error.filename}: {error.strerror}", hint="check the permissions") from error

    met = Counter[str]()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        if ignored is not None:
            hidden = [name for name in folders if is_ignored(name)]
            ignored += [os.path.join(parent, name) for name in sorted(hidden)]  # noqa: PTH118 (as above)
            folders[:] = [name for name in folders if name not in hidden]
        for name in folders:
            path = os.path.join(parent, name)  # noqa: PTH118 (as above)
            if not os.path.islink(path):  # noqa: PTH114
                continue
            target = os.path.realpath(path)
            met[target] += 1
            if f"{os.path.realpath(parent)}/".startswith(f"{target.rstrip('/')}/"):
                what = "a folder above it"
            elif met[target] > _MOST_LINKS:
                what = f"a folder that is met more than {_MOST_LINKS} times"
            else:
                continue
            raise SourceError(f"{path} is a link to {what}: following it would never end", hint="remove the link")
        yield parent, names
