"""Augmentation on a device: bit for bit the CPU kernel's, with its draws, for every operation that a device has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.gpu.augmentation import augment as module
from headrace.gpu.augmentation.augment_check import SAMPLES, YieldingKernel, _checked, checked_operations, different_operations
from headrace.transforms import (
    AutoAugment,
    CenterCrop,
    ColorJitter,
    Compose,
    Dilation,
    Erosion,
    GaussianBlur,
    Grayscale,
    Pad,
    PillowBlur,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomCrop,
    RandomEqualize,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    Repeat,
    Resize,
    TrivialAugmentWide,
)
from headrace.transforms.compile import compile_pipeline
from PIL import Image

torch = pytest.importorskip("torch")

HEIGHT, WIDTH = 33, 46
SEED = 5


def pictures() -> np.ndarray:
    """Noise, ramps, few colours, one colour, faint and dark pictures: the branches of the colour operations."""
    random = np.random.default_rng(1)
    noise = random.integers(0, 256, (30, HEIGHT, WIDTH, 3), dtype=np.uint8)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    noise[1::5] = np.stack([x * 5, y * 7, (x + y) * 3], -1).astype(np.uint8)
    noise[2::5] &= 0xC0
    noise[3::5] = noise[3::5] // 16 + 90
    noise[4] = 0
    noise[9] = (255, 255, 254)
    noise[14] = noise[14, :, :, :1]  # gray
    noise[19, :, :, 1:] = 0  # one channel
    return noise


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    (root / "class").mkdir()
    for number, pixels in enumerate(pictures()):
        Image.fromarray(pixels).save(root / "class" / f"{number:03d}.png")
    return root


POINTWISE: dict[str, Any] = {
    "brightness": ColorJitter(brightness=(0.0, 2.5)),
    "contrast": ColorJitter(contrast=(0.0, 2.5)),
    "saturation": ColorJitter(saturation=(0.0, 2.5)),
    "hue": ColorJitter(hue=0.5),
    "jitter": ColorJitter(0.4, 0.4, 0.4, 0.1),
    "gray": Grayscale(3),
    "sometimes gray": RandomGrayscale(0.5),
    "invert": RandomInvert(),
    "posterize": RandomPosterize(3),
    "posterize to 8 bits": RandomPosterize(8, p=1.0),
    "solarize": RandomSolarize(100),
    "solarize all": RandomSolarize(0, p=1.0),
    "solarize none": RandomSolarize(256, p=1.0),
    "autocontrast": RandomAutocontrast(p=1.0),
    "equalize": RandomEqualize(p=1.0),
}
NEIGHBOURS: dict[str, Any] = {
    "smooth": RandomAdjustSharpness(0.2, p=1.0),
    "sharpen": RandomAdjustSharpness(3.5),
    "blur 3": GaussianBlur(3),
    "blur 5": GaussianBlur(5, sigma=(0.1, 4.0)),
    "blur 23": GaussianBlur(23),
    "blur 63×5": GaussianBlur((63, 5), sigma=(3.0, 9.0)),
    "dilation": Dilation(3),
    "erosion": Erosion(5),
}
SAMPLINGS: dict[str, Any] = {
    f"{kind}, {interpolation}": step
    for interpolation in ("nearest", "bilinear")
    for kind, step in {
        "rotation": RandomRotation(180, interpolation=interpolation, fill=(9, 90, 200)),
        "about a corner": RandomRotation(40, interpolation=interpolation, center=(3, 5)),
        "affine": RandomAffine(
            30, translate=(0.3, 0.4), scale=(0.3, 2.5), shear=(-20, 20, -30, 30), interpolation=interpolation, fill=77
        ),
        "scale": RandomAffine(0, scale=(0.2, 3.0), interpolation=interpolation),
        "shift": RandomAffine(0, translate=(0.5, 0.5), interpolation=interpolation),
    }.items()
}
CHAINS: dict[str, Any] = {
    "two rotations": Compose([RandomRotation(30, interpolation="bilinear"), RandomRotation(40, interpolation="bilinear")]),
    "rotations, another fill": Compose([RandomRotation(30, fill=5), RandomAffine(20, shear=30, fill=200)]),
    "flips between": Compose([RandomVerticalFlip(), RandomRotation(30), RandomHorizontalFlip(), RandomInvert()]),
    "flips after a blur": Compose([GaussianBlur(3), RandomHorizontalFlip(), RandomVerticalFlip()]),
    "sometimes all": RandomApply([ColorJitter(0.4, 0.4), GaussianBlur(5)], p=0.5),
    "three times": Repeat(RandomRotation(10, interpolation="bilinear"), 3),
    "eight times": Repeat(RandomRotation(20), 8),
    "as SimCLR": Compose(
        [RandomHorizontalFlip(), RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8), RandomGrayscale(0.2), GaussianBlur(5)]
    ),
}
POLICIES: dict[str, Any] = {
    "RandAugment": RandAugment(),
    "strong RandAugment": RandAugment(4, 30, interpolation="bilinear", fill=(1, 2, 3)),
    "RandAugment of v1": RandAugment(3, 20, version=1),
    "TrivialAugmentWide": TrivialAugmentWide(),
    "bilinear TrivialAugmentWide": TrivialAugmentWide(interpolation="bilinear", fill=128),
    "AutoAugment": AutoAugment(),
    "AutoAugment of CIFAR-10": AutoAugment("cifar10", interpolation="bilinear"),
    "AutoAugment of SVHN": AutoAugment("svhn"),
}
ALL = POINTWISE | NEIGHBOURS | SAMPLINGS | CHAINS | POLICIES


@pytest.mark.parametrize("fuse", ["geometry", "off"])
@pytest.mark.parametrize("name", ALL)
def test_pixels_and_draws_are_those_of_the_cpu_kernel(folder: Path, name: str, fuse: Any) -> None:
    transform = Compose([CenterCrop((HEIGHT, WIDTH)), ALL[name]])
    with headrace.Loader(folder, 30, transform, shuffle=False, seed=SEED, threads=1, fuse=fuse) as loader:
        (expected, _), *rest = [(images.numpy().copy(), labels) for images, labels in loader]
        program = loader.pipeline.program
    assert not rest
    passes = []
    for record in range(30):
        (box, _, _, flip_x, flip_y), own = program.split(WIDTH, HEIGHT, SEED, 0, record)
        assert box == (0, 0, WIDTH, HEIGHT)
        passes.append([*[("flip_x", [])] * flip_x, *[("flip_y", [])] * flip_y, *own])
    assert any(passes)
    found = module.augment(torch.from_numpy(pictures()), passes)
    np.testing.assert_array_equal(found.permute(0, 3, 1, 2).numpy(), expected)


def test_parts_of_a_batch_give_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_pipeline(Compose([CenterCrop((HEIGHT, WIDTH)), RandAugment(3)])).program
    passes = [program.split(WIDTH, HEIGHT, SEED, 0, record)[1] for record in range(30)]
    whole = module.augment(torch.from_numpy(pictures()), passes)
    monkeypatch.setattr(module, "MOST_PIXELS", 1)
    assert torch.equal(module.augment(torch.from_numpy(pictures()), passes), whole)


def test_a_batch_in_planes_gives_the_same_pixels() -> None:
    planes = torch.from_numpy(pictures()).permute(0, 3, 1, 2).contiguous()
    passes = [[("equalize", []), ("sharpness", [1.8])]] * 30
    found = module.augment(planes.permute(0, 2, 3, 1), passes)
    assert torch.equal(found, module.augment(torch.from_numpy(pictures()), passes))


def test_images_without_passes_stay_as_they_are() -> None:
    images = torch.from_numpy(pictures())
    assert module.augment(images, [[]] * 30) is images
    assert module.augment(images[:0], []).shape == (0, HEIGHT, WIDTH, 3)
    one = module.augment(images.clone(), [[("invert", [])], *[[]] * 29])
    assert torch.equal(one[1:], images[1:]) and torch.equal(one[0], 255 - images[0])


@pytest.mark.parametrize("height,width", [(1, 1), (2, 9), (9, 2)])
def test_tiny_images_go_through_every_operation(height: int, width: int) -> None:
    images = torch.arange(height * width * 3, dtype=torch.uint8).view(1, height, width, 3)
    for name in module.OPERATIONS:
        if name == "blur" and min(height, width) < 3:
            continue  # its border cannot be reflected: Program.split leaves such images to the CPU
        for numbers in SAMPLES.get(name, [[]]):
            assert module.augment(images.clone(), [[(name, numbers)]]).shape == images.shape


def test_every_operation_of_the_native_program_exists_on_the_device() -> None:
    """Each name that `Program.split` gives is drawn here, and each operation of the device is one of them."""
    found = set()
    for transform in ALL.values():
        for fuse in ("geometry", "off"):
            program = compile_pipeline(Compose([CenterCrop((HEIGHT, WIDTH)), transform]), fuse=fuse).program
            for record in range(30):
                found |= {name for name, _ in program.split(WIDTH, HEIGHT, SEED, 0, record)[1]}
    assert found == set(module.OPERATIONS)


def crop(*steps: Any) -> Any:
    return Compose([RandomResizedCrop(32), *steps])


@pytest.mark.parametrize(
    ("transform", "fuse", "words"),
    [
        (crop(RandomHorizontalFlip(), RandAugment(), RandomGrayscale()), "geometry", None),
        (crop(PillowBlur(2.0)), "off", "PillowBlur is done by the CPU threads"),
        (crop(Pad(2)), "off", "Pad is done by the CPU threads"),
        (crop(ColorJitter(0.4), RandomCrop(28)), "off", "a crop or resize after a change of colour"),
        (crop(RandomRotation(9), CenterCrop(28)), "off", "a crop or resize after a rotation"),
        (crop(RandAugment(), Resize(28)), "off", "a crop or resize after an automatic augmentation"),
        (Compose([Resize(40), CenterCrop(32), RandomRotation(9)]), "geometry", "with fuse='off' the GPU does both"),
        (Compose([Resize(40), CenterCrop(32), RandomRotation(9)]), "off", None),
        (Compose([RandomCrop(32), RandomRotation(9)]), "geometry", None),
        (Compose([Resize(40), CenterCrop(32), ColorJitter(0.4)]), "geometry", None),
    ],
)
def test_what_a_device_leaves_to_the_cpu_has_a_reason(transform: Any, fuse: Any, words: str | None) -> None:
    pipeline = compile_pipeline(transform, fuse=fuse)
    reason = module.cpu_only(pipeline.operations, pipeline.fuse)
    assert reason is None if words is None else words in (reason or "")
    split: Callable[[int], Any] = lambda record: pipeline.program.split(64, 48, SEED, 0, record)  # noqa: E731
    if words is None:
        for record in range(30):
            assert split(record)[0][2][2:] == (32, 32)
    elif "RandAugment" not in repr(transform):  # some images draw nothing that stands in the way
        with pytest.raises(ValueError):
            split(0)


def fails(images: Any, numbers: Any) -> Any:
    raise RuntimeError("CUDA error: no kernel image is available")


def other_hue(images: Any, numbers: Any) -> Any:
    return module.OPERATIONS["hue"](images, numbers) ^ 1


def test_a_device_that_computes_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert different_operations("cpu") == []
    assert set(SAMPLES) <= set(module.OPERATIONS)
    assert different_operations("cpu", dict(module.OPERATIONS, blur=fails, hue=other_hue)) == ["hue", "blur"]
    alike = checked_operations("cpu")
    assert alike.refusal is None and alike.describe() == "in torch"


def test_a_kernel_that_fails_or_differs_gives_way_to_torch() -> None:
    def bilinear(images: Any, numbers: Any) -> Any:
        return module.OPERATIONS["bilinear"](images, numbers)

    checked = _checked("cpu", dict(module.OPERATIONS, blur=fails, hue=other_hue, bilinear=bilinear))
    assert checked.refusal is None
    assert checked.describe() == "by Triton kernels (bilinear) and torch; the kernels of hue, blur do not work here"
    assert checked.operations == dict(module.OPERATIONS, bilinear=YieldingKernel("bilinear", bilinear))
    images, passes = torch.from_numpy(pictures()), [[("hue", [31.0])]] * 30
    assert torch.equal(module.augment(images.clone(), passes, checked.operations), module.augment(images, passes))


@pytest.mark.parametrize("name", SAMPLES)
def test_an_operation_that_takes_the_numbers_of_another_image_is_found(name: str) -> None:
    def wrong(images: Any, numbers: Any) -> Any:
        return module.OPERATIONS[name](images, np.repeat(numbers[:1], len(numbers), axis=0))

    assert different_operations("cpu", {name: wrong}) == [name]


@pytest.mark.parametrize("divisible", [True, False])
def test_a_kernel_that_fails_on_sizes_that_16_divides_or_on_others_is_found(divisible: bool) -> None:
    """Triton compiles each of them on its own."""

    def hue(images: Any, numbers: Any) -> Any:
        if (images.shape[1] % 16 == 0) == divisible:
            raise RuntimeError("PTXAS error: Internal Triton PTX codegen error")
        return module.OPERATIONS["hue"](images, numbers)

    assert different_operations("cpu", {"hue": hue}) == ["hue"]


def test_a_kernel_that_fails_on_a_batch_gives_way_to_torch_from_then_on() -> None:
    heights: list[int] = []

    def hue(images: Any, numbers: Any) -> Any:
        heights.append(images.shape[1])
        if images.shape[1] == HEIGHT:
            raise RuntimeError("out of resource: shared memory")
        return module.OPERATIONS["hue"](images, numbers)

    checked = _checked("cpu", dict(module.OPERATIONS, hue=hue))
    assert checked.describe() == "by Triton kernels (hue) and torch"
    images, passes = torch.from_numpy(pictures()), [[("hue", [31.0]), ("invert", []), ("hue", [200.0])]] * 30
    found = module.augment(images.clone(), passes, checked.operations)
    assert torch.equal(found, module.augment(images, passes))
    assert heights.count(HEIGHT) == 1
    assert checked.describe() == "in torch; the kernels of hue do not work here"


def test_a_kernel_that_runs_out_of_memory_is_kept() -> None:
    answers: list[Exception | None] = [torch.cuda.OutOfMemoryError("CUDA out of memory"), None]

    def hue(images: Any, numbers: Any) -> Any:
        if (error := answers.pop(0)) is not None:
            raise error
        return images

    kernel, images = YieldingKernel("hue", hue), torch.from_numpy(pictures())
    with pytest.raises(torch.cuda.OutOfMemoryError):
        kernel(images, np.zeros((30, 1)))
    assert kernel(images, np.zeros((30, 1))) is images and not kernel.has_failed


def test_a_device_on_which_torch_differs_too_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = different_operations
    monkeypatch.setattr(
        "headrace.gpu.augmentation.augment_check.different_operations",
        lambda device, operations: real(device, {name: fails if name == "hue" else one for name, one in operations.items()}),
    )
    assert _checked("cpu", module.OPERATIONS).refusal == "hue on this GPU gives other pixels than the CPU"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpu_augments_as_the_cpu_does() -> None:
    checked = checked_operations("cuda")
    assert checked.refusal is None and not checked.put_aside
