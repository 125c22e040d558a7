"""Decode, resize and convert images natively, straight into the memory of a tensor.

Images that are not decoded natively come from Pillow. The first images of each process are made both ways and compared.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import torch

from headrace._native import IndexStore, Job, Store, fill_items
from headrace.accelerate.deferred.tensor import DescribedImage, Part, contiguous_strides
from headrace.accelerate.deferred.values import STORED, Values, as_numpy
from headrace.accelerate.lazy.image_description import pixels_by_pillow
from headrace.accelerate.runtime.first_results import FirstResults
from headrace.accelerate.runtime.shared_indexes import process_indexes
from headrace.system.hardware.machine import cores, job_processes

__all__ = ["COMPARED_IMAGES", "Filling", "compute", "layout_of", "threads_for"]

COMPARED_IMAGES = 3
"""Number of first images per process that are decoded with Pillow too. If one differs, the process uses only Pillow."""

IMAGES_FOR_THREADS = 4
"""Use several threads for a tensor of at least this many images. For fewer, starting them takes longer than it saves."""


_first_images = FirstResults(COMPARED_IMAGES, "an image came out different; this process decodes with Pillow")


def compute(parts: Sequence[Part], tensor: torch.Tensor, *, comparing: bool = True) -> None:
    """Decode all images of a dense tensor now. `comparing`: compare the first images of the process with Pillow's."""
    filling = Filling()
    if filling.add(parts, tensor):
        filling.run(threads_for(len(parts)), process_indexes(), comparing=comparing)
        return
    target = torch.empty(tensor.shape, dtype=tensor.dtype)
    if not filling.add(parts, target):
        _by_pillow(parts, tensor)
        return
    filling.run(threads_for(len(parts)), process_indexes(), comparing=comparing)
    tensor.copy_(target)


def threads_for(images: int) -> int:
    """Return the number of native threads to decode this many images with: 1 in a worker process or for few images."""
    if images < IMAGES_FOR_THREADS or multiprocessing.parent_process() is not None:
        return 1
    return max(1, min(images, int(cores().usable) // job_processes()))


class Filling:
    """Tensors whose images are decoded together, in one native call or by native threads.

    filling = Filling()
    if filling.add(parts, tensor):
        filling.run()
    """

    def __init__(self) -> None:
        self._items: list[tuple[int, Any, tuple[int, int]]] = []
        self._targets: list[tuple[Store, Any]] = []
        self._described: list[tuple[DescribedImage, torch.Tensor]] = []

    def add(self, parts: Sequence[Part], tensor: torch.Tensor) -> bool:
        """Add a tensor and the images that belong in it. Images that are decoded already are copied now.

        Return False, without any effect, if native code cannot write a tensor of this layout.
        """
        memory, layout = _memory(tensor)
        stores = {part.values: part.values.store(layout) for part in parts if type(part) is DescribedImage}
        if memory is None or None in stores.values():
            return False
        numbers: dict[Values, int] = {}
        for values, store in stores.items():
            numbers[values] = len(self._targets)
            self._targets.append((store, memory))  # type: ignore[arg-type]
        blocks = tensor.view(-1, *tensor.shape[-3:]) if tensor.is_contiguous() else _blocks(tensor)
        block_bytes = tensor.element_size() * blocks[0].numel() if len(parts) else 0
        for number, part in enumerate(parts):
            if type(part) is DescribedImage:
                self._described.append((part, blocks[number]))
                self._items.append(
                    (id(part.description.source), part.description.item(), (numbers[part.values], number * block_bytes))
                )
            else:
                blocks[number].copy_(part)
        return True

    def _call(self) -> tuple[list[Any], list[tuple[Store, Any]], list[tuple[int, int]]]:
        """Return the arguments of the native call. Consecutive images with the same source share one read."""
        order = sorted(range(len(self._items)), key=lambda at: self._items[at][0])
        self._described = [self._described[at] for at in order]
        items = [self._items[at] for at in order]
        return [item[1] for item in items], self._targets, [item[2] for item in items]

    def run(self, threads: int = 1, indexes: IndexStore | None = None, *, comparing: bool = True) -> None:
        """Decode the images now. `comparing`: as in `finish`."""
        items, targets, places = self._call()
        self.finish(fill_items(items, targets, places, threads, indexes) if items else [], comparing=comparing)

    def start(self, engine: Any, indexes: IndexStore | None = None) -> Job | None:
        """Let native threads decode the images. `finish` must be called with the statuses of the job."""
        items, targets, places = self._call()
        return engine.submit_items(items, targets, places, indexes) if items else None

    def finish(self, statuses: Sequence[int], *, comparing: bool = True) -> None:
        """Decode by Pillow the images whose status is not 0, and compare the first native ones. Raises what Pillow raises.

        `comparing`: False where nobody uses the tensors.
        """
        for (part, block), status in zip(self._described, statuses, strict=True):
            if status or not _first_images.equal:
                block.copy_(part.values.of_pixels(pixels_by_pillow(part.description)))
            elif comparing and _first_images.wants():
                _compare(part, block)


def _compare(part: DescribedImage, block: torch.Tensor) -> None:
    expected = part.values.of_pixels(pixels_by_pillow(part.description))
    equal = torch.equal(block.contiguous().view(torch.uint8), expected.view(torch.uint8))
    _first_images.note(equal, what=part.description[1:])
    if not equal:
        block.copy_(expected)


def _by_pillow(parts: Sequence[Part], tensor: torch.Tensor) -> None:
    blocks = tensor.view(-1, *tensor.shape[-3:]) if tensor.is_contiguous() else _blocks(tensor)
    for part, block in zip(parts, blocks, strict=True):
        block.copy_(part.values.of_pixels(pixels_by_pillow(part.description)) if type(part) is DescribedImage else part)


def _blocks(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view [number, 3, height, width] of any tensor of images."""
    return tensor.flatten(0, -4) if tensor.ndim > 3 else tensor.unsqueeze(0)


def layout_of(shape: Sequence[int], strides: Sequence[int]) -> str | None:
    """Return the memory layout, "chw" or "hwc", of a tensor [..., 3, height, width]; None if native code cannot write it."""
    strides = tuple(strides)
    if strides == contiguous_strides(shape):
        return "chw"
    *further, channels, height, width = shape
    *steps, row, column, channel = contiguous_strides((*further, height, width, channels))
    return "hwc" if strides == (*steps, channel, row, column) else None


def _memory(tensor: torch.Tensor) -> tuple[Any, str]:
    """Return a numpy array over the memory of a tensor, and its layout; None if native code cannot write it."""
    layout = layout_of(tensor.shape, tensor.stride())
    if layout is None or tensor.dtype not in STORED:
        return None, "chw"
    return as_numpy(tensor if layout == "chw" else tensor.movedim(-3, -1)), layout
