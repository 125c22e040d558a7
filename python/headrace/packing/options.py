"""What a pack is asked to do: which options exist, which of them change bytes, and which contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import UsageError

__all__ = ["RESTART_TILE", "SHARD_SIZE", "PackOptions"]

SHARD_SIZE = 128 << 20  # bytes; AWS advises objects of about 150 MB for sequential reading (SageMaker data guide, 2023)
RESTART_TILE = 32  # pixels of width between restart markers
DEFAULT_QUALITY = 95  # im2rec's default


@dataclass(frozen=True, slots=True)
class PackOptions:
    """All options of a pack that change its bytes; the defaults keep every coefficient of every JPEG."""

    codec: Literal["jpeg"] = "jpeg"
    max_side: int | None = None  # pixels: larger images are reduced so that their longer side has this length
    short_side: int | None = None  # pixels: larger images are reduced so that their shorter side has this length
    resize: int | None = None  # im2rec's --resize: the shorter side becomes this, smaller images are enlarged
    quality: int | None = None  # JPEG quality of re-encoded images; when given, images of a higher one are re-encoded too
    transform: str | None = None  # deterministic operations, for example "Resize(256), CenterCrop(224)"
    keep_bytes: bool = False  # every file byte for byte
    restart_markers: bool = True
    shard_size: int = SHARD_SIZE  # bytes, about
    shuffle: int | None = None  # seed of a random order of records; None keeps the source's order
    train_ratio: float = 1.0  # share of the records in DST/train; the rest is in DST/val
    test_ratio: float = 0.0  # share of the records in DST/test
    classes: tuple[str, ...] | None = None  # only these classes, in this order
    unlabeled: Literal["skip", "stop"] = "skip"
    undecodable: Literal["skip", "stop"] = "skip"
    duplicates: Literal["stop", "skip", "rename"] = "stop"
    extras: Literal["keep", "drop"] = "keep"  # members of archives beside the images: masks, captions, further images

    def __post_init__(self) -> None:
        for complaint in _complaints(self):
            raise UsageError(complaint, hint="headrace pack -h shows the options and an example")

    @property
    def reencodes(self) -> bool:
        """Whether any image may be decoded and encoded again."""
        causes = (self.max_side, self.short_side, self.resize, self.quality, self.transform)
        return any(value is not None for value in causes)

    @property
    def resizes(self) -> bool:
        """Whether any image may get another size."""
        return any(value is not None for value in (self.max_side, self.short_side, self.resize, self.transform))

    @property
    def splits(self) -> bool:
        """Whether DST holds several datasets: train, val, test."""
        return self.train_ratio < 1 or self.test_ratio > 0

    def for_manifest(self) -> Mapping[str, Any]:
        """The options that affect bytes and are set, in fixed order."""
        marks = self.restart_markers and not self.keep_bytes
        fields: dict[str, Any] = {"codec": self.codec, "keep_bytes": self.keep_bytes or None}
        fields["restart_tile"] = RESTART_TILE if marks else None
        fields |= {name: getattr(self, name) for name in ("max_side", "short_side", "resize")}
        fields["quality"] = (self.quality or DEFAULT_QUALITY) if self.reencodes else None
        fields |= {"transform": self.transform, "shard_size": self.shard_size, "shuffle": self.shuffle}
        if self.splits:
            fields |= {"train_ratio": self.train_ratio, "test_ratio": self.test_ratio}
        fields["classes"] = list(self.classes) if self.classes is not None else None
        fields |= {name: getattr(self, name) for name in ("unlabeled", "undecodable", "duplicates")}
        fields["extras"] = "drop" if self.extras == "drop" else None
        return {name: value for name, value in fields.items() if value is not None}


def _complaints(options: PackOptions) -> list[str]:
    """What contradicts, in words."""
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
    for name, allowed in (("unlabeled", ("skip", "stop")), ("undecodable", ("skip", "stop")), ("extras", ("keep", "drop"))):
        if getattr(options, name) not in allowed:
            found.append(f"{name} is {getattr(options, name)!r}; possible: {', '.join(allowed)}")
    if options.duplicates not in ("stop", "skip", "rename"):
        found.append(f"duplicates is {options.duplicates!r}; possible: stop, skip, rename")
    return found
