"""Packing: write any image dataset as shards of docs/format.md, resumable and with the same bytes every time."""

from headrace.packing.estimate import Estimate
from headrace.packing.job import pack
from headrace.packing.listing import Rejection
from headrace.packing.options import PackOptions
from headrace.packing.result import PackResult

__all__ = ["Estimate", "PackOptions", "PackResult", "Rejection", "pack"]
