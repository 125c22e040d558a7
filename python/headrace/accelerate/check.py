"""`headrace run --check`: both ways of loading, compared on the script's own images before a loader is taken over.

Values: each image is decoded, cut, resized and flipped by Pillow with exactly the draws that the native side made, then goes
through the script's own remaining transforms; the result must be equal bit for bit. Without random steps the script's own
transform is the reference.

Draws: the script's own objects draw their parameters some thousand times, and so do we; a two-sample Kolmogorov-Smirnov test
compares their distributions. Its threshold is so high that a false alarm is a matter of one in a million.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace._native import Program
from headrace.accelerate.compile import Work, engine
from headrace.accelerate.randomness import separate_randomness
from headrace.accelerate.recognise import Folder
from headrace.accelerate.translate import Step, flatten, name_of, translate
from headrace.transforms.compile import compile_pipeline
from headrace.transforms.composition import Compose
from headrace.transforms.native_operations import NATIVE_TRANSFORMS

__all__ = ["Comparison", "check"]

SEED = 20_26
DRAWS = 3000
IMAGE_SIZE = (500, 375)  # pixels, width and height, of the image that draws are compared for: ImageNet's commonest

#: Kolmogorov-Smirnov: the two-sample statistic exceeds this times sqrt(2 / n) with probability 2 exp(-2 x²) = 1e-6.
KOLMOGOROV_LIMIT = math.sqrt(math.log(2 / 1e-6) / 2)

#: Random steps whose draws are not compared here: tests compare their tables with torchvision's.
AUTOMATIC = frozenset({"RandAugment", "TrivialAugmentWide", "AutoAugment"})


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `--check` found. `compared` images had equal values unless named in `different`; `left` are those that the script
    loads itself (the native side does not decode them). `draws` are the random parameters whose distribution was compared."""

    compared: int
    left: int
    different: tuple[str, ...]
    draws: tuple[str, ...]
    draws_different: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if nothing differs."""
        return not self.different and not self.draws_different

    def __str__(self) -> str:
        if self.different:
            return f"{len(self.different)} of {self.compared} images differ, first {self.different[0]}"
        if self.draws_different:
            return f"random draws are distributed differently: {', '.join(self.draws_different)}"
        drawn = f", {', '.join(self.draws)} distributed alike ({DRAWS} draws)" if self.draws else ""
        own = f", {self.left} left to the script" if self.left else ""
        return f"{self.compared} images equal in every value{own}{drawn}"


def check(work: Work, count: int) -> Comparison:
    """Compares up to `count` images, spread over the folders, and all random parameters."""
    folders = work.recognition.folders
    total = sum(len(folder.samples) for folder in folders)
    records = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))
    places = [
        next((folder, int(record) - folder.first) for folder in reversed(folders) if record >= folder.first)
        for record in records
    ]
    images, statuses = _native_images(work, records)
    with separate_randomness(SEED):
        different = tuple(
            str(folder.samples[at][0])
            for slot, (folder, at) in enumerate(places)
            if statuses[slot] == 0 and not _equal(images[slot], _reference(work, folder, at, slot))
        )
        results = dict(_compare_draws(work))
    return Comparison(
        compared=int(sum(status == 0 for status in statuses)),
        left=int(sum(status != 0 for status in statuses)),
        different=different,
        draws=tuple(results),
        draws_different=tuple(name for name, alike in results.items() if not alike),
    )


def _native_images(work: Work, records: npt.NDArray[np.int64]) -> tuple[torch.Tensor, list[int]]:
    count = len(records)
    memory = np.zeros(count * work.image_bytes(), dtype=np.uint8)
    draws = np.arange(count, dtype=np.uint64)
    job = engine(work.threads).submit(work.table, work.pipeline.program, work.store, SEED, 0, records, draws, memory)
    while not job.wait(None):
        pass
    pipeline = work.pipeline
    return torch.from_numpy(memory).view(work.dtype).view(count, 3, pipeline.height, pipeline.width), job.statuses()


def _equal(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return bool(ours.shape == theirs.shape and ours.dtype == theirs.dtype and torch.equal(ours, theirs))


def _reference(work: Work, folder: Folder, at: int, draw: int) -> torch.Tensor:
    """The image as torchvision's functions on Pillow images and the script's own transforms give it."""
    expressed, functional = work.recognition.expressed, sys.modules["torchvision.transforms.functional"]
    path = folder.samples[at][0]
    image = folder.open_image(path)
    if not any(_is_random(step.name) or step.name in AUTOMATIC for step in expressed.geometry):
        pixels = image
        for operation in _before_random(folder.dataset.transform):
            pixels = operation(pixels)
        return _plain(pixels)
    cut = image
    for name, arguments in work.pipeline.program.parameters(image.width, image.height, SEED, 0, draw):
        cut = _applied(functional, cut, name, arguments)
    for operation in expressed.pointwise:
        cut = operation(cut)
    return _plain(cut)


def _before_random(transform: Any) -> Iterator[Any]:
    """The script's own operations, but for those that act on each image at random."""
    per_image = translate(transform).per_image
    return (operation for operation in flatten(transform) if operation not in per_image)


def _plain(image: Any) -> torch.Tensor:
    plain: torch.Tensor = image.as_subclass(torch.Tensor)
    return plain


def _applied(functional: Any, image: Any, name: str, arguments: dict[str, Any]) -> Any:
    """The image after one operation by torchvision's function for it."""
    if "interpolation" in arguments:
        mode = sys.modules["torchvision.transforms"].InterpolationMode
        arguments = arguments | {"interpolation": mode(arguments["interpolation"])}
    return getattr(functional, V1_NAMES.get(name, name))(image, **arguments)


V1_NAMES = {"horizontal_flip": "hflip", "vertical_flip": "vflip"}


def _compare_draws(work: Work) -> Iterator[tuple[str, bool]]:
    """(what was drawn, whether the distributions agree) for every random geometric step."""
    own = [operation for operation in flatten(work.recognition.folders[0].dataset.transform) if _is_random_step(operation)]
    steps = [step for step in work.recognition.expressed.geometry if _is_random(step.name)]
    for operation, step in zip(own, steps, strict=True):
        if step.name.endswith("Flip"):
            program = _program([Step("CenterCrop", _arguments(size=8)), step])
            flip = 3 if "Horizontal" in step.name else 4
            rate = sum(bool(program.place(*IMAGE_SIZE, SEED, 0, draw)[flip]) for draw in range(DRAWS)) / DRAWS
            yield f"{step.name} rate", _fair(rate, float(operation.p))
        elif step.name in SOMETIMES:
            rate = sum(bool(drawn) for drawn in _drawn(step)) / DRAWS
            yield f"{step.name} rate", _fair(rate, float(operation.p))
        elif step.name in ("RandomRotation", "RandomAffine"):
            yield f"{step.name} parameters", _motions_alike(step, operation)
        elif step.name == "ColorJitter":
            yield "ColorJitter factors", _factors_alike(step, operation)
        elif step.name == "RandomResizedCrop":
            program = _program([step])
            ours = np.array([program.place(*IMAGE_SIZE, SEED, 0, draw)[0] for draw in range(DRAWS)], dtype=np.float64)
            theirs = np.array([_own_box(operation) for _ in range(DRAWS)], dtype=np.float64)
            yield "crop boxes", all(_alike(a, b) for a, b in zip(_features(ours), _features(theirs), strict=True))
            if not isinstance(filters := step.arguments["interpolation"], str):
                yield "interpolation", _chosen_alike(program, filters)


def _chosen_alike(program: Program, filters: Sequence[str]) -> bool:
    """Whether each filter is drawn as often as `random.choice` of these takes it."""
    ours = [program.parameters(*IMAGE_SIZE, SEED, 0, draw)[-1][1]["interpolation"] for draw in range(DRAWS)]
    return all(_fair(ours.count(name) / DRAWS, filters.count(name) / len(filters)) for name in set(filters))


def _factors_alike(step: Step, operation: Any) -> bool:
    """Whether each factor of a ColorJitter is drawn alike; which operation comes first must be a fair draw, too."""
    program = _program([Step("CenterCrop", _arguments(size=8)), step])
    ours = [dict(program.colours(SEED, 0, draw)) for draw in range(DRAWS)]
    theirs = np.array([_own_factors(operation) for _ in range(DRAWS)], dtype=np.float64)
    names = ("brightness", "contrast", "saturation", "hue")
    drawn = [(at, f"adjust_{name}") for at, name in enumerate(names) if getattr(operation, name) is not None]
    first = [sum(next(iter(one)) == name for one in ours) / DRAWS for _, name in drawn]
    share = 1 / len(drawn)
    return all(_fair(rate, share) for rate in first) and all(
        _alike(np.array([one[name] for one in ours]), theirs[:, at]) for at, name in drawn
    )


SOMETIMES = frozenset(
    {"RandomGrayscale", "RandomInvert", "RandomAutocontrast", "RandomEqualize"}
    | {"RandomPosterize", "RandomSolarize", "RandomAdjustSharpness"}
)


def _drawn(step: Step) -> list[list[tuple[str, dict[str, Any]]]]:
    """What the step draws for `DRAWS` images of `IMAGE_SIZE`."""
    program = _program([Step("CenterCrop", _arguments(size=IMAGE_SIZE[::-1])), step])
    return [program.parameters(*IMAGE_SIZE, SEED, 0, draw)[1:] for draw in range(DRAWS)]


def _motions_alike(step: Step, operation: Any) -> bool:
    """Whether each number of a rotation or affine is drawn alike."""
    ours = np.array([_numbers(drawn[0][1]) for drawn in _drawn(step)], dtype=np.float64)
    theirs = np.array([_own_numbers(operation) for _ in range(DRAWS)], dtype=np.float64)
    return all(_alike(ours[:, at], theirs[:, at]) for at in range(theirs.shape[1]))


def _numbers(arguments: dict[str, Any]) -> list[float]:
    """Angle, shift, enlargement and shear; of a rotation the angle."""
    if "scale" not in arguments:
        return [arguments["angle"]]
    return [arguments["angle"], *arguments["translate"], arguments["scale"], *arguments["shear"]]


def _own_numbers(operation: Any) -> list[float]:
    """The same, as the script's own object draws them."""
    if hasattr(operation, "make_params"):
        image = torch.empty(3, IMAGE_SIZE[1], IMAGE_SIZE[0], dtype=torch.uint8)
        return _numbers(operation.make_params([image]))
    if not hasattr(operation, "scale"):
        return [operation.get_params(operation.degrees)]
    size = list(IMAGE_SIZE)
    angle, shift, scale, shear = operation.get_params(
        operation.degrees, operation.translate, operation.scale, operation.shear, size
    )
    return [angle, *shift, scale, *shear]


def _fair(rate: float, probability: float) -> bool:
    """Whether a rate over `DRAWS` draws lies within five standard deviations of its probability."""
    return abs(rate - probability) <= 5 * math.sqrt(probability * (1 - probability) / DRAWS) + 1e-9


def _own_factors(operation: Any) -> list[float]:
    """Brightness, contrast, saturation and hue as the script's own ColorJitter draws them; NaN where it leaves one out."""
    if hasattr(operation, "make_params"):
        drawn = list(operation.make_params([]).values())
    else:
        drawn = list(operation.get_params(operation.brightness, operation.contrast, operation.saturation, operation.hue))
    return [math.nan if factor is None else float(factor) for factor in drawn[1:]]


def _is_random_step(operation: Any) -> bool:
    kind = name_of(operation).rsplit(".", 1)[1]
    return _is_random(kind) and kind != "RandomErasing"


def _is_random(name: str) -> bool:
    return name.startswith("Random") or name == "ColorJitter"


def _arguments(**arguments: Any) -> Any:
    return arguments


def _program(steps: list[Step]) -> Program:
    return compile_pipeline(Compose([NATIVE_TRANSFORMS[step.name](**step.arguments) for step in steps])).program


def _own_box(operation: Any) -> tuple[int, int, int, int]:
    """(x, y, w, h) as the script's own RandomResizedCrop draws it."""
    image = torch.empty((), dtype=torch.uint8).expand(3, IMAGE_SIZE[1], IMAGE_SIZE[0])
    if hasattr(operation, "make_params"):
        drawn = operation.make_params([image])
        return drawn["left"], drawn["top"], drawn["width"], drawn["height"]
    top, left, height, width = operation.get_params(image, operation.scale, operation.ratio)
    return left, top, width, height


def _features(boxes: npt.NDArray[np.float64]) -> Iterator[npt.NDArray[np.float64]]:
    """Area, ratio, and where the box lies in the room that it has; ties of the integer grid are left as they are."""
    x, y, w, h = boxes.T
    yield w * h
    yield w / h
    yield x / np.maximum(1, IMAGE_SIZE[0] - w)
    yield y / np.maximum(1, IMAGE_SIZE[1] - h)


def _alike(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> bool:
    """Two-sample Kolmogorov-Smirnov test on samples of one size."""
    values = np.sort(np.concatenate([ours, theirs]))
    first = np.searchsorted(np.sort(ours), values, side="right") / len(ours)
    second = np.searchsorted(np.sort(theirs), values, side="right") / len(theirs)
    statistic = float(np.abs(first - second).max())
    return statistic <= KOLMOGOROV_LIMIT * math.sqrt(2 / len(ours))
