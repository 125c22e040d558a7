"""`headrace run --check`: compare native loading with the script's own, before a loader is taken over.

Values: Pillow decodes, crops, resizes and flips images of the script with exactly the draws of the native engine. Copies
of the script's remaining transforms follow. The results must be equal bit for bit. Without random transforms, a copy of the
script's whole transform is the reference.

Draws: the script's objects and the native engine each draw their parameters some thousand times. A two-sample
Kolmogorov-Smirnov test compares the distributions. Its false alarm rate is one in a million.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace._native import Program
from headrace.accelerate.compile import CompiledLoader, engine, transform_of
from headrace.accelerate.item_loader import CompiledItems, plan_item, view_seed
from headrace.accelerate.item_proof import SEED, native_views
from headrace.accelerate.planned_images import Source
from headrace.accelerate.randomness import separate_randomness
from headrace.accelerate.recognise import FolderDataset, open_rgb
from headrace.accelerate.torch_blur import provide_weights
from headrace.accelerate.transform_names import display_name
from headrace.accelerate.translate import NativeTransform, TransformParts, flatten, is_own, steps_of, translate
from headrace.transforms.compile import compile_pipeline
from headrace.transforms.composition import Compose

__all__ = ["CheckResult", "check", "check_items"]

DRAWS = 3000
IMAGE_SIZE = (500, 375)  # the width and height in pixels for which draws are compared: ImageNet's most frequent size

RESULT_SIDE = 9  # the width and height in pixels of the image on which transforms of the script's own are compared

#: Kolmogorov-Smirnov: the two-sample statistic exceeds this times sqrt(2 / n) with probability 2 exp(-2 x²) = 1e-6.
KOLMOGOROV_LIMIT = math.sqrt(math.log(2 / 1e-6) / 2)

#: Random transforms whose draws are not compared here: tests compare their tables with torchvision's.
AUTOMATIC = frozenset({"RandAugment", "TrivialAugmentWide", "AutoAugment"})


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of `--check`.

    `compared`: number of images compared; `different`: paths of those that differ. `left`: number of images that the script
    loads itself, because they are not decoded natively. `draws`: the random parameters compared; `draws_different`: those
    whose distributions differ.
    """

    compared: int
    left: int
    different: tuple[str, ...]
    draws: tuple[str, ...]
    draws_different: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether all images are equal and all distributions agree."""
        return not self.different and not self.draws_different

    def __str__(self) -> str:
        if self.different:
            return f"{len(self.different)} of {self.compared} images differ, first {self.different[0]}"
        if self.draws_different:
            return f"random draws are distributed differently: {', '.join(self.draws_different)}"
        drawn = f", {', '.join(self.draws)} distributed alike ({DRAWS} draws)" if self.draws else ""
        own = f", {self.left} left to the script" if self.left else ""
        return f"{self.compared} images equal in every value{own}{drawn}"


def check(compiled: CompiledLoader, count: int) -> CheckResult:
    """Compare up to `count` images, spread over the folders, and all random parameters."""
    folders = compiled.recognition.folders
    total = sum(len(folder.samples) for folder in folders)
    records = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))
    places = [
        next((folder, int(record) - folder.first) for folder in reversed(folders) if record >= folder.first)
        for record in records
    ]
    images, statuses = _native_images(compiled, records)
    with separate_randomness(SEED):
        different = tuple(
            str(folder.samples[at][0])
            for slot, (folder, at) in enumerate(places)
            if statuses[slot] == 0 and not _equal(images[slot], _reference(_source(compiled, folder, at), slot))
        )
        results: dict[str, bool] = {}
        _add(results, "", _compare_draws(folders[0].dataset.transform, compiled.recognition.transform.geometry))
    return _result(statuses, different, results)


def check_items(dataset: Any, compiled: CompiledItems, count: int) -> CheckResult:
    """Compare up to `count` items of the script's own code, and the random parameters of each of their views."""
    recognition = compiled.recognition
    chosen = np.unique(np.linspace(0, len(recognition.indices) - 1, min(count, len(recognition.indices))).astype(np.int64))
    open_image = _open_upright if recognition.is_upright else open_rgb
    results: dict[str, bool] = {}
    with separate_randomness(SEED):
        items = [plan_item(recognition.calls, dataset, recognition.indices[at]) for at in chosen]
        tensors, statuses = native_views(compiled, items)
        different: dict[str, None] = {}
        for number, view in enumerate(recognition.views):
            program = compiled.views[number].pipeline.program
            for slot, item in enumerate(items):
                file, operations, seed = item.views[number].source, view.chain.operations, view_seed(SEED, number)
                path = file if isinstance(file, str) else f"item {recognition.indices[chosen[slot]]}"
                source = _Source(file, open_image, operations, view.transform, program, seed)
                if statuses[slot] == 0 and not _equal(tensors[number][slot], _reference(source, slot)):
                    different[path] = None
            if not any(view.chain is other.chain for other in recognition.views[:number]):
                place = f"view {number + 1}: " if number else ""
                _add(results, place, _compare_draws(view.chain.operations, view.transform.geometry))
    return _result(statuses, tuple(different), results)


def _add(results: dict[str, bool], place: str, compared: Iterator[tuple[str, bool]]) -> None:
    """Add the results of a comparison. Of parameters with one name, all must agree."""
    for name, alike in compared:
        results[f"{place}{name}"] = results.get(f"{place}{name}", True) and alike


def _result(statuses: Sequence[int], different: tuple[str, ...], results: dict[str, bool]) -> CheckResult:
    return CheckResult(
        compared=int(sum(status == 0 for status in statuses)),
        left=int(sum(status != 0 for status in statuses)),
        different=different,
        draws=tuple(results),
        draws_different=tuple(name for name, alike in results.items() if not alike),
    )


def _native_images(compiled: CompiledLoader, records: npt.NDArray[np.int64]) -> tuple[torch.Tensor, list[int]]:
    count = len(records)
    memory = np.zeros(count * compiled.image_bytes(), dtype=np.uint8)
    draws = np.arange(count, dtype=np.uint64)
    pipeline = compiled.pipeline
    provide_weights(pipeline.program, SEED, 0, draws)
    job = engine(compiled.threads).submit(compiled.table, pipeline.program, compiled.store, SEED, 0, records, draws, memory)
    while not job.wait(None):
        pass
    return torch.from_numpy(memory).view(compiled.dtype).view(count, 3, pipeline.height, pipeline.width), job.statuses()


def _equal(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return bool(ours.shape == theirs.shape and ours.dtype == theirs.dtype and torch.equal(ours, theirs))


def _open_upright(path: Any) -> Any:
    return sys.modules["PIL.ImageOps"].exif_transpose(open_rgb(path))


@dataclass(frozen=True, slots=True)
class _Source:
    """An image to compare: how it is opened, the script's transform, its parts, and the program and seed of the draws."""

    path: Source
    open_image: Callable[[Any], Any]
    transform: Any
    parts: TransformParts
    program: Program
    seed: int


def _source(compiled: CompiledLoader, folder: FolderDataset, at: int) -> _Source:
    parts, program = compiled.recognition.transform, compiled.pipeline.program
    return _Source(folder.samples[at][0], folder.open_image, folder.dataset.transform, parts, program, SEED)


def _reference(source: _Source, draw: int) -> torch.Tensor:
    """Return the image as torchvision's functions on Pillow images and the script's remaining transforms make it."""
    parts, functional = source.parts, sys.modules["torchvision.transforms.functional"]
    image = source.open_image(source.path)
    if not any(_is_random(transform.name) or transform.name in AUTOMATIC for transform in parts.geometry):
        pixels = image
        for operation in copy.deepcopy(tuple(_without_random(source.transform))):
            pixels = operation(pixels)
        return _plain(pixels)
    cut = image
    for name, arguments in source.program.parameters(image.width, image.height, source.seed, 0, draw):
        cut = _apply(functional, cut, name, arguments)
    if isinstance(cut, torch.Tensor):
        cut = functional.to_pil_image(cut)
    for operation in copy.deepcopy(parts.pointwise):
        cut = operation(cut)
    return _plain(cut)


def _without_random(transform: Any) -> Iterator[Any]:
    """Return the script's transforms without those that change each finished tensor at random (RandomErasing)."""
    per_image = translate(transform).per_image
    return (operation for operation in flatten(transform) if operation not in per_image)


def _plain(image: Any) -> torch.Tensor:
    plain: torch.Tensor = image.as_subclass(torch.Tensor)
    return plain


def _apply(functional: Any, image: Any, name: str, arguments: dict[str, Any]) -> Any:
    """Apply one transform by torchvision's function of that name."""
    if str(arguments.get("interpolation")).endswith(OF_TENSORS):
        functional = sys.modules["torchvision.transforms.v2.functional"]
        image = functional.to_image(image)
        arguments = arguments | {"interpolation": arguments["interpolation"].removesuffix(OF_TENSORS), "antialias": True}
    if name == "pillow_blur":
        return image.filter(sys.modules["PIL.ImageFilter"].GaussianBlur(arguments["radius"]))
    if name == "torch_blur":
        version, name = arguments["version"], "gaussian_blur"
        arguments = {key: value for key, value in arguments.items() if key != "version"}
        functional = functional if version == 1 else sys.modules["torchvision.transforms.v2.functional"]
    if "interpolation" in arguments:
        mode = sys.modules["torchvision.transforms"].InterpolationMode
        arguments = arguments | {"interpolation": mode(arguments["interpolation"])}
    return getattr(functional, V1_NAMES.get(name, name))(image, **arguments)


#: The end of the names of filters of uint8 tensors.
OF_TENSORS = "-int16"

V1_NAMES = {"horizontal_flip": "hflip", "vertical_flip": "vflip"}


def _compare_draws(transform: Any, geometry: Sequence[NativeTransform]) -> Iterator[tuple[str, bool]]:
    """Yield the name of each random parameter, and whether the two distributions agree."""
    steps = iter(geometry)
    for operation in copy.deepcopy(list(flatten(transform))):
        of_operation = list(itertools.islice(steps, len(steps_of(operation))))
        if is_own(operation) and of_operation:
            yield f"{display_name(operation)} results", _same_results(operation, of_operation)
        elif of_operation and _is_random(of_operation[0].name):
            yield from _compare_transform(operation, of_operation[0])


def _same_results(operation: Any, steps: list[NativeTransform]) -> bool:
    """Whether a transform of the script's own gives the same results as often on a small image: its middle pixel, its mean."""
    functional = sys.modules["torchvision.transforms.functional"]
    program = _program([NativeTransform("CenterCrop", _arguments(size=RESULT_SIDE)), *steps])
    pixels = np.random.default_rng(SEED).integers(0, 256, (RESULT_SIDE, RESULT_SIDE, 3), dtype=np.uint8)
    image = sys.modules["PIL.Image"].fromarray(pixels)
    theirs, ours = np.array([_summary(operation(image)) for _ in range(DRAWS)]), []
    for draw in range(DRAWS):
        drawn = image
        for name, arguments in program.parameters(RESULT_SIDE, RESULT_SIDE, SEED, 0, draw)[1:]:
            drawn = _apply(functional, drawn, name, arguments)
        ours.append(_summary(drawn))
    return all(_same_distribution(np.array(ours)[:, at], theirs[:, at]) for at in range(2))


def _summary(image: Any) -> tuple[float, float]:
    pixels = np.asarray(image, dtype=np.float64)
    return float(pixels[RESULT_SIDE // 2, RESULT_SIDE // 2, 0]), float(pixels.mean())


def _compare_transform(operation: Any, transform: NativeTransform) -> Iterator[tuple[str, bool]]:
    """Yield the same for one transform of a library."""
    if transform.name.endswith("Flip"):
        program = _program([NativeTransform("CenterCrop", _arguments(size=8)), transform])
        flip = 3 if "Horizontal" in transform.name else 4
        rate = sum(bool(program.place(*IMAGE_SIZE, SEED, 0, draw)[flip]) for draw in range(DRAWS)) / DRAWS
        yield f"{transform.name} rate", _expected_rate(rate, float(operation.p))
    elif transform.name in APPLIED_AT_RANDOM:
        rate = sum(bool(drawn) for drawn in _native_draws(transform)) / DRAWS
        yield f"{transform.name} rate", _expected_rate(rate, float(operation.p))
    elif transform.name == "RandomApply":
        always = NativeTransform("RandomInvert", _arguments(p=1.0))
        shown = NativeTransform("RandomApply", _arguments(transforms=(always,), p=transform.arguments["p"]))
        rate = sum(bool(drawn) for drawn in _native_draws(shown)) / DRAWS
        yield "RandomApply rate", _expected_rate(rate, float(operation.p))
        yield from _compare_draws(tuple(operation.transforms), transform.arguments["transforms"])
    elif transform.name in ("RandomRotation", "RandomAffine"):
        yield f"{transform.name} parameters", _same_motions(transform, operation)
    elif transform.name == "ColorJitter":
        yield "ColorJitter factors", _same_factors(transform, operation)
    elif transform.name == "TorchBlur":
        ours = np.array([drawn[0][1]["sigma"][0] for drawn in _native_draws(transform)], dtype=np.float64)
        theirs = np.array([_script_sigma(operation) for _ in range(DRAWS)], dtype=np.float64)
        yield "GaussianBlur sigma", _same_distribution(ours, theirs)
    elif transform.name == "RandomResizedCrop":
        program = _program([transform])
        ours = np.array([program.place(*IMAGE_SIZE, SEED, 0, draw)[0] for draw in range(DRAWS)], dtype=np.float64)
        theirs = np.array([_script_box(operation) for _ in range(DRAWS)], dtype=np.float64)
        yield "crop boxes", all(_same_distribution(a, b) for a, b in zip(_features(ours), _features(theirs), strict=True))
        if not isinstance(filters := transform.arguments["interpolation"], str):
            yield "interpolation", _same_filters(program, filters)


def _script_sigma(operation: Any) -> float:
    """Return a standard deviation, drawn by the script's GaussianBlur."""
    if hasattr(operation, "make_params"):
        return float(operation.make_params([])["sigma"][0])
    return float(operation.get_params(*operation.sigma))


def _same_filters(program: Program, filters: Sequence[str]) -> bool:
    """Whether each filter is drawn as often as by `random.choice`."""
    ours = [program.parameters(*IMAGE_SIZE, SEED, 0, draw)[-1][1]["interpolation"] for draw in range(DRAWS)]
    return all(_expected_rate(ours.count(name) / DRAWS, filters.count(name) / len(filters)) for name in set(filters))


def _same_factors(transform: NativeTransform, operation: Any) -> bool:
    """Whether the factors of a ColorJitter have equal distributions, and each of them comes first equally often."""
    program = _program([NativeTransform("CenterCrop", _arguments(size=8)), transform])
    ours = [dict(program.colours(SEED, 0, draw)) for draw in range(DRAWS)]
    theirs = np.array([_script_factors(operation) for _ in range(DRAWS)], dtype=np.float64)
    names = ("brightness", "contrast", "saturation", "hue")
    drawn = [(at, f"adjust_{name}") for at, name in enumerate(names) if getattr(operation, name) is not None]
    first = [sum(next(iter(one)) == name for one in ours) / DRAWS for _, name in drawn]
    share = 1 / len(drawn)
    return all(_expected_rate(rate, share) for rate in first) and all(
        _same_distribution(np.array([one[name] for one in ours]), theirs[:, at]) for at, name in drawn
    )


APPLIED_AT_RANDOM = frozenset(
    {"RandomGrayscale", "RandomInvert", "RandomAutocontrast", "RandomEqualize"}
    | {"RandomPosterize", "RandomSolarize", "RandomAdjustSharpness"}
)


def _native_draws(transform: NativeTransform) -> list[list[tuple[str, dict[str, Any]]]]:
    """Return the draws of a transform for `DRAWS` images of `IMAGE_SIZE`."""
    program = _program([NativeTransform("CenterCrop", _arguments(size=IMAGE_SIZE[::-1])), transform])
    return [program.parameters(*IMAGE_SIZE, SEED, 0, draw)[1:] for draw in range(DRAWS)]


def _same_motions(transform: NativeTransform, operation: Any) -> bool:
    """Whether the parameters of a rotation or affine transform have equal distributions."""
    ours = np.array([_numbers(drawn[0][1]) for drawn in _native_draws(transform)], dtype=np.float64)
    theirs = np.array([_script_numbers(operation) for _ in range(DRAWS)], dtype=np.float64)
    return all(_same_distribution(ours[:, at], theirs[:, at]) for at in range(theirs.shape[1]))


def _numbers(arguments: dict[str, Any]) -> list[float]:
    """Return angle, translation, scale and shear; for a rotation the angle only."""
    if "scale" not in arguments:
        return [arguments["angle"]]
    return [arguments["angle"], *arguments["translate"], arguments["scale"], *arguments["shear"]]


def _script_numbers(operation: Any) -> list[float]:
    """Return the same numbers, drawn by the script's object."""
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


def _expected_rate(rate: float, probability: float) -> bool:
    """Whether a rate over `DRAWS` draws is within five standard deviations of its probability."""
    return abs(rate - probability) <= 5 * math.sqrt(probability * (1 - probability) / DRAWS) + 1e-9


def _script_factors(operation: Any) -> list[float]:
    """Return brightness, contrast, saturation and hue, drawn by the script's ColorJitter. NaN: it does not change that one."""
    if hasattr(operation, "make_params"):
        drawn = list(operation.make_params([]).values())
    else:
        drawn = list(operation.get_params(operation.brightness, operation.contrast, operation.saturation, operation.hue))
    return [math.nan if factor is None else float(factor) for factor in drawn[1:]]


def _is_random(name: str) -> bool:
    return name.startswith("Random") or name in ("ColorJitter", "PillowBlur", "TorchBlur")


def _arguments(**arguments: Any) -> Any:
    return arguments


def _program(steps: list[NativeTransform]) -> Program:
    return compile_pipeline(Compose([transform_of(transform) for transform in steps])).program


def _script_box(operation: Any) -> tuple[int, int, int, int]:
    """Return (x, y, w, h), drawn by the script's RandomResizedCrop."""
    image = torch.empty((), dtype=torch.uint8).expand(3, IMAGE_SIZE[1], IMAGE_SIZE[0])
    if hasattr(operation, "make_params"):
        drawn = operation.make_params([image])
        return drawn["left"], drawn["top"], drawn["width"], drawn["height"]
    top, left, height, width = operation.get_params(image, operation.scale, operation.ratio)
    return left, top, width, height


def _features(boxes: npt.NDArray[np.float64]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield area, aspect ratio, and the position as a share of the free space. Ties on the integer grid stay."""
    x, y, w, h = boxes.T
    yield w * h
    yield w / h
    yield x / np.maximum(1, IMAGE_SIZE[0] - w)
    yield y / np.maximum(1, IMAGE_SIZE[1] - h)


def _same_distribution(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> bool:
    """Whether two samples of equal size pass the two-sample Kolmogorov-Smirnov test."""
    values = np.sort(np.concatenate([ours, theirs]))
    first = np.searchsorted(np.sort(ours), values, side="right") / len(ours)
    second = np.searchsorted(np.sort(theirs), values, side="right") / len(theirs)
    statistic = float(np.abs(first - second).max())
    return statistic <= KOLMOGOROV_LIMIT * math.sqrt(2 / len(ours))
