"""The options of `pack` that change the packed bytes: their defaults, allowed values and contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from headrace.errors import UsageError

__all__ = ["DEFAULT_QUALITY", "RESTART_TILE", "SHARD_SIZE", "PackKeywords", "PackOptions"]

SHARD_SIZE = 128 << 20  # bytes; AWS advises objects of about 150 MB for sequential reading (SageMaker data guide, 2023)
RESTART_TILE = 32  # pixels of width between restart markers
DEFAULT_QUALITY = 95  # im2rec's default


class PackKeywords(TypedDict, total=False):
    """The fields of PackOptions as keyword arguments of `pack`, for editors and type checkers."""

    codec: Literal["jpeg"]
    max_side: int | None
    short_side: int | None
    resize: int | None
    quality: int | None
    transform: str | None
    keep_bytes: bool
    restart_markers: bool
    shard_size: int
    shuffle: int | None
    train_ratio: float
    test_ratio: float
    seed: int
    classes: tuple[str, ...] | None
    unlabeled: Literal["skip", "stop"]
    undecodable: Literal["skip", "stop"]
    duplicates: Literal["stop", "skip", "rename"]
    extras: Literal["keep", "drop"]


@dataclass(frozen=True, slots=True)
class PackOptions:
    """The options of a pack that change its bytes. The defaults keep every coefficient of every JPEG."""

    codec: Literal["jpeg"] = "jpeg"
    max_side: int | None = None  # pixels: larger images are reduced so that their longer side has this length
    short_side: int | None = None  # pixels: larger images are reduced so that their shorter side has this length
    resize: int | None = None  # pixels: all images get this shorter side, smaller ones are enlarged (im2rec's --resize)
    quality: int | None = None  # of re-encoded images, 1 to 100; if given, images of higher quality are re-encoded too
    transform: str | None = None  # deterministic operations, for example "Resize(256), CenterCrop(224)"
    keep_bytes: bool = False  # copy every file byte for byte
    restart_markers: bool = True  # insert restart markers, losslessly
    shard_size: int = SHARD_SIZE  # bytes, about
    shuffle: int | None = None  # seed of a random order of records; None keeps the source's order
    train_ratio: float = 1.0  # share of the records in DST/train; the rest is in DST/val
    test_ratio: float = 0.0  # share of the records in DST/test
    seed: int = 0  # of the random choice of these
    classes: tuple[str, ...] | None = None  # only these classes, in this order
    unlabeled: Literal["skip", "stop"] = "skip"
    undecodable: Literal["skip", "stop"] = "skip"
    duplicates: Literal["stop", "skip", "rename"] = "stop"
    extras: Literal["keep", "drop"] = "keep"  # sidecar files: masks, captions, second images

    def __post_init__(self) -> None:
        for complaint in _complaints(self):
            raise UsageError(complaint, hint="headrace pack -h shows the options and an example")

    @property
    def reencodes(self) -> bool:
        """Return True if an image may be decoded and encoded again."""
        causes = (self.max_side, self.short_side, self.resize, self.quality, self.transform)
        return any(value is not None for value in causes)

    @property
    def resizes(self) -> bool:
        """Return True if an option may change the width or height of images."""
        return any(value is not None for value in (self.max_side, self.short_side, self.resize, self.transform))

    @property
    def splits(self) -> bool:
        """Return True if `pack` writes a dataset for each split into DST: train, and val, test or both."""
        return self.train_ratio < 1 or self.test_ratio > 0

    def for_manifest(self) -> Mapping[str, Any]:
        """Return the options that are set and affect the packed bytes, in fixed order, for the manifest."""
        marks = self.restart_markers and not self.keep_bytes
        fields: dict[str, Any] = {"codec": self.codec, "keep_bytes": self.keep_bytes or None}
        fields["restart_tile"] = RESTART_TILE if marks else None
        fields |= {name: getattr(self, name) for name in ("max_side", "short_side", "resize")}
        fields["quality"] = (self.quality or DEFAULT_QUALITY) if self.reencodes else None
        fields |= {"transform": self.transform, "shard_size": self.shard_size, "shuffle": self.shuffle}
        if self.splits:
            fields |= {"train_ratio": self.train_ratio, "test_ratio": self.test_ratio, "seed": self.seed or None}
        fields["classes"] = list(self.classes) if self.classes is not None else None
        fields |= {name: getattr(self, name) for name in ("unlabeled", "undecodable", "duplicates")}
        fields["extras"] = "drop" if self.extras == "drop" else None
        return {name: value for name, value in fields.items() if value is not None}


def _complaints(options: PackOptions) -> list[str]:
    """Return one sentence for each option that is out of range or contradicts another."""
    found = []
    if options.codec != "jpeg":
        found.append(f"codec {options.codec!r} does not exist; this version has: jpeg")
    for name in ("max_side", "short_side", "resize"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= 65535:
            found.append(f"{name} is {value}; 1 to 65535 pixels are possible")
    if sum(getattr(options, name) is not None for name in ("max_side", "short_side", "resize")) > 1:
        found.append("max_side, short_side and resize exclude each other")
    if options.quality is not None and not 1 <= options.quality <= 100:
        found.append(f"quality is {options.quality}; 1 to 100 are possible")
    if options.keep_bytes and options.reencodes:
        found.append("keep_bytes excludes what changes files: max_side, short_side, resize, quality, transform")
    if options.shard_size < 1 << 16:
        found.append(f"shard_size is {options.shard_size} bytes; at least 64 KiB are needed")
    if options.classes is not None and len(set(options.classes)) < len(options.classes):
        found.append("classes names a class twice")
    train, test = options.train_ratio, options.test_ratio
    if not 0 < train <= 1 or not 0 <= test < 1 or train + test > 1:
        found.append(f"train_ratio {train} and test_ratio {test} must be shares that add up to at most 1")
    if isinstance(options.seed, bool) or not isinstance(options.seed, int) or not 0 <= options.seed < 2**63:
        found.append(f"seed is {options.seed!r}; whole numbers from 0, below 2**63, are possible")
    elif options.seed and not options.splits:
        found.append("seed chooses the records of train_ratio and test_ratio: give one of them (shuffle takes its own seed)")
    for name, allowed in (("unlabeled", ("skip", "stop")), ("undecodable", ("skip", "stop")), ("extras", ("keep", "drop"))):
        if getattr(options, name) not in allowed:
            found.append(f"{name} is {getattr(options, name)!r}; possible: {', '.join(allowed)}")
    if options.duplicates not in ("stop", "skip", "rename"):
        found.append(f"duplicates is {options.duplicates!r}; possible: stop, skip, rename")
    return found
