"""Containers that trials read: tar shards of WebDataset's kind, MXNet's RecordIO, TensorFlow's TFRecord.

Formats: WebDataset (POSIX tar; the members of one key stand beside each other); dmlc-core `recordio.h` and MXNet's
`recordio.py` for the header of an image; TensorFlow's `record_writer.h` and `example.proto`.
"""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

from headrace.datasets.sources.archives.tfrecord_writer import field, record, varint
from headrace.errors import UsageError

__all__ = ["write_container"]

RECORDIO_MAGIC = 0xCED7230A


def write_container(form: str, tree: Path, target: Path) -> Path:
    """Write the images of `tree` (`CLASS/image`) to one container file below the folder `target`, and return the file.

    form: "tar", "recordio" or "tfrecord". Raises `UsageError` for another.
    """
    writers = {"tar": (_tar, "images.tar"), "recordio": (_recordio, "images.rec"), "tfrecord": (_tfrecord, "images.tfrecord")}
    if form not in writers:
        raise UsageError(f"there is no container {form!r}", hint=f"known: {', '.join(writers)}")
    write, name = writers[form]
    write(tree, target / name)
    return target / name


def _images(tree: Path) -> Iterator[tuple[int, str, bytes]]:
    """Yield label, key and bytes of each image, in an order that mixes the classes."""
    classes = sorted(entry.name for entry in tree.iterdir() if entry.is_dir())
    files = [(label, file) for label, name in enumerate(classes) for file in (tree / name).iterdir()]
    for number, (label, file) in enumerate(sorted(files, key=lambda item: item[1].name)):
        yield label, f"{number:07d}", file.read_bytes()


def _tar(tree: Path, target: Path) -> None:
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for label, key, image in _images(tree):
            for name, data in ((f"{key}.jpg", image), (f"{key}.cls", str(label).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def _recordio(tree: Path, target: Path) -> None:
    """Write `target` and its index `images.idx`: key, tab, offset."""
    with open(target, "wb") as records, open(target.with_suffix(".idx"), "w", encoding="ascii") as index:
        for number, (label, _, image) in enumerate(_images(tree)):
            body = struct.pack("<IfQQ", 0, float(label), number, 0) + image
            index.write(f"{number}\t{records.tell()}\n")
            # The format splits a body at the magic number on a multiple of four bytes; readers that follow the length, as all
            # with an index do, need no split, and one in 200,000 photographs holds it.
            records.write(struct.pack("<II", RECORDIO_MAGIC, len(body)) + body + bytes(-len(body) % 4))


def _tfrecord(tree: Path, target: Path) -> None:
    with open(target, "wb") as records:
        for label, _, image in _images(tree):
            features = _feature(b"image/encoded", field(1, field(1, image)))
            features += _feature(b"image/class/label", field(3, field(1, varint(label))))
            example = field(1, features)
            records.write(record(example))


def _feature(name: bytes, value: bytes) -> bytes:
    return field(1, field(1, name) + field(2, value))
