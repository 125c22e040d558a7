"""Packing: write any image dataset as shards of docs/reference/format.md, resumable and with the same bytes every time.

Its rooms, ground first:

- `planning`: what is packed: options, listing, plan, result.
- `encoding`: the encoding of each image.
- `engines`: what packs the units: threads here, or a Ray cluster.
"""

from headrace.packing.estimate import Estimate
from headrace.packing.job import pack
from headrace.packing.planning.listing import Rejection
from headrace.packing.planning.options import PackOptions
from headrace.packing.planning.result import PackResult

__all__ = ["Estimate", "PackOptions", "PackResult", "Rejection", "pack"]
