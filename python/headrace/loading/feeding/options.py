"""The options of a Loader, checked."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeAlias, TypedDict

from headrace.datasets.records.dataset import Dataset
from headrace.errors import SourceError, UsageError
from headrace.gpu.placement import DECODE, Decode
from headrace.loading.feeding.byte_cache import parse_cache
from headrace.loading.order.sampled import Sampler, check_sampler
from headrace.loading.order.uneven_shards import Parts, RankPart
from headrace.loading.order.weighted_draws import Weights
from headrace.system.text.sizes import count_text
from headrace.transforms.compile import DctScale, Depth, Dtype, Fuse

if TYPE_CHECKING:
    import torch

__all__ = ["Device", "LoaderOptions", "OnError", "OtherArguments", "Output", "check_for_a_batch", "resolve_rank"]

OnError: TypeAlias = Literal["raise", "skip"]
Output: TypeAlias = Literal["torch", "numpy"]
Device: TypeAlias = "str | torch.device"

MOST_THREADS = 1024
"""Largest `threads=`. Larger numbers are mistakes: each thread has a stack and decoding memory of its own."""


class OtherArguments(TypedDict, total=False):
    """Arguments of `Loader` on which the type of a batch does not depend."""

    seed: int
    shuffle: bool | str | None
    sampler: Sampler | None
    weights: Weights | None
    drop_last: bool
    rank: int | None
    world_size: int | None
    threads: int | None
    prefetch: int
    device: Device
    dtype: Dtype | torch.dtype
    on_error: OnError
    mask_fill: int
    repeated_label: int | None
    cache: str | None
    parts: Parts
    fuse: Fuse
    dct_scale: DctScale
    depth: Depth
    decode: Decode


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The options of a Loader, which documents each of them. Raises UsageError for values that are out of range."""

    batch_size: int
    rank: int
    world_size: int
    threads: int
    seed: int = 0
    shuffle: bool | str | None = None  # None: True unless a sampler is given; then this becomes True or False
    sampler: Sampler | None = None
    weights: Weights | None = None
    drop_last: bool = True
    prefetch: int = 3
    device: str = "cpu"  # given as torch's device or by name; its name here
    dtype: Dtype = "uint8"  # likewise
    output: Output = "torch"
    on_error: OnError = "raise"
    mask: str | os.PathLike[str] | None = None
    mask_fill: int = 0
    with_json: bool = False
    with_index: bool = False
    with_key: bool = False
    repeated_label: int | None = None
    cache: str | None = None
    parts: Parts = None
    fuse: Fuse = "geometry"
    dct_scale: DctScale = "off"
    depth: Depth = "scale"
    decode: Decode = "auto"

    def __post_init__(self) -> None:
        if self.shuffle is None:
            object.__setattr__(self, "shuffle", self.sampler is None)
        object.__setattr__(self, "device", str(self.device))
        object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        for name, example in (
            ("batch_size", "batch_size=256"),
            ("seed", "seed=0"),
            ("prefetch", "prefetch=2"),
            ("threads", "threads=8"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, SupportsIndex):
                raise UsageError(f"{name} must be a whole number, not {value!r}", hint=f"for example {example}")
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, not {self.batch_size}", hint="it counts images per rank")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"rank {self.rank} of world size {self.world_size}: the rank must be in [0, world_size)",
                hint="leave out both to use torch.distributed's",
            )
        if self.threads < 1 or self.prefetch < 1:
            raise UsageError(
                f"threads and prefetch must be at least 1, not {self.threads} and {self.prefetch}",
                hint="leave out threads to use all cores",
            )
        if self.threads > MOST_THREADS:
            raise UsageError(
                f"threads must be at most {MOST_THREADS:,}, not {self.threads:,}", hint="leave out threads to use all cores"
            )
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be 0 or more and below 2**63, not {self.seed}", hint="for example seed=0")
        self._check_output()
        if self.on_error not in ("raise", "skip"):
            raise UsageError(
                f"on_error must be 'raise' or 'skip', not {self.on_error!r}",
                hint="'skip' substitutes bad records and counts them",
            )
        if self.mask is not None and not 0 <= self.mask_fill <= 255:
            raise UsageError(f"mask_fill must be from 0 to 255, not {self.mask_fill}", hint="255 is often the class to ignore")
        if self.cache is not None:
            parse_cache(self.cache)
        if self.decode not in DECODE:
            raise UsageError(
                f"decode must be 'auto', 'cpu', 'gpu' or 'split', not {self.decode!r}", hint="'auto' decides by measured rates"
            )
        if self.decode in ("gpu", "split") and self.device == "cpu":
            raise UsageError(
                f"decode={self.decode!r} needs a GPU, but the loader's device is 'cpu'",
                hint="pass device='cuda', or leave out decode",
            )

    def _check_output(self) -> None:
        if self.output not in ("torch", "numpy"):
            raise UsageError(
                f"output must be 'torch' or 'numpy', not {self.output!r}",
                hint="'numpy' yields arrays, for any other framework",
            )
        if self.output == "numpy" and (self.dtype == "bfloat16" or self.device != "cpu"):
            raise UsageError("output='numpy' offers no bfloat16 and no GPU", hint="use output='torch'")

    @property
    def global_batch(self) -> int:
        """Number of records in one step of all ranks together."""
        return self.batch_size * self.world_size


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size as given, else torch.distributed's if it is initialized, else 0 and 1."""
    if (rank is None) != (world_size is None):
        raise UsageError(
            "give rank and world_size together, or neither", hint="without them torch.distributed's are used, or 0 of 1"
        )
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = sys.modules.get("torch.distributed")  # if it is not imported, it is not initialized either
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return 0, 1


def check_for_a_batch(dataset: Dataset, options: LoaderOptions, part: RankPart) -> None:
    """Raise SourceError for an empty dataset, UsageError if an epoch has no batch."""
    records, ranks, batch_size = len(dataset), options.world_size, options.batch_size
    if records == 0:
        raise SourceError(f"{dataset.root} has 0 records", hint="open a dataset that holds images")
    if options.sampler is not None:
        check_sampler(options.sampler)
        return
    if not options.drop_last or part.whole_batches(records, batch_size):
        return
    each = f" (batch_size={batch_size} on each of {ranks} ranks)" if ranks > 1 else ""
    smaller = f"batch_size={records // ranks} or less, or " if records >= ranks and options.parts is None else ""
    raise UsageError(
        f"{dataset.root} has {count_text(records, 'record')}, fewer than one global batch of "
        f"{options.global_batch}{each}: no epoch would have a batch",
        hint=f"{smaller}drop_last=False, which keeps the incomplete batch",
    )
