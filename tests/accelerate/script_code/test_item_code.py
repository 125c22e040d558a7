"""Loaders over the script's own datasets are taken over as a whole where only known transforms touch their images."""

from __future__ import annotations

import os
import random
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import own_batches
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.settings import CHECK
from headrace.accelerate.whole import item_iterator
from headrace.accelerate.whole.item_iterator import ItemIterator
from headrace.accelerate.whole.items import CompiledItems
from PIL import Image, ImageOps
from seeded import compiled_items
from torch.nn.functional import one_hot
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate, random_split
from torchvision import transforms as v1
from torchvision.datasets import Caltech256, ImageFolder
from torchvision.transforms import v2

EVALUATE = v1.Compose([v1.Resize(72), v1.CenterCrop(64), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)])
SMALL = v2.Compose([v2.Resize((40, 32)), v2.RandomHorizontalFlip(1.0), v2.PILToTensor()])
TRAIN = v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), v1.ToTensor()])
SQUARE = v1.Resize((30, 30))
Sample = namedtuple("Sample", "image target")


class WithPath(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        original = super().__getitem__(index)
        return original + (self.imgs[index][0],)  # noqa: RUF005


class WithPathOfOld(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        original = super(WithPathOfOld, self).__getitem__(index)  # noqa: UP008
        return (self.imgs[index][0], *original)


class WithIndex(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        image = self.loader(path)
        if self.transform is not None:
            image = self.transform(image)
        return {"pixels": image, "target": target, "index": index, "folder": os.path.basename(os.path.dirname(path))}  # noqa: PTH119, PTH120


class Wrapped(Dataset[Any]):
    def __init__(self, data: Any, transform: Any = None) -> None:
        self.data, self.transform = data, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        x, y = self.data[index]
        if self.transform:
            x = self.transform(x)
        return x, y


class Listed(Dataset[Any]):
    """The class that most tutorials have: a list of paths, labels, a transform."""

    def __init__(self, folder: Path, transform: Any, mode: str | None = "RGB") -> None:
        self.root, self.transform, self.mode = folder, transform, mode
        self.paths = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*.jpg"))
        self.labels = np.arange(len(self.paths)) % 3

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        if torch.is_tensor(index):
            index = index.tolist()
        name = self.paths[index]
        image = Image.open(os.path.join(self.root, name))  # noqa: PTH118
        if self.mode is not None:
            image = image.convert(self.mode)
        label = torch.tensor(self.labels[index], dtype=torch.long)
        sample = {"image": image, "label": label, "name": name.split("/")[-1], "large": [float(label), len(name)]}
        if self.transform is not None:
            sample["image"] = self.transform(sample["image"])
        return sample


class IfNotRGB(Listed):
    """It converts what is not RGB, and tells the mode."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / self.paths[index])
        image.load()
        mode = image.mode
        if image.mode != "RGB":
            image = image.convert("RGB")
        return self.transform(image), mode, self.paths[index]


class Opened(Listed):
    def __getitem__(self, index: int) -> Any:
        try:
            with open(self.root / self.paths[index], "rb") as file:
                image = Image.open(file)
                image = image.convert("RGB")
        except OSError:
            return self[(index + 1) % len(self)]
        return Sample(self.transform(image), int(self.labels[index]))


class Pairs(Listed):
    """Two files an item, which are the same in some items."""

    def __getitem__(self, index: int) -> Any:
        first, second = (Image.open(self.root / self.paths[at]).convert("RGB") for at in (index, index * 3 % len(self.paths)))
        return self.transform(first), SMALL(second), self.transform(second), one_hot(torch.tensor(index % 3), 3)


class Importing(Listed):
    """It imports where it needs something."""

    def __getitem__(self, index: int) -> Any:
        import os.path

        from PIL import Image as Pictures

        path = os.path.join(self.root, self.paths[index])  # noqa: PTH118
        return self.transform(Pictures.open(path).convert("RGB")), os.path.basename(path)  # noqa: PTH119


class TwoCrops:
    def __init__(self, base: Any) -> None:
        self.base = base

    def __call__(self, x: Any) -> Any:
        return [self.base(x), self.base(x)]


class MultiCrop:
    def __init__(self, large: Any, small: Any, count: int) -> None:
        self.large, self.small, self.count = large, small, count

    def __call__(self, image: Any) -> Any:
        crops = []
        crops.append(self.large(image))
        for _ in range(self.count):
            crops.append(self.small(image))  # noqa: PERF401
        return crops


def as_listed(folder: Path, transform: Any) -> Any:
    return Listed(folder, transform)


DATASETS: dict[str, Callable[[Path, Any], Any]] = {
    "path": lambda folder, transform: WithPath(str(folder), transform),
    "path first": lambda folder, transform: WithPathOfOld(str(folder), transform),
    "dict": lambda folder, transform: WithIndex(str(folder), transform),
    "split": lambda folder, transform: Wrapped(random_split(ImageFolder(str(folder)), [12, 8])[0], transform),
    "two wrappers": lambda folder, _: Wrapped(
        Wrapped(ImageFolder(str(folder)), v1.Resize(72)), v1.Compose(EVALUATE.transforms[1:])
    ),
    "listed": as_listed,
    "named tuple": Opened,
    "if not RGB": IfNotRGB,
    "subset": lambda folder, transform: Subset(Subset(Listed(folder, transform), range(3, 19)), torch.tensor([3, 0, 9, 7])),
    "concatenated": lambda folder, transform: ConcatDataset(
        [WithPath(str(folder), transform), WithPath(str(folder), transform)]
    ),
    "pairs": Pairs,
    "importing": Importing,
    "two crops": lambda folder, transform: ImageFolder(str(folder), TwoCrops(transform)),
    "many crops": lambda folder, transform: ImageFolder(str(folder), MultiCrop(transform, SMALL, 3)),
    "function": lambda folder, transform: Wrapped(ImageFolder(str(folder)), lambda image: (transform(image), SMALL(image))),
    "target": lambda folder, transform: WithPath(str(folder), transform, target_transform=lambda target: target * 2 + 1),
}


def assert_equal(mine: Any, other: Any) -> None:
    assert type(mine) is type(other)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == other.dtype and mine.shape == other.shape and mine.stride() == other.stride()
        assert torch.equal(mine, other)
    elif isinstance(mine, dict):
        assert list(mine) == list(other)
        for key in mine:
            assert_equal(mine[key], other[key])
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(other)
        for one, two in zip(mine, other, strict=True):
            assert_equal(one, two)
    else:
        assert mine == other


def states() -> Any:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def ours_and_theirs(make: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    torch.manual_seed(5)
    theirs = own_batches(make())
    torch.manual_seed(5)
    iterator = iter(make())
    assert isinstance(iterator, ItemIterator)
    return list(iterator), theirs


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", DATASETS)
def test_batches_equal_the_scripts_own(name: str, workers: int, folder: Path, taken_over: list[str]) -> None:
    data = DATASETS[name](folder, EVALUATE)
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 3, shuffle=True, num_workers=workers)))
    assert "taken over: decode" in taken_over[-1] and "the rest of each item is the script's own code" in taken_over[-1]


@pytest.mark.parametrize("name", DATASETS)
def test_check_compares_images_and_draws(
    name: str, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECK, "20")

    loader = DataLoader(DATASETS[name](folder, TRAIN), 3)
    if name == "pairs":
        with pytest.raises(Unsupported, match="random numbers are drawn for several files of an item"):
            compiled_items(loader)
        return
    compiled, checked = compiled_items(loader)
    assert checked is not None and "equal bit for bit" in checked
    assert isinstance(compiled, CompiledItems)


def test_gray_files_are_made_natively_where_the_code_converts_them(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_iterator, "_gray_files", set())
    data = IfNotRGB(folder, EVALUATE)
    modes = [item[1] for item in map(data.__getitem__, range(len(data)))]
    gray, others = ({at for at, mode in enumerate(modes) if mode == kind} for kind in ("L", "CMYK"))
    assert gray and others
    asked: list[set[int]] = []
    left: list[set[int]] = []
    plan = ItemIterator._plan_otherwise

    def spied(iterator: ItemIterator, pending: Any, slot: int, status: int) -> bool:
        asked[-1].add(pending.indices[slot])
        found = plan(iterator, pending, slot, status)
        left[-1] |= set() if found else {pending.indices[slot]}
        return found

    monkeypatch.setattr(ItemIterator, "_plan_otherwise", spied)
    loader = DataLoader(data, len(data), num_workers=1)
    for _ in range(2):
        asked.append(set())
        left.append(set())
        ((images, told, _),) = list(loader)
        assert list(told) == modes and torch.equal(images, next(iter(own_batches(loader)))[0])
    assert gray <= asked[0] and not gray & left[0] and others <= left[0], "made natively after the first attempt"
    assert not gray & asked[1] and others <= asked[1], "and at once in the next epoch"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_gray_files_have_every_type(dtype: torch.dtype, folder: Path, taken_over: list[str]) -> None:
    steps = [v2.Resize((20, 30)), v2.ToImage(), v2.ToDtype(dtype, scale=True)]
    mine, theirs = ours_and_theirs(lambda: DataLoader(IfNotRGB(folder, v2.Compose(steps)), 5, num_workers=1))
    assert "taken over: decode" in taken_over[-1]
    assert_equal(mine, theirs)


class WithFallback(Listed):
    """It reads another file in place of each that is not RGB."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / self.paths[index])
        image.load()
        if image.mode != "RGB":
            image = Image.open(self.root / self.paths[-1]).convert("RGB")
        return self.transform(image), index


class OnWhite(Listed):
    """It looks at the mode, and converts in any case."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / self.paths[index])
        image.load()
        is_gray = image.mode == "L"
        if image.mode == "CMYK":
            image = Image.new("RGB", image.size, (255, 255, 255))
        return self.transform(image.convert("RGB")), is_gray


class MaskMode(Listed):
    """It tells the mode of a file whose pixels it does not use."""

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.root / self.paths[index]) as image, Image.open(self.root / self.paths[1]) as other:
            return self.transform(image.convert("RGB")), other.mode


class ConvertedLate(Listed):
    """It resizes before it converts."""

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.root / self.paths[index]) as image:
            return v1.functional.to_tensor(v1.Resize((20, 30))(image).convert("RGB")), index


@pytest.mark.parametrize("kind", [WithFallback, OnWhite, MaskMode, ConvertedLate])
def test_what_follows_from_the_mode_of_a_file_is_the_scripts(kind: Any, folder: Path, taken_over: list[str]) -> None:
    """Gray and CMYK files, and a PNG named .jpg, among them."""
    data = kind(folder, EVALUATE)
    torch.manual_seed(5)
    mine = list(DataLoader(data, 4, num_workers=1))
    torch.manual_seed(5)
    theirs = own_batches(DataLoader(data, 4, num_workers=1))
    assert_equal(mine, theirs)


def test_png_files_whose_mode_is_looked_at_are_left_to_the_script(tmp_path: Path, taken_over: list[str]) -> None:
    """Transparent pixels become white only where the code says so."""
    for number in range(6):
        parent = tmp_path / f"c{number % 2}"
        parent.mkdir(exist_ok=True)
        pixels = np.full((40, 50, 4), (200, 100, 50, 0 if number % 2 else 255), dtype=np.uint8)
        Image.fromarray(pixels, "RGBA").save(parent / f"{number}.png")

    class Blended(Listed):
        def __init__(self) -> None:
            super().__init__(tmp_path, EVALUATE)
            self.paths = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*.png"))

        def __getitem__(self, index: int) -> Any:
            image = Image.open(self.root / self.paths[index])
            image.load()
            if image.mode == "RGBA":
                white = Image.new("RGB", image.size, (255, 255, 255))
                white.paste(image, mask=image.split()[3])
                image = white
            return self.transform(image.convert("RGB")), index

    data = Blended()
    assert_equal(list(DataLoader(data, 3)), own_batches(DataLoader(data, 3)))
    assert not any("in place of" in line or "native threads" in line for line in taken_over)


def test_gray_files_stay_gray_where_the_code_leaves_them(folder: Path, taken_over: list[str]) -> None:
    class Gray(Listed):
        def __getitem__(self, index: int) -> Any:
            image = Image.open(self.root / self.paths[index])
            image.load()
            if image.mode == "CMYK":
                image = image.convert("RGB")
            return self.transform(image), image.mode

    data = Gray(folder, v1.Compose([v1.Resize((20, 30)), v1.ToTensor()]))
    mine, theirs = ours_and_theirs(lambda: DataLoader(data, 1, num_workers=1))
    assert_equal(mine, theirs)
    assert {batch[0].shape[1] for batch in mine} == {1, 3}


def test_views_of_one_image_have_draws_of_their_own(folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), TwoCrops(TRAIN))
    loader = DataLoader(data, 20)
    (((first, second), targets),) = list(loader)
    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert targets.tolist() == data.targets
    torch.manual_seed(3)
    one = next(iter(loader))
    torch.manual_seed(3)
    assert_equal(next(iter(loader)), one)


def test_the_generators_of_the_script_stay(folder: Path, taken_over: list[str]) -> None:
    def after(make: Callable[[Any], Any]) -> Any:
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        list(make(DataLoader(Listed(folder, TRAIN), 3, shuffle=True, num_workers=1)))
        return states()

    assert after(lambda loader: loader) == after(own_batches)
    assert "taken over: decode" in taken_over[-1]


def test_an_own_collate_function_gets_the_items(folder: Path, taken_over: list[str]) -> None:
    def collate(items: list[Any]) -> Any:
        return {"x": default_collate([item[0] for item in items]), "names": [len(item[2]) for item in items]}

    data = WithPath(str(folder), EVALUATE)
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 3, collate_fn=collate, num_workers=1)))


def stacked(items: list[Any]) -> Any:
    return {"pixels": torch.stack([item[0] for item in items]), "labels": torch.tensor([item[1] for item in items])}


def zipped(items: list[Any]) -> Any:
    images, targets, paths = zip(*items, strict=True)
    return torch.stack(images, 0), torch.LongTensor(targets), list(paths)


def as_tuples(items: list[Any]) -> Any:
    return tuple(zip(*items, strict=True))


def filtered(items: list[Any]) -> Any:
    kept = [item for item in items if item is not None and len(item[2]) > 3]
    return torch.cat([item[0].unsqueeze(0) for item in kept]), [item[1] for item in kept]


class Fields:
    """A collate function with arguments of its own, as Hugging Face's data collators are written."""

    def __init__(self, image: int, label: int) -> None:
        self.image, self.label = image, label

    def __call__(self, items: list[Any]) -> Any:
        return {"pixels": torch.stack([item[self.image] for item in items]), "labels": self.labels(items)}

    def labels(self, items: list[Any]) -> Any:
        return torch.tensor([item[self.label] for item in items])


@pytest.mark.matrix
@pytest.mark.parametrize("collate", [stacked, zipped, as_tuples, filtered, Fields(0, 1), Fields(0, 1).labels])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_that_rearranges_items_is_run(
    collate: Any, workers: int, folder: Path, taken_over: list[str]
) -> None:
    data = WithPath(str(folder), EVALUATE)
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 3, shuffle=True, collate_fn=collate, num_workers=workers)))


def mixed(items: list[Any]) -> Any:
    return torch.stack([item[0] for item in items]) * random.random()


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, items: list[Any]) -> Any:
        self.calls += 1
        return torch.stack([item[0] for item in items])


@pytest.mark.parametrize(("collate", "reason"), [(mixed, "collate_fn mixed call random"), (Counted(), "Counted.__call__")])
def test_other_collate_functions_are_left_to_the_script(collate: Any, reason: str, folder: Path, taken_over: list[str]) -> None:
    random.seed(1)
    ours = list(DataLoader(WithPath(str(folder), EVALUATE), 3, collate_fn=collate))
    random.seed(1)
    assert_equal(ours, own_batches(DataLoader(WithPath(str(folder), EVALUATE), 3, collate_fn=collate)))
    assert "in part" in taken_over[-1] and reason in taken_over[-1]


class Upright(Dataset[Any]):
    """It turns its images by their EXIF orientation."""

    def __init__(self, paths: list[str], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(ImageOps.exif_transpose(Image.open(self.paths[index])).convert("RGB"))


class UprightLater(Upright):
    def __getitem__(self, index: int) -> Any:
        return self.transform(ImageOps.exif_transpose(Image.open(self.paths[index]).convert("RGB")))


class Turned(Upright):
    """It turns its images behind a transform, which keeps the EXIF data."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(ImageOps.exif_transpose(SQUARE(Image.open(self.paths[index]).convert("RGB"))))


@pytest.fixture
def turned(tmp_path: Path) -> list[str]:
    """Make JPEGs of all EXIF orientations, and without one."""
    paths = []
    for number in range(10):
        exif = Image.Exif()
        if number:
            exif[0x0112] = number
        pixels = np.random.default_rng(number).integers(0, 256, (9, 13, 3), dtype=np.uint8)
        paths.append(str(tmp_path / f"{number}.jpg"))
        Image.fromarray(pixels).resize((100 + number, 70)).save(paths[-1], exif=exif)
    return paths


@pytest.mark.parametrize("kind", [Upright, UprightLater])
def test_images_are_turned_by_their_exif_orientation(
    kind: Any, turned: list[str], taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_equal(*ours_and_theirs(lambda: DataLoader(kind(turned, EVALUATE), 4)))
    monkeypatch.setenv(CHECK, "10")

    _, checked = compiled_items(DataLoader(kind(turned, TRAIN), 4))
    assert checked is not None and "10 items" in checked and "equal bit for bit" in checked


def test_images_that_are_turned_behind_a_transform_are_left_to_the_script(turned: list[str], taken_over: list[str]) -> None:
    loader = DataLoader(Turned(turned, v1.ToTensor()), 4)
    assert_equal(list(loader), own_batches(loader))
    assert "EXIF orientation behind a transform" in taken_over[-1]


def test_torchvisions_other_datasets(folder: Path, tmp_path: Path, taken_over: list[str]) -> None:
    root = tmp_path / "caltech256" / "256_ObjectCategories"
    for number, path in enumerate(sorted(folder.glob("class_[02]/*.jpg"))):
        place = root / f"{number // 5 + 1:03d}.class"
        place = place.with_name(f"{place.stem}.class-{number // 5}")
        place.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("RGB").save(place / f"{number // 5 + 1:03d}_{number % 5 + 1:04d}.jpg")
    data = Caltech256(str(tmp_path), EVALUATE)
    assert len(data) == 10
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 3, shuffle=True)))


def test_files_that_are_not_decoded_are_the_scripts_matter(folder: Path, taken_over: list[str]) -> None:
    (folder / "class_1" / "image_000.jpg").write_bytes(b"no image")
    data = Opened(folder, EVALUATE)  # takes the next image
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 3)))
    broken = Listed(folder, EVALUATE)
    with pytest.raises(OSError, match="cannot identify"):
        list(DataLoader(broken, 3))


def test_images_that_are_not_converted_are_made_natively_if_they_are_rgb(
    image_folder: Callable[..., Path], taken_over: list[str]
) -> None:
    folder = image_folder(classes=2, per_class=4)
    data = Listed(folder, EVALUATE, mode=None)
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 3)))
    Image.open(folder / "class_1" / "image_003.jpg").convert("L").save(folder / "class_1" / "image_003.jpg", "JPEG")
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(DataLoader(Listed(folder, v1.Compose([v1.Resize((40, 32)), v1.ToTensor()]), mode=None), 8))


def test_the_length_and_code_of_a_dataset_may_change_between_epochs(folder: Path, taken_over: list[str]) -> None:
    data = Listed(folder, EVALUATE)
    loader = DataLoader(data, 4)
    list(loader)
    data.paths = data.paths[::-1][:7]
    data.transform = SMALL
    assert_equal(list(loader), own_batches(loader))


class Counting(Listed):
    def __getitem__(self, index: int) -> Any:
        self.count = index
        return super().__getitem__(index)


class Caching(Listed):
    cache: dict[int, Any] = {}  # noqa: RUF012

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


class Remembering(Listed):
    seen: list[int] = []  # noqa: RUF012

    def __getitem__(self, index: int) -> Any:
        if index > 100:
            self.seen.append(index)
        return super().__getitem__(index)


class Global(Listed):
    def __getitem__(self, index: int) -> Any:
        global CALLS
        CALLS = index
        return super().__getitem__(index)


class Sized(Listed):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / self.paths[index]).convert("RGB")
        return self.transform(image), image.size


class Arrays(Listed):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / self.paths[index]).convert("RGB")
        return torch.from_numpy(np.array(image.resize((32, 32))))


class Logged(Listed):
    def __getitem__(self, index: int) -> Any:
        print(index)
        return super().__getitem__(index)


class Hidden(Listed):
    @property
    def files(self) -> Any:
        os.environ["HEADRACE_TEST_PROPERTY"] = "read"
        return self.paths

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / self.files[index]).convert("RGB")
        return self.transform(image)


class InPlace(Listed):
    def __getitem__(self, index: int) -> Any:
        label = self.labels[index : index + 1]
        label += 1
        return self.transform(Image.open(self.root / self.paths[index]).convert("RGB")), label


class Drawing(Listed):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / self.paths[index]).convert("RGB")
        return SMALL(image) if random.random() < 0.01 else self.transform(image)


class Catching(Listed):
    def __getitem__(self, index: int) -> Any:
        try:
            size = np.asarray(Image.open(self.root / self.paths[index])).size
        except BaseException:
            size = 0
        return self.transform(Image.open(self.root / self.paths[index]).convert("RGB")), size


class Forgiving(Listed):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / self.paths[index]).convert("RGB")
        try:
            width = image.width
        except:  # noqa: E722
            width = 0
        return self.transform(image), width


REFUSED = {
    "sets the attribute count": Counting,
    "stores an item of something": Caching,
    "calls append on something outside": Remembering,
    "has a statement that is not looked into": Global,
    "its items use Image.size": Sized,
    "its items use Image.resize": Arrays,
    "its items call print": Logged,
    "its items read the property Hidden.files": Hidden,
    "its items change a ndarray in place": InPlace,
    "its items compute with images": Catching,
    "its items call random": Drawing,
    "its items use Image.width": Forgiving,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_code_with_effects_or_a_look_at_the_pixels_is_left_to_the_script(
    reason: str, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_TEST_PROPERTY", raising=False)
    data = REFUSED[reason](folder, EVALUATE)
    iterator = iter(DataLoader(data, 3))
    assert not isinstance(iterator, ItemIterator)
    assert reason in taken_over[-1]
    assert "HEADRACE_TEST_PROPERTY" not in os.environ and not Caching.cache and not Remembering.seen


def test_items_that_come_out_different_are_left_to_the_script(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = item_iterator.plan_item

    def other(*arguments: Any) -> Any:
        item = planned(*arguments)
        return type(item)((item.content[0], item.content[1] + 1), item.views)

    monkeypatch.setattr(item_iterator, "plan_item", other)
    data = Wrapped(ImageFolder(str(folder)), EVALUATE)
    assert_equal(list(DataLoader(data, 4)), own_batches(DataLoader(data, 4)))
    assert "in part" in taken_over[-1] and "a batch of its items came out different" in taken_over[-1]


def test_the_comparison_leaves_no_trace_in_the_script(folder: Path, taken_over: list[str]) -> None:
    calls = []

    class Watching(Wrapped):
        def __getitem__(self, index: Any) -> Any:
            x, y = self.data[index]
            return self.transform(x), y

        def __getstate__(self) -> Any:
            calls.append("pickled")
            return self.__dict__

    data = Watching(ImageFolder(str(folder)), EVALUATE)
    before = dict(vars(data))
    list(DataLoader(data, 4, num_workers=1))
    assert "taken over: decode" in taken_over[-1]
    assert vars(data) == before


def test_a_method_that_one_object_replaces_is_its_own(folder: Path, taken_over: list[str]) -> None:
    class Loading(Listed):
        def label(self, index: int) -> int:
            return index

        def __getitem__(self, index: int) -> Any:
            image = Image.open(self.root / self.paths[index]).convert("RGB")
            return self.transform(image), self.label(index)

    first, second = Loading(folder, EVALUATE), Loading(folder, EVALUATE)
    second.label = lambda index: -index  # type: ignore[method-assign]
    both = ConcatDataset([first, second, first])
    assert_equal(*ours_and_theirs(lambda: DataLoader(both, 7, shuffle=True)))


def test_a_dataset_with_its_own_getitems_is_left_to_the_script(folder: Path, taken_over: list[str]) -> None:
    class Batched(Wrapped):
        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in reversed(indices)]

    data = Batched(ImageFolder(str(folder)), EVALUATE)
    assert_equal(list(DataLoader(data, 4)), own_batches(DataLoader(data, 4)))
    assert "has its own __getitems__" in taken_over[-1]
