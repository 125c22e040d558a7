"""Writers of tar, RecordIO and TFRecord files. No writer shares code with headrace's readers."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path

import headrace
from headrace import _native
from sample_images import jpeg

IMAGES = [jpeg(40 + i, 30 + i, i) for i in range(6)]
LABELS = [2, 0, 1, 1, 0, 2]
EXPECTED = list(zip(IMAGES, LABELS, strict=True))
"""Image bytes and label of each record."""


def write_tar(path: Path, members: Sequence[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def webdataset_members(count: int = 6) -> list[tuple[str, bytes]]:
    return [member for i in range(count) for member in ((f"{i:06d}.jpg", IMAGES[i]), (f"{i:06d}.cls", str(LABELS[i]).encode()))]


def recordio(data: bytes) -> bytes:
    """Return one RecordIO record, split at each magic number in its data at a multiple of four (dmlc-core `RecordIOWriter`)."""
    magic = struct.pack("<I", 0xCED7230A)
    cuts = [at for at in range(0, len(data) - 3, 4) if data[at : at + 4] == magic]
    begins, ends = [0, *(at + 4 for at in cuts)], [*cuts, len(data)]
    out = b""
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        last = number == len(begins) - 1
        flag = 0 if not cuts else 1 if number == 0 else 3 if last else 2
        out += magic + struct.pack("<I", flag << 29 | end - begin) + data[begin:end]
        out += bytes(-(end - begin) % 4)
    return out


def image_record(image: bytes, label: float, number: int, *, flag: int = 0) -> bytes:
    labels = struct.pack(f"<{flag}f", *[label] * flag)
    return recordio(struct.pack("<IfQQ", flag, label if flag == 0 else 0.0, number, 0) + labels + image)


def write_rec(path: Path, records: list[bytes], *, index: bool = True) -> Path:
    at, lines = 0, []
    for number, record in enumerate(records):
        lines.append(f"{number + 10}\t{at}\n")
        at += len(record)
    path.write_bytes(b"".join(records))
    if index:
        path.with_suffix(".idx").write_text("".join(lines))
    return path


def tfrecord(data: bytes) -> bytes:
    def masked(raw: bytes) -> bytes:
        crc = _native.crc32c(raw)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(**features: bytes | int) -> bytes:
    entries = b""
    for name, value in features.items():
        kind = field(1, field(1, value)) if isinstance(value, bytes) else field(3, field(1, varint(value)))
        entries += field(1, field(1, name.replace("__", "/").encode()) + field(2, kind))
    return field(1, entries)


def image_examples() -> list[bytes]:
    return [
        example(image__class__label=label, image__encoded=image, image__filename=b"n0%d/photo%d.JPEG" % (label, i))
        for i, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True))
    ]


def contents(dataset: headrace.Dataset) -> list[tuple[bytes, int]]:
    return [(dataset.read(i), int(dataset.table.label[i])) for i in range(len(dataset))]
