"""What a user of torchvision would write without reading: it works, or an error of ours names what to use."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import HeadraceError, UnknownNameError, UsageError
from PIL import Image
from sample_images import jpeg

torch = pytest.importorskip("torch")
transforms_v1 = pytest.importorskip("torchvision.transforms")

WORKS = None
GUESSES = [
    # Datasets
    ("hr.ImageFolder(root)", "headrace.open"),
    ("hr.DataLoader(root, 2)", "headrace.Loader"),
    ("from headrace import ImageFolder", "headrace.open"),
    ("from headrace import DataLoader", "headrace.Loader"),
    ("hr.Dataset(root)", "headrace.open"),
    ("hr.random_split(data, [0.9, 0.1])", "split"),
    ("hr.load_dataset(root)", "headrace.open"),
    ("hr.WeightedRandomSampler([1.0] * 6, 6)", "weights=weights"),
    ("hr.RandomSampler(data)", "sampler="),
    ("hr.load_model('runs/one')", "headrace export"),
    ("hr.create_model('resnet18')", "timm"),
    ("hr.Trainer()", "headrace train"),
    ("hr.open(root, transform=None)", "Loader"),
    ("hr.open(root, target_transform=None)", "labels are numbers"),
    ("hr.open(root, train=True)", "split"),
    ("hr.open(root, download=True)", "downloads no data"),
    ("data.samples[0][1] == 0 and data.imgs == data.samples", WORKS),
    ("data.classes, data.class_to_idx, data.targets, len(data)", WORKS),
    ("image, label = data[0]; image.size", WORKS),
    ("data.transform", "Loader"),
    ("data.num_classes", "len(data.classes)"),
    ("data.map(len)", "Loader"),
    ("data.train_test_split(0.2)", "split"),
    ("data.split(0.8, 0.1, 0.1)", "once more"),
    ("data.split([0.8, 0.2])", "splits again"),
    ("data.split(0.8, random_state=0)", "use seed"),
    ("data.split(0.8, stratify=data.targets)", "stratified=True"),
    ("for image, label in data: break", WORKS),
    # The loader
    ("hr.Loader(root, 2, T.CenterCrop(8), num_workers=4)", "threads"),
    ("hr.Loader(root, 2, T.CenterCrop(8), shuffle=True, pin_memory=True)", "leave it out"),
    ("hr.Loader(root, 2, T.CenterCrop(8), collate_fn=list)", "leave it out"),
    ("hr.Loader(data, 2, T.CenterCrop(8), dtype=torch.float32)", WORKS),
    ("hr.Loader(data, 2, T.CenterCrop(8), device=torch.device('cpu'))", WORKS),
    ("hr.Loader(data, 2, T.CenterCrop(8), dtype=torch.float64)", "float32"),
    ("hr.Loader(data, 2, [T.Resize(16), T.CenterCrop(8)])", WORKS),
    ("hr.Loader(data, 2)", "Compose"),
    ("hr.Loader(data, 2, T.CenterCrop)", "CenterCrop("),
    ("hr.Loader(data, 2, size=8)", "the transform decides"),
    ("loader.sampler.set_epoch(3)", WORKS),
    ("loader.num_workers", "threads"),
    ("hr.Loader(data, 2, T.CenterCrop(8), with_index=True, with_key=True)", WORKS),
    ("hr.Loader(data, 2, T.CenterCrop(8), return_paths=True)", "with_key"),
    ("hr.Loader(data, 2, T.CenterCrop(8), train=False)", "eval_loader"),
    ("hr.eval_loader(data, 2, T.CenterCrop(8))", WORKS),
    ("hr.eval_loader(data, 2, T.CenterCrop(8), shuffle=False)", "leave it out"),
    # torchvision's own transforms
    ("hr.Loader(data, 2, tv.Compose([tv.RandomResizedCrop(8), tv.ToTensor(), mean]), dtype='float32')", WORKS),
    (
        "hr.Loader(data, 2, v2.Compose([v2.ToImage(), v2.CenterCrop(8), v2.ToDtype(f32, True)]), dtype=f32)",
        WORKS,
    ),
    ("hr.Loader(data, 2, tv.CenterCrop(8))", WORKS),
    ("hr.Loader(data, 2, T.Compose([tv.Resize(16), T.CenterCrop(8)]))", WORKS),
    ("hr.Loader(data, 2, tv.Compose([tv.Resize(16), tv.FiveCrop(8)]))", "FiveCrop"),
    ("hr.Loader(data, 2, v2.Compose([v2.ElasticTransform(), v2.CenterCrop(8)]))", "ElasticTransform"),
    ("hr.Loader(data, 2, torch.nn.Sequential(v2.CenterCrop(8), v2.RandomHorizontalFlip()))", WORKS),
    ("hr.Loader(data, 2, tv.Compose([tv.CenterCrop(8), tv.ToTensor()]))", "dtype='float32'"),
    # Transforms by torchvision's names
    ("hr.Loader(data, 2, T.Compose([T.CenterCrop(8), T.ToTensor(), T.Normalize(0.5, 0.5)]), dtype='float32')", WORKS),
    ("hr.Loader(data, 2, [T.CenterCrop(8), T.ConvertImageDtype(torch.float32)], dtype='float32')", WORKS),
    ("T.Resize(8, interpolation=T.InterpolationMode.BICUBIC)", WORKS),
    ("T.AutoAugment(T.AutoAugmentPolicy.CIFAR10)", WORKS),
    ("hr.Loader(data, 2, T.Compose([T.CenterCrop(8), T.Lambda(lambda image: 255 - image)]))", WORKS),
    ("next(iter(hr.Loader(data, 2, [T.CenterCrop(8), T.Lambda(lambda image: image.convert('L'))])))", "fromarray"),
    ("hr.Loader(data, 2, T.Compose([T.CenterCrop(8), T.RandomOrder([T.RandomInvert(), T.RandomPosterize(4)])]))", WORKS),
    ("hr.Loader(data, 2, T.Compose([T.CenterCrop(8), T.RandomChoice([T.RandomInvert(), T.GaussianBlur(3)])]))", WORKS),
    ("hr.Loader(data, 2, T.Compose([T.CenterCrop(8), T.RandomApply([T.ColorJitter(0.4)], p=0.8)]))", WORKS),
    ("hr.Loader(data, 2, T.Compose([T.CenterCrop(8), T.Identity()]))", WORKS),
    ("T.AugMix()", "RandAugment"),
    ("T.FiveCrop(8)", "Views"),
    ("T.TenCrop(8)", "Views"),
    ("from headrace.transforms import RandomPerspective", "RandomAffine"),
    ("T.ElasticTransform()", "RandomAffine"),
    ("T.Grayscale(1)", "num_output_channels=3"),
    ("T.RandomCrop(8, padding=4, padding_mode='reflect')", "leave it out"),
    ("T.RandomRotation(10, resample=2)", "interpolation"),
    ("T.PILToTensor()", "leave it out"),
    ("T.v2", "headrace.transforms"),
    ("T.RandomHorizontalflip()", "RandomHorizontalFlip"),
    # Transforms called on an image
    ("T.CenterCrop(8)(image).size == (8, 8)", WORKS),
    ("T.Compose([T.Resize(16), T.RandomCrop(8), T.ToTensor()])(image).shape == (3, 8, 8)", WORKS),
    ("T.RandomHorizontalFlip()(tensor).shape == tensor.shape", WORKS),
    ("T.MixUp()(tensor)", "whole batches"),
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("guesses") / "images"
    for number in range(6):
        path = root / f"class_{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(40, 32, number))
    data = headrace.open(root)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    return {
        "hr": headrace,
        "T": headrace.transforms,
        "torch": torch,
        "f32": torch.float32,
        "tv": transforms_v1,
        "v2": pytest.importorskip("torchvision.transforms.v2"),
        "mean": transforms_v1.Normalize([0.5] * 3, [0.5] * 3),
        "root": str(root),
        "data": data,
        "image": Image.fromarray(pixels),
        "tensor": torch.from_numpy(pixels).permute(2, 0, 1),
        "loader": headrace.Loader(data, 2, headrace.transforms.CenterCrop(8)),
    }


def test_there_are_enough_guesses() -> None:
    assert len(GUESSES) >= 67


@pytest.mark.parametrize(("guess", "named"), GUESSES, ids=[guess for guess, _ in GUESSES])
def test_a_guess_works_or_names_what_to_use(guess: str, named: str | None, names: dict[str, Any]) -> None:
    try:
        if " == " in guess and "=" not in guess.split(" == ")[0]:
            assert eval(guess, dict(names))
        else:
            exec(guess, dict(names))
    except HeadraceError as error:
        assert named is not None, error
        assert named in f"{error} {error.hint or ''}"
    else:
        assert named is None, f"no error that names {named}"


def test_an_unknown_name_is_an_attribute_error_and_a_known_one_tells_what_to_use() -> None:
    assert not hasattr(headrace, "ImageFolder") and not hasattr(headrace.transforms, "FiveCrop")
    with pytest.raises(UnknownNameError, match="use headrace"):
        headrace.ImageFolder  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError) as caught:
        headrace.transforms.quite_another  # type: ignore[attr-defined]  # noqa: B018
    assert isinstance(caught.value, UsageError)
    with pytest.raises(AttributeError):
        SimpleNamespace().quite_another  # noqa: B018  (Python's own stays Python's)
    assert "headrace.FiveCrop" not in sys.modules


def test_transforms_of_torchvision_give_the_pixels_of_ours(names: dict[str, Any]) -> None:
    tv, ours = names["tv"], headrace.transforms
    theirs = tv.Compose([tv.Resize(20), tv.CenterCrop(16), tv.ToTensor(), tv.Normalize([0.5] * 3, [0.25] * 3)])
    same = ours.Compose([ours.Resize(20), ours.CenterCrop(16), ours.ToTensor(), ours.Normalize([0.5] * 3, [0.25] * 3)])
    batches = []
    for transform in (theirs, same):
        with headrace.Loader(names["data"], 6, transform, shuffle=False, dtype=torch.float32) as loader:
            batches.append(next(iter(loader))[0])
    assert torch.equal(*batches)
    image = names["data"][0][0]
    assert torch.equal(same(image), batches[0][0])  # called on one image: the pixels of the loader
    torch.testing.assert_close(same(image), theirs(image), rtol=0, atol=1e-6)


def test_a_called_random_transform_draws_from_torchs_generator_and_a_fixed_one_draws_nothing(names: dict[str, Any]) -> None:
    flip = headrace.transforms.RandomHorizontalFlip(0.3)
    torch.manual_seed(0)
    flipped = [np.array_equal(np.asarray(flip(names["image"])), np.asarray(names["image"])) for _ in range(200)]
    assert 40 <= flipped.count(False) <= 80
    torch.manual_seed(0)
    again = [np.array_equal(np.asarray(flip(names["image"])), np.asarray(names["image"])) for _ in range(200)]
    assert again == flipped
    before = torch.get_rng_state()
    headrace.transforms.Resize(8)(names["image"])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["image", "tensor"])
def test_a_called_transform_returns_what_it_was_given(kind: str, names: dict[str, Any]) -> None:
    assert type(headrace.transforms.Pad(2)(names[kind])) is type(names[kind])
    with pytest.raises(UsageError, match="takes a Pillow image"):
        headrace.transforms.Pad(2)([1, 2])


def test_a_choice_of_image_transforms_has_the_given_shares(names: dict[str, Any]) -> None:
    ours = headrace.transforms
    white = Image.new("RGB", (8, 8), (200, 100, 50))
    choice = ours.RandomChoice([ours.RandomInvert(1.0), ours.RandomGrayscale(1.0), ours.RandomPosterize(1, 1.0)], p=[1, 2, 1])
    torch.manual_seed(1)
    found = [choice(white).getpixel((0, 0)) for _ in range(400)]
    shares = {colour: found.count(colour) / 400 for colour in set(found)}
    assert len(shares) == 3 and shares.pop((55, 155, 205)) == pytest.approx(0.25, abs=0.08)
    assert shares.pop((128, 0, 0)) == pytest.approx(0.25, abs=0.08)


def test_an_order_of_transforms_takes_each_order(names: dict[str, Any]) -> None:
    ours = headrace.transforms
    order = ours.RandomOrder([ours.RandomInvert(1.0), ours.RandomPosterize(1, 1.0)])
    torch.manual_seed(1)
    found = [order(Image.new("RGB", (8, 8), (200, 100, 50))).getpixel((0, 0)) for _ in range(100)]
    assert set(found) == {(0, 128, 128), (127, 255, 255)}  # inverted first, and last


def test_numbers_and_keys_of_records_stand_behind_the_labels(names: dict[str, Any]) -> None:
    data, ours = names["data"], headrace.transforms
    with headrace.Loader(data, 3, ours.imagenet_train(8), seed=4, with_index=True, with_key=True) as loader:
        for _images, labels, index, keys in loader:
            assert index.dtype == torch.int64
            assert [data.table.keys[row] for row in index.tolist()] == keys
            assert labels.tolist() == [data.targets[row] for row in index.tolist()]
    with headrace.Loader(data, 3, ours.imagenet_train(8), output="numpy", with_index=True) as loader:
        assert isinstance(next(iter(loader))[2], np.ndarray)


def test_the_page_for_those_who_come_from_elsewhere_is_short() -> None:
    page = Path(__file__).parent.parent / "docs/guides/coming-from.md"
    assert len(page.read_bytes()) <= 8_000
