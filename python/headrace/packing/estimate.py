"""An estimate of the size and time of a pack that re-encodes images, measured before it begins."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from headrace.packing.encoding.image_encoder import ImageEncoder
from headrace.packing.engines.unit import PackedRecords, pack_chunk
from headrace.packing.planning.listing import Listing

__all__ = ["Estimate", "estimate"]

_SAMPLE = 24  # images


@dataclass(frozen=True, slots=True)
class Estimate:
    """The effect of re-encoding on size and time, measured on a few images spread over the source."""

    images: int
    source_bytes: int  # of the measured images
    packed_bytes: int  # of the measured images
    total_bytes: int  # expected bytes of all shards
    seconds: float  # expected for the whole pack


def estimate(listing: Listing, encoder: ImageEncoder, workers: int) -> Estimate:
    """Re-encode a few images spread evenly over the listing, the same ones every time, and return the estimate."""
    at = np.unique(np.linspace(0, len(listing) - 1, _SAMPLE).astype(np.int64))
    source = packed = framing = 0
    started_s = time.perf_counter()
    for position in at:
        (one,) = pack_chunk(listing, encoder, range(int(position), int(position) + 1))
        if isinstance(one, PackedRecords):
            source += int(listing.sizes[position])
            packed += one.rows[0][1]
            framing += len(one.members) - one.rows[0][1]  # headers, label and padding
    seconds = time.perf_counter() - started_s
    share = packed / source if source else 1.0
    return Estimate(
        images=len(at),
        source_bytes=source,
        packed_bytes=packed or 1,
        total_bytes=int(listing.sizes.sum() * share + framing / len(at) * len(listing)),
        seconds=seconds / len(at) * len(listing) / workers,
    )
