"""Random transforms natively: fuse="off" equals torchvision on Pillow images, fused stays near it, draws are as documented."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import numpy.typing as npt
import pytest
from headrace import transforms as t
from headrace.errors import UsageError
from headrace.transforms.compile import compile_pipeline
from PIL import Image, ImageFilter

functional = pytest.importorskip("torchvision.transforms.v2.functional")
Pixels = npt.NDArray[np.uint8]
SEED = 11
SIZES = [(90, 70), (64, 96), (101, 101), (40, 55)]


def picture(number: int, size: tuple[int, int]) -> Image.Image:
    """Smooth colours, a hard edge and noise."""
    rng = np.random.default_rng(number)
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 100 * np.sin(x / (5 + 3 * c) + number) * np.cos(y / (9 - 2 * c)) for c in range(3)]
    pixels = np.stack(planes, axis=2) + rng.normal(0, 6, (height, width, 3))
    pixels[height // 3 :, : width // 4] = rng.integers(0, 256, 3)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    (root / "one").mkdir()
    for number, size in enumerate(SIZES * 3):
        picture(number, size).save(root / "one" / f"{number:02}.png")
    return root


def dilated(image: Image.Image, size: int) -> Image.Image:
    return image.filter(ImageFilter.MaxFilter(size))


def eroded(image: Image.Image, size: int) -> Image.Image:
    return image.filter(ImageFilter.MinFilter(size))


OURS_ALONE = {"dilate": dilated, "erode": eroded}


def replayed(image: Image.Image, parameters: Sequence[tuple[str, dict[str, Any]]]) -> Pixels:
    """Return what torchvision makes of the image with the same parameters."""
    for name, arguments in parameters:
        function = OURS_ALONE.get(name) or getattr(functional, name)
        image = function(image, **arguments)
    return np.asarray(image)


def loaded(root: Path, transform: t.Transform, fuse: Any) -> tuple[headrace.Loader, Pixels]:
    loader = headrace.Loader(
        root, batch_size=len(SIZES) * 3, transform=transform, seed=SEED, shuffle=False, output="numpy", threads=2, fuse=fuse
    )
    images, _ = next(iter(loader))
    loader.close()
    return loader, images.copy()


def both(root: Path, transform: t.Transform, fuse: Any = "off") -> list[tuple[Pixels, Pixels]]:
    """Yield our and torchvision's pixels of every image."""
    loader, images = loaded(root, transform, fuse)
    pairs = []
    for record, ours in enumerate(images):
        image = picture(record, (SIZES * 3)[record])
        drawn = loader.pipeline.program.parameters(image.width, image.height, SEED, 0, record)
        pairs.append((ours, replayed(image, drawn)))
    return pairs


LOAD = t.Compose([t.RandomHorizontalFlip(), t.RandomVerticalFlip(), t.RandomRotation(5)])
EXACT: dict[str, list[t.Transform]] = {
    "crop, flip": [t.RandomResizedCrop(32), t.RandomHorizontalFlip()],
    "one of two filters": [t.RandomResizedCrop(32, interpolation=("bilinear", "bicubic")), t.RandomHorizontalFlip()],
    "load": [t.Repeat(LOAD, 4), t.RandomResizedCrop(48)],
    "load, bilinear": [t.Repeat(t.RandomRotation(25, interpolation="bilinear"), 3), LOAD, t.RandomResizedCrop((40, 30))],
    "rotation after the crop": [
        t.RandomResizedCrop(48),
        t.RandomRotation((20, 70), interpolation="bilinear", fill=(9, 99, 199)),
    ],
    "rotation of a part": [t.CenterCrop(38), t.RandomRotation(45), t.RandomVerticalFlip()],
    "expanded": [t.RandomRotation(90, expand=True, fill=7), t.Resize((50, 60))],
    "about a corner": [t.RandomRotation(40, center=(3, 50)), t.CenterCrop(64)],
    "quarter turns": [t.RandomRotation((90, 90)), t.RandomRotation((180, 180)), t.RandomRotation((0, 0)), t.CenterCrop(64)],
    "affine": [t.RandomAffine(30, (0.2, 0.3), (0.5, 1.6), 20), t.RandomHorizontalFlip(), t.Resize((50, 70))],
    "affine, bilinear": [
        t.Resize((60, 80), interpolation="bicubic"),
        t.RandomAffine((-10, 80), shear=(-5, 5, -20, 20), interpolation="bilinear", fill=200),
    ],
    "two resizes": [t.Resize(50), t.RandomCrop(45, padding=10), t.RandomResizedCrop(32, interpolation="lanczos")],
    "padded": [t.Pad((3, 5, 8, 2), fill=(1, 200, 3)), t.RandomHorizontalFlip(), t.Pad(4), t.Resize((44, 52))],
    "padding a part": [t.CenterCrop(30), t.Pad(6), t.CenterCrop(50)],
    "colours first": [t.ColorJitter(0.4, 0.4, 0.4, 0.2), t.RandomHorizontalFlip(), t.RandomResizedCrop(40)],
    "pointwise first": [t.ColorJitter(0.4, None, 0.4, 0.2), t.RandomInvert(), t.RandomResizedCrop(40), t.RandomVerticalFlip()],
    "every colour": [
        t.RandomResizedCrop(40),
        t.RandomInvert(),
        t.RandomPosterize(3),
        t.RandomSolarize(128.5),
        t.RandomAutocontrast(),
        t.RandomEqualize(),
        t.RandomAdjustSharpness(2.5),
        t.RandomHorizontalFlip(),
        t.RandomGrayscale(0.3),
        t.Dilation(5),
        t.Erosion(),
        t.RandomVerticalFlip(),
    ],
    "gray": [t.CenterCrop(50), t.Grayscale(3)],
    "apply": [
        t.Resize((50, 50)),
        t.RandomApply([t.RandomRotation(30), t.ColorJitter(0.5), t.RandomApply([t.Dilation()], 0.5)], 0.6),
        t.RandomHorizontalFlip(),
    ],
    "RandAugment": [t.RandomResizedCrop(56), t.RandAugment(4, magnitude=15)],
    "RandAugment first": [t.RandAugment(3, interpolation="bilinear", fill=128), t.RandomResizedCrop(56)],
    "TrivialAugmentWide": [t.Resize((50, 50)), t.RandomHorizontalFlip(), t.TrivialAugmentWide()],
    "AutoAugment": [t.Resize((50, 50)), t.Repeat(t.AutoAugment(), 2), t.AutoAugment("cifar10"), t.AutoAugment("svhn")],
}


@pytest.mark.parametrize("name", EXACT)
def test_off_equals_torchvision_on_pillow_images(folder: Path, name: str) -> None:
    for ours, theirs in both(folder, t.Compose(EXACT[name])):
        np.testing.assert_array_equal(ours, theirs)


def test_blur_differs_by_one_level_at_most(folder: Path) -> None:
    pairs = both(folder, t.Compose([t.Resize((40, 50)), t.GaussianBlur((5, 9)), t.RandomHorizontalFlip()]))
    gaps = np.array([np.abs(ours.astype(int) - theirs) for ours, theirs in pairs])
    assert gaps.max() <= 1
    assert (gaps != 0).mean() < 0.001


#: One sampling, exactly the operation's own: nothing may differ.
FUSED_EXACT = [
    "crop, flip",
    "rotation after the crop",
    "two resizes",
    "padded",
    "every colour",
    "colours first",
]


@pytest.mark.parametrize("name", FUSED_EXACT)
def test_fused_equals_torchvision_where_nothing_is_merged(folder: Path, name: str) -> None:
    for ours, theirs in both(folder, t.Compose(EXACT[name]), "geometry"):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["load", "load, bilinear", "rotation of a part", "affine", "RandAugment", "apply"])
def test_fused_shows_the_same_picture(folder: Path, name: str) -> None:
    """Fused geometry moves each point and the fill as op by op does: on smooth pictures the difference is small."""
    root = folder.parent / "smooth"
    pairs = []
    loader, images = loaded(_smooth(root), t.Compose(EXACT[name]), "geometry")
    for record, ours in enumerate(images):
        image = Image.open(root / "one" / f"{record:02}.png")
        drawn = loader.pipeline.program.parameters(image.width, image.height, SEED, 0, record)
        pairs.append((ours, replayed(image, drawn)))
    gaps = np.array([np.abs(ours.astype(int) - theirs).mean() for ours, theirs in pairs])
    assert gaps.mean() < 4, gaps


def _smooth(root: Path) -> Path:
    (root / "one").mkdir(parents=True, exist_ok=True)
    for number, (width, height) in enumerate(SIZES * 3):
        y, x = np.mgrid[0:height, 0:width]
        planes = [128 + 100 * np.sin(x / (21 + 3 * c) + number) * np.cos(y / (29 - 2 * c)) for c in range(3)]
        Image.fromarray(np.stack(planes, axis=2).astype(np.uint8)).save(root / "one" / f"{number:02}.png")
    return root


def test_fused_fill_covers_the_same_pixels_as_op_by_op(folder: Path) -> None:
    """White pictures: black pixels were outside the image at some step. Only pixels at an edge may differ."""
    root = folder.parent / "white"
    (root / "one").mkdir(parents=True)
    for number, size in enumerate(SIZES * 3):
        Image.new("RGB", size, (255, 255, 255)).save(root / "one" / f"{number:02}.png")
    transform = t.Compose(
        [t.CenterCrop(40), t.Repeat(t.RandomRotation(30), 3), t.RandomCrop(40, padding=4), t.RandomRotation(20)]
    )
    loader, images = loaded(root, transform, "geometry")
    for record, ours in enumerate(images):
        image = Image.open(root / "one" / f"{record:02}.png")
        drawn = loader.pipeline.program.parameters(image.width, image.height, SEED, 0, record)
        theirs = replayed(image, drawn)
        assert 0.2 < (theirs > 0).mean() < 0.98
        assert ((ours > 127) != (theirs > 127)).mean() < 0.05


def test_a_jpeg_is_decoded_only_where_it_is_needed(tmp_path: Path) -> None:
    """The pixels are those of the whole image, whichever region is decoded."""
    (tmp_path / "one").mkdir()
    for number in range(12):
        file = io.BytesIO()
        picture(number, (230, 190)).save(file, "JPEG", quality=90, subsampling=number % 3)
        (tmp_path / "one" / f"{number:02}.jpg").write_bytes(file.getvalue())
    transform = t.Compose([t.Repeat(LOAD, 2), t.ColorJitter(0.3), t.RandomResizedCrop(32, scale=(0.05, 0.2))])
    loader, images = loaded(tmp_path, transform, "off")
    for record, ours in enumerate(images):
        image = Image.open(tmp_path / "one" / f"{record:02}.jpg").convert("RGB")
        drawn = loader.pipeline.program.parameters(image.width, image.height, SEED, 0, record)
        np.testing.assert_array_equal(ours, replayed(image, drawn))


def drawn(transforms: Sequence[t.Transform], draws: int = 4000, size: tuple[int, int] = (200, 100)) -> list[Any]:
    program = compile_pipeline(t.Compose([t.CenterCrop((size[1], size[0])), *transforms])).program
    return [program.parameters(*size, SEED, 0, draw)[1:] for draw in range(draws)]


def uniform(values: Sequence[float], low: float, high: float) -> bool:
    """Return whether values look uniform on [low, high]: range, and mean and deviation within 5 standard errors."""
    x = (np.asarray(values) - low) / (high - low)
    n = len(x)
    near = abs(x.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n) and abs(x.std() - np.sqrt(1 / 12)) < 5 * np.sqrt(1 / 180 / n) * 2
    return bool(x.min() >= -1e-6 and x.max() <= 1 + 1e-6 and near)


def fair(count: int, draws: int, p: float) -> bool:
    return abs(count - draws * p) <= 5 * np.sqrt(draws * p * (1 - p))


def test_angles_shifts_scales_and_shears_are_uniform() -> None:
    turned = [steps[0][1] for steps in drawn([t.RandomRotation((-10, 30))])]
    assert uniform([arguments["angle"] for arguments in turned], -10, 30)
    moved = [steps[0][1] for steps in drawn([t.RandomAffine(20, (0.3, 0.1), (0.5, 1.5), (-3, 4, 5, 9))])]
    assert uniform([arguments["angle"] for arguments in moved], -20, 20)
    assert uniform([arguments["scale"] for arguments in moved], 0.5, 1.5)
    for axis, (low, high) in enumerate([(-3, 4), (5, 9)]):
        assert uniform([arguments["shear"][axis] for arguments in moved], low, high)
    for axis, most in enumerate([60, 10]):
        shifts = [arguments["translate"][axis] for arguments in moved]
        assert all(isinstance(shift, int) for shift in shifts)
        assert min(shifts) == -most
        assert max(shifts) == most
    plain = drawn([t.RandomAffine(0)], 20)
    assert all(steps[0][1] | {"fill": 0} == _UNCHANGED for steps in plain)


_UNCHANGED = {
    "angle": 0.0,
    "translate": [0, 0],
    "scale": 1.0,
    "shear": [0.0, 0.0],
    "center": None,
    "interpolation": "nearest",
    "fill": 0,
}


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (t.RandomInvert(0.3), "invert"),
        (t.RandomPosterize(4, 0.3), "posterize"),
        (t.RandomSolarize(100, 0.3), "solarize"),
        (t.RandomAutocontrast(0.3), "autocontrast"),
        (t.RandomEqualize(0.3), "equalize"),
        (t.RandomAdjustSharpness(2, 0.3), "adjust_sharpness"),
        (t.RandomApply([t.RandomInvert(1.0)], 0.3), "invert"),
    ],
)
def test_transforms_apply_with_their_probability(transform: t.Transform, name: str) -> None:
    found = drawn([transform])
    assert {step[0] for steps in found for step in steps} == {name}
    assert fair(sum(len(steps) for steps in found), len(found), 0.3)


def test_one_of_several_filters_is_drawn_for_each_image() -> None:
    several = drawn([t.RandomResizedCrop(8, interpolation=["bilinear", "bicubic"])])
    single = drawn([t.RandomResizedCrop(8)])
    names = [parameters[-1][1]["interpolation"] for parameters in several]
    assert set(names) == {"bilinear", "bicubic"} and fair(names.count("bicubic"), len(names), 0.5)
    assert [parameters[0] for parameters in several] == [parameters[0] for parameters in single]  # the same boxes
    one = t.RandomResizedCrop(8, interpolation=["bilinear"])
    assert one == t.RandomResizedCrop(8) and compile_pipeline(one).hash == compile_pipeline(t.RandomResizedCrop(8)).hash


def test_blur_sigma_is_uniform() -> None:
    sigma = [steps[0][1]["sigma"] for steps in drawn([t.GaussianBlur(5)])]
    assert all(across == down for across, down in sigma)
    assert uniform([across for across, _ in sigma], 0.1, 2.0)


def magnitude(name: str, arguments: dict[str, Any]) -> tuple[str, float]:
    """Return the operation and its magnitude as torchvision's augmentation space counts them, without the sign."""
    if name == "affine":
        axis = 0 if arguments["shear"][0] or arguments["translate"][0] else 1
        if any(arguments["translate"]):
            return f"Translate{'XY'[axis]}", abs(arguments["translate"][axis])
        if any(arguments["shear"]):
            return f"Shear{'XY'[axis]}", abs(np.tan(np.radians(arguments["shear"][axis])))
        return "still", 0.0
    if name == "rotate":
        return "Rotate", abs(arguments["angle"])
    if name == "posterize":
        return "Posterize", arguments["bits"]
    if name == "solarize":
        return "Solarize", arguments["threshold"]
    if name.startswith("adjust_"):
        kind = {"saturation": "Color"}.get(name.removeprefix("adjust_"), name.removeprefix("adjust_").capitalize())
        return kind, abs(next(iter(arguments.values())) - 1)
    return {"autocontrast": "AutoContrast"}.get(name, name.capitalize()), 0.0


def table(space: dict[str, Any], bins: int, bin_: int) -> dict[str, float]:
    """Return torchvision's own magnitudes of a bin, for pictures of 200×100."""
    found = {}
    for name, (magnitudes, _) in space.items():
        values = magnitudes(bins, 100, 200)
        value = 0.0 if values is None else float(values[bin_])
        found[name] = {"Solarize": np.ceil(255 * value), "TranslateX": int(value), "TranslateY": int(value)}.get(name, value)
    return found


@pytest.mark.parametrize(("bins", "bin_"), [(31, 9), (31, 30), (31, 14), (10, 3), (2, 1)])
def test_rand_augment_has_torchvisions_magnitudes(bins: int, bin_: int) -> None:
    from torchvision.transforms.v2 import RandAugment

    found = drawn([t.RandAugment(3, magnitude=bin_, num_magnitude_bins=bins)], 3000)
    expected = table(RandAugment._AUGMENTATION_SPACE, bins, bin_)
    counts: dict[str, int] = {}
    signs: dict[str, list[float]] = {}
    for name, arguments in (step for steps in found for step in steps):
        kind, value = magnitude(name, arguments)
        counts[kind] = counts.get(kind, 0) + 1
        assert value == pytest.approx(expected[kind], abs=1e-6), kind
        signs.setdefault(kind, []).append(arguments.get("angle", 0.0))
    assert counts.keys() == expected.keys() - {"Identity"}
    assert all(fair(count, 9000, 1 / 14) for count in counts.values()), counts
    turned = signs["Rotate"]
    assert fair(sum(angle > 0 for angle in turned), len(turned), 0.5)


def test_trivial_augment_wide_has_torchvisions_magnitudes() -> None:
    from torchvision.transforms.v2 import TrivialAugmentWide

    space = TrivialAugmentWide._AUGMENTATION_SPACE
    expected = [table(space, 31, bin_) for bin_ in range(31)]
    counts: dict[str, int] = {}
    for name, arguments in (step for steps in drawn([t.TrivialAugmentWide()], 14000) for step in steps):
        kind, value = magnitude(name, arguments)
        counts[kind] = counts.get(kind, 0) + 1
        if kind != "still":
            assert min(abs(value - row[kind]) for row in expected) < 1e-6, (kind, value)
    # A shear and a shift of strength 0 look the same.
    assert all(fair(counts[kind], 14000, 1 / 14) for kind in ("Rotate", "Brightness", "Posterize", "Equalize", "Solarize"))


@pytest.mark.parametrize("bins", [2, 10, 11, 31])
def test_version_1_rounds_as_torchvisions_first_generation(bins: int) -> None:
    """Version 1 has other solarize thresholds than v2 times 255, and posterize rounds the bits removed, not those left."""
    from torchvision import transforms as v1

    rand = [[t.RandAugment(4, magnitude=bin_, num_magnitude_bins=bins, version=1)] for bin_ in range(bins)]
    spaces = [([drawn(stack, 300) for stack in rand], v1.RandAugment()._augmentation_space(bins, (100, 200)))]
    if bins == 31:
        trivial = t.TrivialAugmentWide(version=1)
        spaces.append(([drawn([trivial], 9000)], v1.TrivialAugmentWide()._augmentation_space(bins)))
    for draws, space in spaces:
        thresholds = {float(np.ceil(value)) for value in space["Solarize"][0].tolist()}
        bits = {int(value) for value in space["Posterize"][0].tolist()}
        found: dict[str, set[float]] = {"solarize": set(), "posterize": set()}
        for name, arguments in (step for part in draws for steps in part for step in steps):
            if name in found:
                found[name].add(next(iter(arguments.values())))
        assert found == {"solarize": thresholds, "posterize": bits}


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_auto_augment_has_torchvisions_policies(policy: str) -> None:
    from torchvision.transforms import AutoAugmentPolicy
    from torchvision.transforms.v2 import AutoAugment

    theirs = AutoAugment(AutoAugmentPolicy(policy))
    pairs = theirs._policies
    draws = 8000
    found = drawn([t.AutoAugment(policy)], draws)
    expected: dict[str, float] = {}
    for pair in pairs:
        for kind, p, _ in pair:
            expected[kind] = expected.get(kind, 0.0) + p / len(pairs)
    counts: dict[str, int] = {}
    strengths = {
        kind: [
            table(theirs._AUGMENTATION_SPACE, 10, bin_ or 0)[kind] for pair in pairs for other, _, bin_ in pair if other == kind
        ]
        for kind in expected
    }
    for name, arguments in (step for steps in found for step in steps):
        kind, value = magnitude(name, arguments)
        counts[kind] = counts.get(kind, 0) + 1
        assert min(abs(value - strength) for strength in strengths[kind]) < 1e-6
    assert counts.keys() == {kind for kind, rate in expected.items() if rate > 0}
    for kind, count in counts.items():
        assert abs(count - draws * expected[kind]) <= 6 * np.sqrt(draws * expected[kind]), kind


OWN_ARGUMENTS = ("Identity", "Lambda", "ToTensor", "ConvertImageDtype")  # they take dtypes by name, or anything


def test_defaults_are_torchvisions() -> None:
    import inspect

    from torchvision.transforms import v2

    for name in t.__all__:
        theirs = getattr(v2, name, None)
        if theirs is None or name in ("Compose", "Transform", "ToDtype", "Normalize", *OWN_ARGUMENTS):
            continue
        wanted = inspect.signature(theirs).parameters
        for parameter in inspect.signature(getattr(t, name)).parameters.values():
            if parameter.name == "version":  # which of torchvision's two: ours alone
                continue
            other = wanted[parameter.name]
            default = getattr(other.default, "value", other.default)
            assert parameter.default == default or parameter.default == tuple(np.atleast_1d(default)), (name, parameter)


def test_the_hash_follows_every_parameter() -> None:
    crop = t.CenterCrop(32)
    pipelines: list[tuple[list[t.Transform], Any]] = [
        ([crop], "geometry"),
        ([crop, t.RandomRotation(5)], "geometry"),
        ([crop, t.RandomRotation(5)], "off"),
        ([crop, t.RandomRotation(6)], "off"),
        ([crop, t.RandomRotation(6, fill=1)], "off"),
        ([crop, t.RandomRotation(6, interpolation="bilinear")], "off"),
        ([crop, t.RandomAffine(6)], "off"),
        ([crop, t.RandAugment()], "off"),
        ([crop, t.RandAugment(3)], "off"),
        ([crop, t.RandomInvert()], "off"),
        ([crop, t.RandomApply([t.RandomInvert()])], "off"),
        ([crop, t.RandomApply([t.RandomInvert()], 0.4)], "off"),
        ([crop, t.Repeat(t.RandomInvert(), 2)], "off"),
    ]
    hashes = [compile_pipeline(t.Compose(transforms), fuse=fuse).hash for transforms, fuse in pipelines]
    assert len(set(hashes)) == len(hashes)
    same = [compile_pipeline(t.Compose([t.RandomResizedCrop(8)]), fuse=fuse).hash for fuse in ("geometry", "off")]  # type: ignore[arg-type]
    assert same[0] == same[1]


def test_describe_names_what_is_fused() -> None:
    transforms = t.Compose([t.RandomRotation(5), t.RandomApply([t.RandomInvert()]), t.RandomResizedCrop(32)])
    fused = "\n".join(compile_pipeline(transforms).describe())
    assert "one affine matrix an image" in fused
    assert fused.splitlines()[:3] == [
        "RandomRotation(5.0)",
        "RandomApply([RandomInvert()])",
        "RandomResizedCrop(32, scale=(0.08, 1.0))",
    ]
    assert 'fuse="off"' in "\n".join(compile_pipeline(transforms, fuse="off").describe())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: t.RandomRotation(-5), "single number"),
        (lambda: t.RandomRotation(5, interpolation="bicubic"), "nearest and bilinear"),
        (lambda: t.RandomRotation(5, fill=(1, 2)), "fill"),
        (lambda: t.RandomRotation(5, fill=300), "fill"),
        (lambda: t.RandomRotation((5, 1)), "degrees"),
        (lambda: t.RandomRotation("5"), "degrees"),
        (lambda: t.RandomRotation(5, expand=True, center=(1, 2)), "center"),
        (lambda: t.RandomAffine(5, translate=(2, 0)), "translate"),
        (lambda: t.RandomAffine(5, scale=(0, 1)), "scale"),
        (lambda: t.GaussianBlur(4), "odd"),
        (lambda: t.GaussianBlur(3, sigma=0), "sigma"),
        (lambda: t.Grayscale(), "num_output_channels=3"),
        (lambda: t.RandomPosterize(9), "bits"),
        (lambda: t.RandomSolarize(300), "threshold"),
        (lambda: t.Dilation(4), "odd"),
        (lambda: t.Pad(1, padding_mode="reflect"), "reflect"),
        (lambda: t.RandAugment(magnitude=31), "magnitude"),
        (lambda: t.AutoAugment("mine"), "policy"),
        (lambda: t.RandomApply([lambda image: image]), "transforms"),
        (lambda: t.Repeat(t.RandomInvert(), -1), "n must"),
        (lambda: compile_pipeline(t.Compose([t.CenterCrop(8)]), fuse="on"), "fuse"),
        (lambda: compile_pipeline(t.Compose([t.CenterCrop(8), t.RandomRotation(5, expand=True)])), "differs"),
    ],
)
def test_refuses_bad_arguments(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_a_picture_too_small_for_a_blur_is_a_bad_record(folder: Path) -> None:
    with pytest.raises(headrace.errors.DecodeError, match="too small"):
        loaded(folder, t.Compose([t.GaussianBlur(91), t.CenterCrop(8)]), "off")


@pytest.mark.parametrize("turned", [False, True])
def test_dct_scale_is_close_and_changes_the_hash(tmp_path: Path, turned: bool) -> None:
    (tmp_path / "one").mkdir()
    for number in range(12):
        y, x = np.mgrid[0:381, 0:463]
        planes = [128 + 100 * np.sin(x / (31 + 3 * c) + number) * np.cos(y / (39 - 2 * c)) for c in range(3)]
        Image.fromarray(np.stack(planes, axis=2).astype(np.uint8)).save(tmp_path / "one" / f"{number:02}.jpg", quality=95)
    transform = t.Compose([*([t.RandomRotation(9)] if turned else []), t.RandomResizedCrop(48, scale=(0.3, 1.0))])
    batches, hashes = [], set()
    for dct_scale in ("off", "auto"):
        with headrace.Loader(tmp_path, 12, transform, output="numpy", dct_scale=dct_scale, threads=1) as loader:  # type: ignore[arg-type]
            batches.append(next(iter(loader))[0].astype(int))
            hashes.add(loader.pipeline.hash)
            assert ("dct_scale" in " ".join(loader.pipeline.describe())) == (dct_scale == "auto")
            loader.set_epoch(0)  # again, with the checkpoint indexes that the first time has left
            again = next(iter(loader))[0].astype(int)
            np.testing.assert_array_equal(again, batches[-1])
    gap = np.abs(batches[0] - batches[1])
    assert 0 < gap.mean() < 2
    assert len(hashes) == 2
    with pytest.raises(UsageError, match="dct_scale"):
        compile_pipeline(transform, dct_scale="half")  # type: ignore[arg-type]
