"""One unit: source records become tar members of one shard, and rows of the index."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO

import numpy as np

from headrace._native import crc32c as native_crc32c
from headrace._native import pack_records
from headrace.datasets.records.sidecar_files import SidecarFile, SidecarFiles
from headrace.datasets.records.table import SYSTEM_ERRORS
from headrace.datasets.shards import tar
from headrace.datasets.shards.index import Columns
from headrace.errors import DecodeError, SourceError
from headrace.packing.encoding.image_encoder import ImageEncoder
from headrace.packing.planning.listing import Listing, Rejection
from headrace.packing.planning.options import PackOptions
from headrace.system.text.size_limits import record_limit

_FLUSH = 1 << 20  # bytes of one write and one digest update
_DIGESTS = 4  # most pieces that wait for their digest; writing waits then

__all__ = ["PackedRecords", "UnitWriter", "pack_chunk", "pack_record"]


@dataclass(frozen=True, slots=True)
class PackedRecords:
    """Packed consecutive records, ready to be written."""

    first: int  # position of the first record in the listing
    members: bytes | memoryview  # tar members of all records
    # For each record: the image's offset in `members`, size, width, height and CRC-32C, and the JSON's offset and size
    # (0: the record has no JSON).
    rows: Sequence[tuple[int, int, int, int, int, int, int]]
    sidecars: Sequence[SidecarFile] = ()  # of a single record; offsets in `members`
    unmarked: int = 0  # JPEGs that keep their bytes because restart markers cannot be written


def pack_chunk(listing: Listing, encoder: ImageEncoder, positions: range) -> list[PackedRecords | Rejection]:
    """Read and encode the records at these positions of the listing. Safe to call from several threads."""
    fetcher, in_files = listing.dataset.fetcher, True
    if fetcher is not None:
        # `wait` returns bytes if the cache holds only a part of the dataset; its files then have holes.
        in_files = fetcher.begin(listing.rows[positions.start : positions.stop]).wait() is None
    found: list[PackedRecords | Rejection] = []
    at = positions.start
    sidecars = listing.dataset.table.sidecars if encoder.keeps_sidecars else None
    with_sidecars = sidecars is not None and sidecars.of_records(listing.rows[positions.start : positions.stop]).any()
    for number, members, rows in _pack_natively(listing, encoder, positions) if in_files and not with_sidecars else []:
        first = positions.start + number
        found += [pack_record(listing, encoder, i) for i in range(at, first)]
        found.append(PackedRecords(first, members, rows))
        at = first + len(rows)
    found += [pack_record(listing, encoder, i) for i in range(at, positions.stop)]
    return found


def _pack_natively(
    listing: Listing, encoder: ImageEncoder, positions: range
) -> list[tuple[int, memoryview, list[tuple[int, int, int, int, int, int, int]]]]:
    """Pack with native code those of these records that it supports: intact, ordinary JPEGs."""
    chosen = slice(positions.start, positions.stop)
    if encoder.native is None or listing.sizes[chosen].max(initial=0) > record_limit():
        return []
    table, rows = listing.dataset.table, listing.rows[chosen]
    nothing = np.zeros(len(rows), dtype=np.int64)
    json = [nothing if column is None else column[rows] for column in (table.json_offset, table.json_size)]
    columns = (table.offset[rows], table.size[rows], *json)
    records = zip(
        [table.files[file] for file in table.file[rows].tolist()],
        *(column.tolist() for column in columns),
        listing.keys[chosen],
        listing.labels[chosen].tolist(),
        strict=True,
    )
    return pack_records(encoder.native, list(records))


def pack_record(listing: Listing, encoder: ImageEncoder, at: int) -> PackedRecords | Rejection:
    """Read and encode one record of any kind. Safe to call from several threads."""
    row = int(listing.rows[at])
    try:
        image = encoder.encode(listing.dataset.read(row))
        json = listing.dataset.read_json(row)
        sidecars = listing.dataset.read_extras(row) if encoder.keeps_sidecars else []
    except SourceError as error:
        # The message holds the absolute path, which must not enter the dataset.
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in SYSTEM_ERRORS:
            raise
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else "shorter than the source's index says"
        return Rejection(listing.name(at), "unreadable", reason)
    except DecodeError as error:
        return Rejection(listing.name(at), "undecodable", str(error))
    key = listing.keys[at]
    extension = image.extension or _own_extension(listing, at) or image.format
    header = tar.header(f"{key}.{extension}", len(image.data))
    tail = tar.padding(len(image.data)) + tar.member(f"{key}.cls", b"%d" % listing.labels[at])
    json_at = 0
    if json:
        tail += tar.header(f"{key}.json", len(json))
        json_at = len(header) + len(image.data) + len(tail)
        tail += json + tar.padding(len(json))
    placed: list[SidecarFile] = []
    for name, data in sidecars:
        while name in (extension, "cls", "json", *(taken for taken, _, _ in placed)):
            name = f"other.{name}"  # the image's extension follows from its bytes and may be another one than its file's
        tail += tar.header(f"{key}.{name}", len(data))
        placed.append((name, len(header) + len(image.data) + len(tail), len(data)))
        tail += data + tar.padding(len(data))
    facts = (len(header), len(image.data), image.width, image.height, native_crc32c(image.data), json_at, len(json))
    return PackedRecords(at, header + image.data + tail, [facts], placed, int(image.is_unmarked))


def _own_extension(listing: Listing, at: int) -> str:
    """Return the extension of the record's file, for images of unknown format; "" if the record is no file."""
    return PurePosixPath(listing.name(at)).suffix[1:].lower() if listing.dataset.kind in ("folder", "lst") else ""


class UnitWriter:
    """The writer of one unit's shard and its part of the index."""

    def __init__(self, file: BinaryIO, listing: Listing, digester: Executor) -> None:
        self.file, self.listing = file, listing
        self.digester = digester  # one thread, so that pieces are digested in order
        self.digest = hashlib.sha256()
        self.pieces: list[bytes | memoryview] = []  # not yet written
        self.waiting: deque[Future[None]] = deque()
        self.size = 0  # bytes, including those not yet written
        self.written = 0
        self.seen = 0  # records, packed or rejected
        self.rows: list[tuple[int, ...]] = []  # position, offset, size, width, height, crc32c, JSON's offset and size
        self.sidecars: list[list[SidecarFile]] = []  # of each row
        self.rejected: list[Rejection] = []
        self.unmarked = 0  # JPEGs without restart markers, where they were wanted

    def add(self, outcome: Sequence[PackedRecords | Rejection], options: PackOptions) -> int:
        """Write packed records and collect rejected ones; return the number of both together.

        Raises DecodeError for a rejected record if the options say "stop".
        """
        before = self.seen
        for one in outcome:
            if isinstance(one, PackedRecords):
                self.seen += len(one.rows)
                self.unmarked += one.unmarked
                self._add(one)
                continue
            self.seen += 1
            if options.undecodable == "stop":
                raise DecodeError(
                    f"{one.file}: {one.detail}",
                    key=one.file,
                    hint="repair or remove it and give the same command again, or:  --undecodable skip",
                )
            self.rejected.append(one)
        return self.seen - before

    def _add(self, run: PackedRecords) -> None:
        for at, (offset, size, width, height, crc32c, json_at, json_size) in enumerate(run.rows, run.first):
            json_offset = self.size + json_at if json_size else 0
            self.rows.append((at, self.size + offset, size, width, height, crc32c, json_offset, json_size))
            self.sidecars.append([(name, self.size + begin, length) for name, begin, length in run.sidecars])
        self._write(run.members)

    def end(self) -> str:
        """End the archive; return its SHA-256."""
        self._write(tar.END)
        self._flush()
        while self.waiting:
            self.waiting.popleft().result()
        return self.digest.hexdigest()

    def columns(self) -> Columns | None:
        """Return the unit's part of the index, or None without records."""
        if not self.rows:
            return None
        at, offset, size, width, height, crc32c, json_offset, json_size = np.array(self.rows, dtype=np.int64).T
        keys = self.listing.keys.selected(at)
        return Columns(
            key_start=keys.start,
            label=self.listing.labels[at],
            offset=offset,
            size=size,
            height=height.astype(np.int32),
            shard=np.zeros(len(at), dtype=np.int32),  # set at the commit
            width=width.astype(np.int32),
            crc32c=crc32c.astype(np.uint32),
            keys=keys.blob,
            json_offset=json_offset if json_size.any() else None,
            json_size=json_size if json_size.any() else None,
            sidecars=SidecarFiles.of(self.sidecars),
        )

    def _write(self, data: bytes | memoryview) -> None:
        self.pieces.append(data)
        self.size += len(data)
        if self.size - self.written >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.waiting.append(self.digester.submit(self.digest.update, data))
        if len(self.waiting) > _DIGESTS:
            self.waiting.popleft().result()
        self.file.write(data)
        self.written = self.size
        self.pieces.clear()
