"""Augmentation of uint8 images of one size on any device: the passes that the CPU kernel makes after crop and resize.

The native program draws the passes of each image (`Program.split`), by the same rule and from the same keys as on the CPU. They
are done in rounds: the images whose next pass is of the same kind go through it together, each with its own numbers. Operations
that take torch many launches have a Triton kernel too (`operations_on`). Pixels are bit for bit those of the CPU kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headrace.gpu.augmentation import affine, colour_operations, neighbour_operations
from headrace.gpu.augmentation.colour_operations import Numbers
from headrace.gpu.preparation.triton_present import tried_triton
from headrace.transforms.native_operations import CHANGES_COLOUR, NEEDS_AFFINE, Operation

if TYPE_CHECKING:
    import torch

__all__ = [
    "MOST_PIXELS",
    "OPERATIONS",
    "RESIZES",
    "Pass",
    "PixelOperation",
    "augment",
    "changes_pixels",
    "cpu_only",
    "kind",
    "operations_on",
]

Pass: TypeAlias = tuple[str, list[float]]
"""One operation on one image: its name in `OPERATIONS`, and its parameters."""

PixelOperation: TypeAlias = "Callable[[torch.Tensor, Numbers], torch.Tensor]"
"""Takes images uint8 [N, H, W, 3] and their parameters, float64 [N, k] on the host; returns new images."""

OPERATIONS: dict[str, PixelOperation] = {
    **{name: operation for name, (operation, _) in colour_operations.OPERATIONS.items()},
    "sharpness": neighbour_operations.sharpness,
    "blur": neighbour_operations.blur,
    "dilate": neighbour_operations.dilate,
    "erode": neighbour_operations.erode,
    "flip_x": neighbour_operations.flip_x,
    "flip_y": neighbour_operations.flip_y,
    "bilinear": affine.bilinear,
    "nearest": affine.nearest,
}
"""The operations in torch, by the names that `Program.split` gives them."""

MOST_PIXELS = 1 << 20
"""Process at most this many pixels at a time, but at least one image: the memory beside the batch stays below about 200 MB."""

RESIZES = frozenset({"random_resized_crop", "resize_exact", "resize_short"})
"""The native operations that resize an image."""

_CPU_ONLY = {"pillow_blur": "PillowBlur", "torch_blur": "torchvision's own blur", "pad": "Pad"}
_KINDS = {"rotation": "a rotation", "affine": "an affine transform"}
_CROPS = frozenset({"center_crop", "random_crop"})


def changes_pixels(operations: Sequence[Operation]) -> bool:
    """Return whether any native operation changes colours or samples an affine map: more than crop, resize and flip."""
    return any(name in NEEDS_AFFINE or name in CHANGES_COLOUR for name, _ in operations)


def cpu_only(operations: Sequence[Operation], fuse: str) -> str | None:
    """Return why only the CPU can do the pipeline's operations after crop and resize, or None if a GPU can.

    fuse: as in `compile_pipeline`. Example: `cpu_only(pipeline.operations, pipeline.fuse)`.
    """
    changed, resized, cut = "", False, False
    for name, _ in operations:
        if name in _CPU_ONLY:
            return f"{_CPU_ONLY[name]} is done by the CPU threads"
        if changed and name in RESIZES | _CROPS:
            return f"a crop or resize after {changed} is done by the CPU threads"
        if name in NEEDS_AFFINE and cut and fuse == "geometry":
            return "fuse='geometry' samples a rotation from beyond the crop before it; with fuse='off' the GPU does both"
        cut = (cut and name not in RESIZES) or (resized and name in _CROPS)
        resized = resized or name in RESIZES
        if name in NEEDS_AFFINE or name in CHANGES_COLOUR:
            changed = _KINDS.get(name, "an automatic augmentation" if name in NEEDS_AFFINE else "a change of colour")
    return None


def operations_on(device: torch.device) -> Mapping[str, PixelOperation]:
    """Return the augmentation operations for `device`, by name: Triton's kernels where they exist and run there, else torch's.

    Raises torch.cuda.OutOfMemoryError if the GPU has no memory left to try Triton.
    """
    if not tried_triton(device):
        return OPERATIONS
    from headrace.gpu.augmentation import augment_kernels

    return OPERATIONS | augment_kernels.OPERATIONS


def augment(
    images: torch.Tensor, passes: Sequence[Sequence[Pass]], operations: Mapping[str, PixelOperation] | None = None
) -> torch.Tensor:
    """Return images with each image's `passes` applied in order. The given tensor may be overwritten.

    images: uint8 [N, H, W, 3] on any device. passes: for each image, those of `Program.split`, in order.
    operations: the functions by name (default: those of the images' device, `operations_on`).

    Raises torch's errors, for example if the device is out of memory.
    Example: `augment(images, [[("invert", [])], [("brightness", [1.5]), ("flip_x", [])]])`.
    """
    rounds = max(map(len, passes), default=0)
    if not rounds:
        return images
    images = images.contiguous()
    operations = operations_on(images.device) if operations is None else operations
    for number in range(rounds):
        groups: dict[tuple[object, ...], list[int]] = {}
        for image, own in enumerate(passes):
            if number < len(own):
                groups.setdefault(kind(own[number]), []).append(image)
        for (name, *_), members in groups.items():
            for part in _parts(members, images.shape[1] * images.shape[2]):
                _apply(operations[str(name)], images, part, _table([passes[image][number][1] for image in part]))
    return images


def kind(one: Pass) -> tuple[object, ...]:
    """Return a grouping key of a pass: passes with equal keys are computed in one call for several images.

    Example: `kind(("invert", []))` is `("invert",)`.
    """
    name, numbers = one
    if name == "blur":
        return name, numbers[0], len(numbers)
    if name == "nearest":
        return name, affine.is_straight(numbers)
    return (name,)


def _parts(members: list[int], pixels: int) -> Iterator[list[int]]:
    step = max(1, MOST_PIXELS // pixels)
    for first in range(0, len(members), step):
        yield members[first : first + step]


def _table(rows: Sequence[Sequence[float]]) -> Numbers:
    """Return rows of numbers as an array; shorter ones, which have fewer edges, end with zeros."""
    table = np.zeros((len(rows), max(map(len, rows))))
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def _apply(operation: PixelOperation, images: torch.Tensor, members: list[int], numbers: Numbers) -> None:
    """Put some images through an operation, in place."""
    import torch

    if len(members) == len(images):
        images.copy_(operation(images, numbers))
        return
    where = torch.tensor(members).to(images.device, non_blocking=True)
    images[where] = operation(images[where], numbers)
