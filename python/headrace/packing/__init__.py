"""Packing: any image dataset into shards of docs/format.md, resumable and with the same bytes every time."""

from headrace.packing.estimate import Estimate
from headrace.packing.job import PackResult, pack
from headrace.packing.listing import Rejection
from headrace.packing.options import PackOptions

__all__ = ["Estimate", "PackOptions", "PackResult", "Rejection", "pack"]
