"""One unit of work: source records become tar members in one shard, and rows of the index."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from headrace import _native
from headrace.errors import DecodeError, SourceError
from headrace.packing.listing import Listing, Rejection
from headrace.packing.lossless import Recoder
from headrace.packing.options import PackOptions
from headrace.shards import tar
from headrace.shards.index import Columns, Keys

_FLUSH = 1 << 20  # bytes that are written and digested at once
_DIGESTS = 16  # pieces that wait for their digest before writing waits for it

__all__ = ["Packed", "UnitWriter", "pack_record"]


@dataclass(frozen=True, slots=True)
class Packed:
    """A record ready to be written: its members' bytes, and its row of the index."""

    at: int  # position in the listing
    header: bytes
    data: bytes
    tail: bytes  # padding, then the label's member, then the JSON's if there is one
    width: int
    height: int
    crc32c: int
    json_at: int  # bytes from the header's start to the JSON
    json_size: int  # 0 = it has none


def pack_record(listing: Listing, recode: Recoder, at: int) -> Packed | Rejection:
    """Reads and recodes the record at position `at` of the listing. Safe to call from several threads."""
    row = int(listing.rows[at])
    try:
        image = recode(listing.dataset.read(row))
        json = listing.dataset.read_json(row)
    except SourceError as error:
        # Not the message: it holds the absolute path, which must not enter the dataset.
        cause = error.__cause__
        words = cause.strerror if isinstance(cause, OSError) and cause.strerror else "shorter than the source's index says"
        return Rejection(listing.name(at), "unreadable", words)
    except DecodeError as error:
        return Rejection(listing.name(at), "undecodable", str(error))
    key = listing.keys[at]
    extension = image.extension or _extension(listing.name(at))
    header = tar.header(f"{key}.{extension}", len(image.data))
    tail = tar.padding(len(image.data)) + tar.member(f"{key}.cls", b"%d" % listing.labels[at])
    json_at = 0
    if json:
        tail += tar.header(f"{key}.json", len(json))
        json_at = len(header) + len(image.data) + len(tail)
        tail += json + tar.padding(len(json))
    crc32c = _native.crc32c(image.data)
    return Packed(at, header, image.data, tail, image.width, image.height, crc32c, json_at, len(json))


def _extension(name: str) -> str:
    """The name's own, for images whose bytes do not tell their format."""
    return name.rpartition("/")[2].rpartition(".")[2].lower() if "." in name else "image"


class UnitWriter:
    """Writes one unit's shard and collects its part of the index."""

    def __init__(self, file: BinaryIO, listing: Listing, digester: Executor) -> None:
        self.file, self.listing = file, listing
        self.digester = digester  # one thread, so that pieces are digested in their order
        self.digest = hashlib.sha256()
        self.pieces: list[bytes] = []  # not yet written
        self.waiting: deque[Future[None]] = deque()
        self.size = 0  # bytes, with those not yet written
        self.written = 0
        self.seen = 0  # records, packed or rejected
        self.rows: list[tuple[int, ...]] = []  # at, offset, size, width, height, crc32c, JSON's offset and size
        self.rejected: list[Rejection] = []

    def add(self, outcome: Sequence[Packed | Rejection], options: PackOptions) -> None:
        """Writes packed records, notes rejected ones. Raises DecodeError for these when the options say stop."""
        self.seen += len(outcome)
        for one in outcome:
            if isinstance(one, Rejection):
                if options.undecodable == "stop":
                    raise DecodeError(
                        f"{one.file}: {one.detail}",
                        key=one.file,
                        hint="repair or remove it and give the same command again, or:  --undecodable skip",
                    )
                self.rejected.append(one)
                continue
            offset = self.size + len(one.header)
            json = (self.size + one.json_at, one.json_size) if one.json_size else (0, 0)
            self.rows.append((one.at, offset, len(one.data), one.width, one.height, one.crc32c, *json))
            self._write(one.header, one.data, one.tail)

    def end(self) -> str:
        """Ends the archive; returns its SHA-256."""
        self._write(tar.END)
        self._flush()
        while self.waiting:
            self.waiting.popleft().result()
        return self.digest.hexdigest()

    def columns(self) -> Columns | None:
        """The unit's part of the index, or None when it has no records."""
        if not self.rows:
            return None
        at, offset, size, width, height, crc32c, json_offset, json_size = np.array(self.rows, dtype=np.int64).T
        keys = Keys.of([self.listing.keys[i] for i in at])
        return Columns(
            key_start=keys.start,
            label=self.listing.labels[at],
            offset=offset,
            size=size,
            height=height.astype(np.int32),
            shard=np.zeros(len(at), dtype=np.int32),  # the commit fills it in
            width=width.astype(np.int32),
            crc32c=crc32c.astype(np.uint32),
            keys=keys.blob,
            json_offset=json_offset if json_size.any() else None,
            json_size=json_size if json_size.any() else None,
        )

    def _write(self, *pieces: bytes) -> None:
        self.pieces += pieces
        self.size += sum(map(len, pieces))
        if self.size - self.written >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self.pieces)
        self.waiting.append(self.digester.submit(self.digest.update, data))
        if len(self.waiting) > _DIGESTS:
            self.waiting.popleft().result()
        self.file.write(data)
        self.written = self.size
        self.pieces.clear()
