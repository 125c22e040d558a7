"""Image folders as torchvision's ImageFolder reads them: `root/CLASS/…/image.jpg`, classes by sorted folder name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.datasets.records import Dataset, RecordTable, fingerprint
from headrace.datasets.splits import holds_splits
from headrace.errors import SourceError
from headrace.system.regular_file import check_regular
from headrace.system.utf8 import utf8_name

__all__ = ["IMAGE_EXTENSIONS", "open_folder"]

# torchvision.datasets.folder.IMG_EXTENSIONS
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Other extensions of images, which ImageFolder ignores silently; headrace reports them.
_IGNORED_EXTENSIONS = (
    *(".gif", ".jfif", ".jpe", ".heic", ".heif", ".avif", ".jp2", ".jxl"),
    *(".pbm", ".pnm", ".dib", ".apng", ".hif", ".j2k", ".jpx", ".pcx", ".qoi", ".sgi", ".tga"),
)


def open_folder(root: Path, *, list_unreadable: bool = False) -> Dataset:
    """Open an image folder: the same classes, files and order as torchvision's `ImageFolder(root)`.

    list_unreadable: list dangling links, pipes and devices with an image's name among the strays. Default: False, an error.

    Raises SourceError if `root` has no class folders, no images, an empty class or an unreadable folder, or if it holds
    splits (`train` and `val` or `test`) with class folders inside them.
    """
    if not root.is_dir():
        raise SourceError(
            f"{root} is a file, not an image folder",
            hint="give the folder that holds one folder for each class: FOLDER/CLASS/image.jpg",
        )
    classes = tuple(sorted(entry.name for entry in _entries(root) if entry.is_dir()))
    if not classes:
        raise SourceError(_no_classes(root), hint="expected FOLDER/CLASS/image.jpg, one folder for each class")
    if holds_splits(root, classes):
        raise SourceError(
            f"{root} holds {len(classes)} datasets, not classes: {', '.join(classes)}",
            hint=f"give one of them, for example {root / 'train'}",
        )
    files, sizes, labels, strays, other_files = _listed(root, classes, list_unreadable=list_unreadable)
    prefix_length = len(os.path.join(root, ""))  # noqa: PTH118 (bytes of text, not a path)
    keys = tuple(path[prefix_length:] for path in files)
    ignored = tuple(path[prefix_length:] for path in strays)  # with words in brackets behind it where it cannot be read
    label_column = np.asarray(labels, dtype=np.int64)
    table = RecordTable(
        files=tuple(files),
        file=np.arange(len(files), dtype=np.int32),
        offset=np.zeros(len(files), dtype=np.int64),
        size=np.full(len(files), -1, dtype=np.int64),
        label=label_column,
        keys=keys,
    )
    mark = fingerprint(keys, np.asarray(sizes, dtype=np.int64), label_column)
    return Dataset(
        root=str(root),
        kind="folder",
        table=table,
        classes=tuple(map(utf8_name, classes)),
        fingerprint=mark,
        strays=ignored,
        other_files=other_files,
    )


def _listed(
    root: Path, classes: tuple[str, ...], *, list_unreadable: bool
) -> tuple[list[str], list[int], list[int], list[str], int]:
    """Return paths, sizes and labels of the images, the strays, and the number of other files. Raises as `open_folder`."""
    files: list[str] = []
    strays: list[str] = []
    others: list[int] = []
    sizes: list[int] = []
    labels: list[int] = []
    empty: list[str] = []
    for label, name in enumerate(classes):
        before = len(files)
        for path, size in _images(root / name, strays, others, list_unreadable=list_unreadable):
            files.append(path)
            sizes.append(size)
            labels.append(label)
        if len(files) == before:
            empty.append(name)
    if not files:
        raise SourceError(
            f"no images in {root}: {len(classes)} class folders, none holds a file ending in {' '.join(IMAGE_EXTENSIONS)}",
            hint="check the path: it must be the folder above the class folders",
        )
    if empty:
        raise SourceError(
            f"class folders without images in {root}: {', '.join(empty[:5])}{' …' if len(empty) > 5 else ''}",
            hint="add images or remove the empty folders (torchvision's ImageFolder refuses them too)",
        )
    return files, sizes, labels, strays, sum(others)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise SourceError(f"cannot list {folder}: {error.strerror}", hint=f"check the permissions:  ls -ld {folder}") from error


def _images(folder: Path, strays: list[str], others: list[int], *, list_unreadable: bool) -> Iterator[tuple[str, int]]:
    """Yield path and size in bytes of each image below `folder`, in ImageFolder's order (by folder, then by name).

    Images that ImageFolder ignores are added to `strays`, the number of other files to `others`.
    """

    def fail(error: OSError) -> None:
        raise SourceError(f"cannot list {error.filename}: {error.strerror}", hint="check the permissions") from error

    found = list[tuple[str, list[str]]]()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        for name in folders:
            _refuse_loop(parent, name)
        found.append((parent, names))
    for parent, names in sorted(found):
        others.append(sum(not name.lower().endswith((*IMAGE_EXTENSIONS, *_IGNORED_EXTENSIONS)) for name in names))
        for name in sorted(names):
            if name.lower().endswith(IMAGE_EXTENSIONS):
                path = os.path.join(parent, name)  # noqa: PTH118 (a million Path objects are slow)
                try:
                    yield path, check_regular(path).st_size
                except OSError as error:
                    if not list_unreadable:
                        hint = "remove it, or repair the broken link"
                        raise SourceError(f"cannot read {path}: {error.strerror}", hint=hint) from error
                    strays.append(f"{path} ({error.strerror})")
            elif name.lower().endswith(_IGNORED_EXTENSIONS):
                strays.append(os.path.join(parent, name))  # noqa: PTH118 (as above)


def _refuse_loop(parent: str, name: str) -> None:
    """Raise SourceError for a link to a folder above it, which makes an endless loop."""
    path = os.path.join(parent, name)  # noqa: PTH118 (as above)
    if os.path.islink(path) and f"{os.path.realpath(parent)}/".startswith(f"{os.path.realpath(path).rstrip('/')}/"):  # noqa: PTH114
        raise SourceError(f"{path} is a link to a folder above it: following it would never end", hint="remove the link")


def _no_classes(root: Path) -> str:
    images = [entry.name for entry in _entries(root) if entry.name.lower().endswith(IMAGE_EXTENSIONS)]
    if images:
        return f"{root} holds {len(images)} images but no class folders (first: {images[0]})"
    return f"{root} holds no class folders and no images"
