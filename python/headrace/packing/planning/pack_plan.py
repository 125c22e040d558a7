"""The pack plan: which records each unit writes into its shard.

The plan lies in `DST/.packing` until the commit, so that a resumed pack and the jobs of an array follow the same plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._native import __version__
from headrace.datasets.shards.tar import BLOCK, END
from headrace.packing.planning.listing import Listing
from headrace.packing.planning.options import PackOptions

__all__ = ["PackPlan", "make_pack_plan"]

# Restart markers at every 32 px of width add 1.3 % to optimised files (measured on 1,000 ImageNet files); other files shrink,
# because their Huffman tables are optimised. The rest is room, so that shards stay below the size asked for.
_LOSSLESS_RATIO = 1.02
_CHUNK = 1 << 16  # records whose sizes are computed at a time: the intermediate columns take memory


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Units of work; unit `u` packs the records `cuts[u]` to `cuts[u + 1]` of the listing into shard `u`."""

    cuts: tuple[int, ...]
    ratio: float  # packed bytes expected for a byte of the source
    options: Mapping[str, Any]
    source_kind: str
    source_fingerprint: str
    version: str  # of headrace: another version may write other bytes
    sizes: str  # digest of the records' sizes, which the fingerprint of a list does not contain

    @property
    def units(self) -> int:
        return len(self.cuts) - 1

    def rows(self, unit: int) -> tuple[int, int]:
        """Return the first position of a unit's records in the listing, and the position after the last."""
        return self.cuts[unit], self.cuts[unit + 1]

    def records(self, units: Iterable[int]) -> int:
        """Return the number of records of these units."""
        return sum(self.cuts[unit + 1] - self.cuts[unit] for unit in units)

    def serialized(self) -> bytes:
        """Return the plan as JSON; equal plans give equal bytes."""
        return (json.dumps(self._document(), indent=1) + "\n").encode()

    def _document(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "source": {"kind": self.source_kind, "fingerprint": self.source_fingerprint, "sizes": self.sizes},
            "options": dict(self.options),
            "ratio": self.ratio,
            "cuts": list(self.cuts),
        }

    @staticmethod
    def parsed(data: bytes) -> PackPlan:
        """Read a plan from its JSON. Raise ValueError or KeyError if `data` is no plan."""
        document = json.loads(data)
        source = document["source"]
        return PackPlan(
            cuts=tuple(document["cuts"]),
            ratio=document["ratio"],
            options=document["options"],
            source_kind=source["kind"],
            source_fingerprint=source["fingerprint"],
            version=document["version"],
            sizes=source["sizes"],
        )

    def difference(self, other: PackPlan) -> str | None:
        """Return why this plan cannot continue a pack that was begun by `other`, or None if it can."""
        if (self.source_fingerprint, self.sizes) != (other.source_fingerprint, other.sizes):
            return "the source has changed since"
        for name in (*self.options, *other.options):
            mine, theirs = self.options.get(name), other.options.get(name)
            if mine != theirs:
                return f"{name} was {theirs!r} and is {mine!r} now"
        if self.version != other.version:
            return f"it was begun by headrace {other.version}, this is {self.version}"
        return None


def _sidecar_bytes(listing: Listing, options: PackOptions) -> npt.NDArray[np.int64] | int:
    """Return the bytes that each record's sidecar files take in a shard."""
    sidecars = listing.dataset.table.sidecars
    if sidecars is None or options.extras == "drop":
        return 0
    members = np.cumsum([0, *(BLOCK + -(-sidecars.size // BLOCK) * BLOCK)])
    rows = listing.rows[:]
    return np.asarray(members[sidecars.start[rows + 1]] - members[sidecars.start[rows]])


def make_pack_plan(listing: Listing, options: PackOptions, ratio: float | None) -> PackPlan:
    """Cut the listing so that each shard has about `options.shard_size` bytes.

    ratio: expected packed bytes for each byte of the source; None: that of lossless packing.
    """
    ratio = ratio if ratio is not None else (1.0 if options.keep_bytes else _LOSSLESS_RATIO)
    ends, digest = np.empty(len(listing), dtype=np.int64), hashlib.sha256()
    for begin in range(0, len(listing), _CHUNK):
        some = slice(begin, begin + _CHUNK)
        sizes = listing.sizes[some]
        digest.update(np.ascontiguousarray(sizes, dtype="<i8").data)
        image = np.ceil(sizes * ratio / BLOCK).astype(np.int64) * BLOCK
        ends[some] = image + 3 * BLOCK  # header, label's header, label
    ends += _sidecar_bytes(listing, options)
    np.cumsum(ends, out=ends)
    cuts, begin = [0], 0
    while cuts[-1] < len(listing):
        room = begin + options.shard_size - len(END)
        cuts.append(max(int(np.searchsorted(ends, room, side="right")), cuts[-1] + 1))
        begin = int(ends[cuts[-1] - 1])
    return PackPlan(
        cuts=tuple(cuts),
        ratio=ratio,
        options=options.for_manifest(),
        source_kind=listing.dataset.kind,
        source_fingerprint=listing.dataset.fingerprint,
        version=__version__,
        sizes=digest.hexdigest()[:32],
    )
