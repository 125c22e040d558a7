"""Packing: write any image dataset as shards of docs/reference/format.md, resumable and with the same bytes every time.

- `copied_files`: The record of `pack --layout folder`: the files of a copy, as lines of JSON on disk and as columns in memory.
- `engine`: The interface of an engine, which packs units: `local.LocalEngine` here, `ray_cluster.RayEngine` on a cluster.
- `estimate`: An estimate of the size and time of a pack that re-encodes images, measured before it begins.
- `folder_copy`: `pack --layout folder`: a copy of an image tree in which JPEGs are smaller or faster to decode.
- `image_encoder`: The encoding of each image: in native code for ordinary JPEGs, else in Python, which also names an image's
  faults.
- `job`: `headrace.pack`: list the source, split it, have an engine pack the missing units, commit, upload.
- `listing`: The listing of a pack: the source's records with their keys, and the rejected ones with reasons.
- `local`: Packing with threads of this process.
- `lossless`: Lossless packing of an image: byte for byte, or with restart markers.
- `options`: The options of `pack` that change the packed bytes: their defaults, allowed values and contradictions.
- `pack_plan`: The pack plan: which records each unit writes into its shard.
- `ray_cluster`: Packing on a Ray cluster: each worker packs whole units in memory, and the driver writes them.
- `reencode`: Re-encoding of images: decode, resize, transform, encode.
- `result`: The result of a pack, and its sums over the parts of a split.
- `resume`: Pack one dataset, or the units of it that are still missing: the module that continues an interrupted pack.
- `source_tree`: The files of a tree, for a copy of it and its check. Links are followed inside the tree and into folders
  that the user names.
- `transform`: `--transform`: deterministic operations, parsed from a line of text, that packing applies instead of training.
- `unit`: One unit: source records become tar members of one shard, and rows of the index.
- `upload`: Packing to an object store: the dataset is packed in the cache folder, then uploaded, the manifests last.
- `work`: `DST/.packing`: the state of a pack on disk, from which it continues after an interruption
  (docs/reference/format.md; see `resume`).
"""

from headrace.packing.estimate import Estimate
from headrace.packing.job import pack
from headrace.packing.listing import Rejection
from headrace.packing.options import PackOptions
from headrace.packing.result import PackResult

__all__ = ["Estimate", "PackOptions", "PackResult", "Rejection", "pack"]
