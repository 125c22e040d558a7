"""Split a pipeline between CPU and GPU: the CPU decodes, crops, resizes and flips, the GPU augments."""

from __future__ import annotations

from dataclasses import dataclass

from headrace._native import Program
from headrace.gpu.augmentation.augment import RESIZES, Pass, changes_pixels, cpu_only
from headrace.transforms.compile import Pipeline
from headrace.transforms.native_operations import CHANGES_COLOUR, NEEDS_AFFINE

__all__ = ["Cropping", "cropping"]

_CROPS = frozenset({"center_crop", "random_crop"})
_TRIED = 8  # images drawn to find out whether a GPU can do the rest: the operation that it cannot do may be a random choice
_BEGINS = NEEDS_AFFINE | CHANGES_COLOUR | {"apply"}


@dataclass(frozen=True, slots=True)
class Cropping:
    """A pipeline cut in two: the CPU decodes, crops, resizes and flips to the final size; the GPU does the rest.

    program: the CPU's operations. whole: all operations. size: width and height of the output in pixels.
    """

    program: Program
    whole: Program
    size: tuple[int, int]

    def passes(self, seed: int, epoch: int, draw: int) -> list[Pass] | None:
        """Return the GPU's operations on one image, drawn as `Program.split` draws them; None if only the CPU can do them.

        Each operation draws from a stream of its own, so that they do not depend on the size of the image before the crop:
        an image of four times the output stands for all.
        """
        width, height = 4 * self.size[0], 4 * self.size[1]
        try:
            (*_, wanted_x, wanted_y), passes = self.whole.split(width, height, seed, epoch, draw)
            *_, flip_x, flip_y = self.program.place(width, height, seed, epoch, draw)
        except ValueError:
            return None
        # Flips of the whole pipeline may have joined the crop, or a rotation.
        turned: list[Pass] = [("flip_x", [])] if flip_x != wanted_x else []
        return [*turned, *([("flip_y", [])] if flip_y != wanted_y else []), *passes]


def cropping(pipeline: Pipeline) -> Cropping | str:
    """Return the pipeline cut between CPU and GPU, or why the GPU cannot augment; "" if there is nothing to augment."""
    operations, names = pipeline.operations, [name for name, _ in pipeline.operations]
    if not changes_pixels(operations):
        return ""
    if pipeline.functions:
        return "Python functions work on images in the host's memory"
    if pipeline.dct_scale != "off":
        return "dct_scale= is the native decoder's"
    if (reason := cpu_only(operations, pipeline.fuse)) is not None:
        return reason
    first = next(at for at, name in enumerate(names) if name in _BEGINS)
    before, after = set(names[:first]), set(names[first:])
    if after & (RESIZES | _CROPS):
        return "a crop or resize inside RandomApply is done by the CPU threads"
    if pipeline.fuse == "geometry" and before & _CROPS and after & NEEDS_AFFINE:
        return "fuse='geometry' samples a rotation from beyond the crop before it; with fuse='off' the GPU does both"
    try:
        program = Program(list(operations[:first]), pipeline.fuse == "geometry")
    except ValueError:
        return "the images have no common size before it"
    if program.out != pipeline.program.out:
        return "it changes the size of the images"
    found = Cropping(program, pipeline.program, (pipeline.width, pipeline.height))
    if all(found.passes(0, 0, draw) is None for draw in range(_TRIED)):
        return "a padded crop, or a blur that is larger than the image, is done by the CPU threads"
    return found
