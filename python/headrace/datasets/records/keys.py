"""Record keys as one column: a blob of UTF-8 and the start of each key. A tuple of str takes five times as much memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

from headrace._native import text_hashes

__all__ = ["Keys", "repeated_values"]

_CHUNK = 1 << 14  # keys that are worked on at a time


class Keys(Sequence[str]):
    """Record keys, stored as one UTF-8 blob and the start of each key; indexing decodes a key."""

    __slots__ = ("blob", "start")

    def __init__(self, blob: npt.NDArray[np.uint8], start: npt.NDArray[np.int64]) -> None:
        self.blob = blob  # uint8 [bytes of all keys]
        self.start = start  # int64 [n + 1]

    @staticmethod
    def of(keys: Iterable[str]) -> Keys:
        """Store these keys. Bytes of names that are not UTF-8 (lone surrogates in Python) are preserved."""
        blob, lengths, left = bytearray(), bytearray(), iter(keys)
        while chunk := [key.encode("utf-8", "surrogateescape") for key in islice(left, _CHUNK)]:
            blob += b"".join(chunk)
            lengths += np.array([len(key) for key in chunk], dtype=np.int64).tobytes()
        return Keys.of_lengths(blob, lengths)

    @staticmethod
    def of_lengths(blob: bytes | bytearray, lengths: bytes | bytearray) -> Keys:
        """Return the keys that stand in `blob` without separators. `lengths`: the bytes of each key (int64)."""
        sizes = np.frombuffer(lengths, dtype=np.int64)
        start = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=start[1:])
        return Keys(np.frombuffer(blob, dtype=np.uint8), start)

    @staticmethod
    def joined(parts: Sequence[Keys]) -> Keys:
        """Concatenate the keys of several datasets."""
        sizes = np.concatenate([np.diff(part.start) for part in parts])
        start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return Keys(np.concatenate([part.blob[part.start[0] : part.start[-1]] for part in parts]), start)

    def __len__(self) -> int:
        return len(self.start) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = int(index)
        i += len(self) if i < 0 else 0
        if not 0 <= i < len(self):
            raise IndexError(f"there is no record {index}: the dataset has {len(self)}")
        return self.blob[self.start[i] : self.start[i + 1]].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (key.decode("utf-8", "surrogateescape") for key in self.encoded())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def encoded(self) -> Iterator[bytes]:
        """Yield the bytes of each key."""
        for blob, start in self.chunks():
            data, places = blob.tobytes(), start.tolist()
            yield from (data[begin:end] for begin, end in pairwise(places))

    def chunks(self) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
        """Yield the keys in order, some at a time: their bytes joined (`blob`), and where each begins in them (`start`)."""
        for begin in range(0, len(self), _CHUNK):
            part = self.part(begin, begin + _CHUNK)
            yield part.blob, part.start

    def part(self, begin: int, end: int) -> Keys:
        """Return the keys from `begin` to `end`; they share the blob."""
        start = self.start[begin : end + 1]
        return Keys(self.blob[start[0] : start[-1]], start - start[0])

    def selected(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> Keys:
        """Return the keys at the positions `rows`, in the order of `rows`."""
        sizes = self.start[rows + 1] - self.start[rows]
        start = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(sizes, out=start[1:])
        blob = np.empty(int(start[-1]), dtype=np.uint8)
        for begin in range(0, len(rows), _CHUNK):  # the place of each byte takes 8 bytes
            some = slice(begin, begin + _CHUNK)
            ends = start[begin : begin + _CHUNK + 1]
            shift = self.start[rows[some]] - ends[:-1]
            blob[ends[0] : ends[-1]] = self.blob[np.arange(ends[0], ends[-1]) + np.repeat(shift, sizes[some])]
        return Keys(blob, start)

    def hashes(self, *, of_stems: bool = False) -> npt.NDArray[np.uint64]:
        """Return a 64-bit hash of each key, or with `of_stems` of the key without its file extension; uint64 [n]."""
        found = np.empty(len(self), dtype=np.uint64)
        for number, (blob, start) in enumerate(self.chunks()):
            values = np.frombuffer(text_hashes(blob, start, of_stems), dtype=np.uint64)
            found[number * _CHUNK : number * _CHUNK + len(values)] = values
        return found

    def are_unique(self) -> bool:
        """Return whether no key occurs twice."""
        counts = Counter(self[int(row)] for row in repeated_values(self.hashes()))
        return max(counts.values(), default=1) == 1


def repeated_values(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the positions, ascending, of all values that occur more than once."""
    order = np.sort(values)
    twice = order[1:][order[1:] == order[:-1]]
    if not len(twice):
        return np.zeros(0, dtype=np.int64)
    place = np.minimum(np.searchsorted(twice, values), len(twice) - 1)
    return np.flatnonzero(twice[place] == values)
