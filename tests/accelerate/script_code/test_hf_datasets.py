"""Loaders over Hugging Face `datasets` with a function in `set_transform` are taken over as a whole.

Runs where `datasets` is installed: `make test-frameworks`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.accelerate.settings import CHECK
from headrace.accelerate.whole import items as item_loader
from headrace.accelerate.whole.item_iterator import ItemIterator
from headrace.accelerate.whole.items import CompiledItems
from PIL import Image
from seeded import compiled_items
from test_item_code import assert_equal, own_batches, states
from torch.utils.data import DataLoader, Subset
from torchvision import transforms as v1

if "datasets" not in packages_distributions():  # an import would find the folder tests/datasets
    pytest.skip("datasets is not installed (make test-frameworks)", allow_module_level=True)
datasets = pytest.importorskip("datasets")

EVALUATE = v1.Compose([v1.Resize(72), v1.CenterCrop(64), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)])
TRAIN = v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), v1.ToTensor()])


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


@pytest.fixture
def make_rows(folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """Make a dataset of the difficult files, one of them turned by EXIF: paths of files, or their bytes in Arrow."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = folder / "class_0" / "image_003.jpg"
    Image.open(turned).save(turned, "JPEG", exif=exif)

    def make(kind: str = "bytes", mode: str | None = None) -> Any:
        files = sorted(folder.rglob("*.jpg"))
        images = [str(file) if kind == "paths" else {"bytes": file.read_bytes(), "path": None} for file in files]
        columns = {
            "image": images,
            "label": [int(file.parent.name[-1]) for file in files],
            "name": [file.name for file in files],
        }
        value = datasets.Value
        features = {"image": datasets.Image(mode=mode), "label": value("int64"), "name": value("string")}
        data = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        if kind == "saved":
            data.save_to_disk(tmp_path / "saved")
            data = datasets.load_from_disk(tmp_path / "saved")
        return data

    return make


def adding(transform: Any) -> Callable[..., Any]:
    """As in transformers' examples/pytorch/image-classification: the images stay in the batch."""

    def apply(example_batch: Any) -> Any:
        """Apply the transform across a batch."""
        example_batch["pixel_values"] = [transform(image.convert("RGB")) for image in example_batch["image"]]
        return example_batch

    return apply


def deleting(transform: Any) -> Callable[..., Any]:
    def apply(examples: Any) -> Any:
        examples["pixel_values"] = [transform(image.convert("RGB")) for image in examples["image"]]
        del examples["image"]
        return examples

    return apply


def new_dict(transform: Any) -> Callable[..., Any]:
    return lambda rows: {
        "pixel_values": [transform(one.convert("RGB")) for one in rows["image"]],
        "label": [7 - label for label in rows["label"]],
    }


class Transforming:
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, examples: Any) -> Any:
        images = examples.pop("image")
        examples.update(pixel_values=[self.transform(image.convert("RGB")) for image in images])
        return examples


def stacked(examples: Any) -> Any:
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    labels = torch.tensor([example["label"] for example in examples])
    return {"pixel_values": pixel_values, "labels": labels}


def zipped(examples: Any) -> Any:
    images, labels = zip(*[(example["pixel_values"], example["label"]) for example in examples], strict=True)
    return torch.stack(images), torch.LongTensor(labels)


def ours_and_theirs(make: Callable[[], Any], kind: type = ItemIterator) -> tuple[list[Any], list[Any]]:
    torch.manual_seed(5)
    theirs = own_batches(make())
    torch.manual_seed(5)
    iterator = iter(make())
    assert isinstance(iterator, kind), type(iterator)
    return list(iterator), theirs


@pytest.mark.parametrize("collate", [stacked, zipped])
@pytest.mark.parametrize("apply", [adding, deleting, new_dict, Transforming])
@pytest.mark.parametrize("kind", ["bytes", "paths", "saved"])
def test_batches_equal_the_scripts_own(
    kind: str, apply: Any, collate: Any, make_rows: Callable[..., Any], taken_over: list[str]
) -> None:
    data = make_rows(kind).with_transform(apply(EVALUATE))
    workers = int(apply is adding)
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 3, shuffle=True, collate_fn=collate, num_workers=workers)))
    assert "Dataset taken over: decode" in taken_over[-1]


#: What the library makes of a dataset before its images are read.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "shuffled": lambda data: data.shuffle(seed=3),
    "selected": lambda data: data.select([5, 5, 1, 19, 0, 3, 2]),
    "filtered": lambda data: data.filter(lambda label: label != 2, input_columns="label"),
    "flattened": lambda data: data.shuffle(seed=6).flatten_indices(),
    "split": lambda data: data.train_test_split(test_size=6, seed=1)["train"],
    "sharded": lambda data: data.shuffle(seed=1).shard(2, 1),
    "concatenated": lambda data: datasets.concatenate_datasets([data.select(range(4)), data.shuffle(seed=2)]),
    "column removed": lambda data: data.remove_columns(["name"]),
    "renamed": lambda data: data.rename_column("image", "other").rename_column("other", "image"),
    "classes": lambda data: data.cast_column("label", datasets.ClassLabel(names=["a", "b", "c", "d"])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_dataset_gives_the_rows_that_it_means(
    change: str, make_rows: Callable[..., Any], taken_over: list[str]
) -> None:
    data = CHANGES[change](make_rows()).with_transform(adding(EVALUATE))
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 4, collate_fn=stacked, drop_last=True)))


def test_the_other_columns_of_a_row_are_kept(make_rows: Callable[..., Any], taken_over: list[str]) -> None:
    data = make_rows()
    data.set_transform(deleting(EVALUATE))
    ours, theirs = ours_and_theirs(lambda: DataLoader(data, 4, shuffle=True))
    assert_equal(ours, theirs)
    assert list(ours[0]) == ["label", "name", "pixel_values"]


@pytest.mark.parametrize("all_columns", [False, True])
def test_columns_of_set_transform_are_kept(all_columns: bool, make_rows: Callable[..., Any], taken_over: list[str]) -> None:
    data = make_rows()
    data.set_transform(deleting(EVALUATE), columns=["label", "image"], output_all_columns=all_columns)
    ours, theirs = ours_and_theirs(lambda: DataLoader(data, 4))
    assert_equal(ours, theirs)
    assert ("name" in ours[0]) is all_columns


def test_a_subset_of_a_dataset_and_images_that_the_library_converts(
    make_rows: Callable[..., Any], taken_over: list[str]
) -> None:
    def apply(rows: Any) -> Any:
        return {"pixel_values": [EVALUATE(image) for image in rows["image"]], "label": rows["label"]}

    data = make_rows(mode="RGB").with_transform(apply)
    assert_equal(*ours_and_theirs(lambda: DataLoader(Subset(Subset(data, range(2, 18)), [3, 1, 9]), 2, collate_fn=zipped)))


class Pictures(torch.utils.data.Dataset[Any]):
    """A class of the script's own around a dataset of the library."""

    def __init__(self, data: Any, transform: Any) -> None:
        self.data, self.transform = data, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        row = self.data[index]
        return self.transform(row["image"].convert("RGB")), row["label"]


def test_a_class_around_a_dataset_is_taken_over(make_rows: Callable[..., Any], taken_over: list[str]) -> None:
    data = Pictures(make_rows().shuffle(seed=4), EVALUATE)
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 3, shuffle=True)))


def opened(rows: Any) -> Any:
    images = [Image.open(io.BytesIO(image["bytes"])).convert("RGB") for image in rows["image"]]
    return {"pixel_values": [EVALUATE(image) for image in images], "label": rows["label"]}


def test_bytes_that_the_script_opens_itself_are_taken_over(make_rows: Callable[..., Any], taken_over: list[str]) -> None:
    data = make_rows().cast_column("image", datasets.Image(decode=False)).with_transform(opened)
    assert_equal(*ours_and_theirs(lambda: DataLoader(data, 3, shuffle=True)))


def test_random_draws_are_checked_and_the_generators_of_the_script_stay(
    make_rows: Callable[..., Any], taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_rows().with_transform(adding(TRAIN))

    def after(make: Callable[[Any], Any]) -> Any:
        torch.manual_seed(1)
        list(make(DataLoader(data, 3, shuffle=True, num_workers=1, collate_fn=stacked)))
        return states()

    assert after(lambda loader: loader) == after(own_batches)
    assert "taken over: decode" in taken_over[-1]
    monkeypatch.setenv(CHECK, "20")
    compiled, checked = compiled_items(DataLoader(data, 3, collate_fn=stacked))
    assert isinstance(compiled, CompiledItems)
    assert checked is not None and "equal bit for bit" in checked


def test_a_function_set_later_is_the_one_that_runs(make_rows: Callable[..., Any], taken_over: list[str]) -> None:
    data = make_rows().with_transform(deleting(EVALUATE))
    loader = DataLoader(data, 4)
    assert next(iter(loader))["pixel_values"].shape == (4, 3, 64, 64)
    data.set_transform(deleting(v1.Compose([v1.Resize((20, 30)), v1.ToTensor()])))
    assert_equal(list(loader), own_batches(loader))
    assert next(iter(loader))["pixel_values"].shape == (4, 3, 20, 30)


def neighbours(rows: Any) -> Any:
    tensors = [EVALUATE(image.convert("RGB")) for image in rows["image"]]
    return {"pixel_values": tensors[1:] + tensors[:1], "label": rows["label"]}


def sizes(rows: Any) -> Any:
    tensors = [EVALUATE(image.convert("RGB")) for image in rows["image"]]
    return {"pixel_values": tensors, "label": [image.size[0] for image in rows["image"]]}


seen: list[int] = []


def counting(rows: Any) -> Any:
    seen.append(len(rows["image"]))
    return {"pixel_values": [EVALUATE(image.convert("RGB")) for image in rows["image"]], "label": rows["label"]}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (neighbours, "makes other items of several rows than of each alone"),
        (sizes, "its items use Image.size"),
        (counting, "its counting calls append on something outside of its own variables"),
    ],
)
def test_other_functions_are_left_to_the_script(
    function: Any, reason: str, make_rows: Callable[..., Any], taken_over: list[str]
) -> None:
    data = make_rows().with_transform(function)
    seen.clear()
    theirs = own_batches(DataLoader(data, 3, collate_fn=stacked))
    calls = list(seen)
    seen.clear()
    assert_equal(list(DataLoader(data, 3, collate_fn=stacked)), theirs)
    assert seen == calls, "the script's function runs as often as ever"
    assert reason in taken_over[-1] and "Dataset taken over: " not in taken_over[-1]


def test_a_format_of_the_library_is_left_to_it(make_rows: Callable[..., Any], taken_over: list[str]) -> None:
    data = make_rows().select([0, 2]).remove_columns(["name"]).with_format("torch")
    loader = DataLoader(data, 1)
    assert_equal(list(loader), own_batches(loader))
    assert "its dataset has the format torch" in taken_over[-1]


def handing_on(examples: Any) -> Any:
    return {"images": [example["image"] for example in examples], "pixels": [example["pixel_values"] for example in examples]}


def test_a_collate_function_that_hands_on_images_gets_them(make_rows: Callable[..., Any], taken_over: list[str]) -> None:
    data = make_rows().with_transform(adding(EVALUATE))
    (batch,) = list(DataLoader(data.select([4, 6]), 2, collate_fn=handing_on))
    assert all(isinstance(image, Image.Image) for image in batch["images"])
    assert "in part" in taken_over[-1] and "its collate_fn hands on images" in taken_over[-1]


def repeating(rows: Any) -> Any:
    """Give images of the rare label twice."""
    pairs = [(image, label) for image, label in zip(rows["image"], rows["label"], strict=True) for _ in range(1 + (label == 5))]
    return {"pixel_values": [EVALUATE(image.convert("RGB")) for image, _ in pairs], "label": [label for _, label in pairs]}


def relative(rows: Any) -> Any:
    least = 5 if 5 in rows["label"] else 0
    return {
        "pixel_values": [EVALUATE(image.convert("RGB")) for image in rows["image"]],
        "label": [one - least for one in rows["label"]],
    }


def alone(rows: Any) -> Any:
    if len(rows["label"]) > 1 and 5 in rows["label"]:
        raise ValueError("the rare label has company")
    return {"pixel_values": [EVALUATE(image.convert("RGB")) for image in rows["image"]], "label": rows["label"]}


@pytest.fixture
def rare() -> Any:
    """60 rows, of which row 6 alone has the label 5, and row 7 alone is a JPEG 2000, which is not decoded natively."""
    files = []
    for number in range(60):
        file = io.BytesIO()
        Image.effect_noise((48, 40), 20 + number).convert("RGB").save(file, "JPEG2000" if number == 7 else "JPEG")
        files.append({"bytes": file.getvalue(), "path": None})
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    labels = [5 if number == 6 else 3 for number in range(60)]
    return datasets.Dataset.from_dict({"image": files, "label": labels}, features=features)


@pytest.mark.parametrize("function", [repeating, relative])
def test_a_function_that_mixes_rows_where_no_comparison_saw_it_gives_its_own_batches(
    function: Any, rare: Any, taken_over: list[str]
) -> None:
    loader = DataLoader(rare.with_transform(function), 4, collate_fn=stacked)
    assert_equal(list(loader), own_batches(loader))
    assert "Dataset taken over: decode" in taken_over[-1]


def test_an_error_for_some_batches_is_raised(rare: Any, taken_over: list[str]) -> None:
    iterator = iter(DataLoader(rare.with_transform(alone), 4, collate_fn=stacked))
    assert len(next(iterator)["labels"]) == 4
    with pytest.raises(ValueError, match="has company"):
        next(iterator)
    assert "Dataset taken over: decode" in taken_over[-1]


class Wrapper(torch.utils.data.Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


@pytest.mark.parametrize("wrap", [lambda data: data, Wrapper, lambda data: torch.utils.data.Subset(data, range(60))])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_keep_the_function_that_they_were_started_with(
    persistent: bool, wrap: Any, rare: Any, taken_over: list[str]
) -> None:
    def shifted(by: int) -> Any:
        return lambda rows: {
            "pixel_values": [EVALUATE(image.convert("RGB")) for image in rows["image"]],
            "label": [label + by for label in rows["label"]],
        }

    def labels(iterators: Any) -> list[list[int]]:
        rare.set_transform(shifted(0))
        loader = DataLoader(wrap(rare), 4, num_workers=1, persistent_workers=persistent)
        iterator = iterators(loader)
        found = [next(iterator)]
        rare.set_transform(shifted(1000))
        found += iterator
        if persistent:
            iterator._reset(loader)
            found += iterator
        return [batch["label"].tolist() for batch in found]

    theirs = labels(torch.utils.data.dataloader._MultiProcessingDataLoaderIter)
    assert labels(iter) == theirs
    assert "taken over: decode" in taken_over[-1]


def test_a_row_without_an_image_raises_the_scripts_own_error(rare: Any, taken_over: list[str]) -> None:
    images = [*rare.cast_column("image", datasets.Image(decode=False))["image"]] * 10
    images[301] = None  # not among the items that are planned before the loader is taken over
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    data = datasets.Dataset.from_dict({"image": images, "label": list(range(len(images)))}, features=features)
    data.set_transform(adding(EVALUATE))
    for batches in (own_batches, list):
        with pytest.raises(AttributeError, match="convert"):
            batches(DataLoader(data, 50, collate_fn=stacked))
    assert "Dataset taken over: decode" in taken_over[-1]


def test_the_limit_for_the_code_of_an_item_grows_with_the_bytes_of_its_image(
    rare: Any, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = rare.select([*range(7), *range(8, 60)])
    data.set_transform(adding(EVALUATE))
    loader = DataLoader(data, 5, collate_fn=stacked)
    monkeypatch.setattr(item_loader, "MOST_ITEM_S", 1e-9)
    monkeypatch.setattr(item_loader, "BYTE_S", 1.0)
    iter(loader)
    assert "Dataset taken over: decode" in taken_over[-1]
    monkeypatch.setattr(item_loader, "BYTE_S", 0.0)
    iter(loader)
    assert "takes longer in one process" in taken_over[-1]
