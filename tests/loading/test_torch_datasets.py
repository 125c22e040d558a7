"""Datasets of torch and torchvision as the `data` of a Loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.errors import UsageError
from headrace.loading.torch_datasets import as_dataset

pytestmark = pytest.mark.timeout(600)  # importing torchvision takes long on a busy machine
torch = pytest.importorskip("torch")


@pytest.fixture
def root(image_folder: Callable[..., Path]) -> Path:
    """24 images in three classes."""
    return image_folder(classes=3, per_class=8)


def contents(data: Any) -> list[tuple[str, int]]:
    made = as_dataset(data)
    return list(zip(made.table.keys, made.targets, strict=True))


def test_subsets_of_ours(root: Path) -> None:
    from torch.utils.data import Subset, random_split

    whole = headrace.open(root)
    assert contents(Subset(whole, [5, 2, 2])) == contents(whole[[5, 2, 2]])
    assert contents(Subset(Subset(whole, range(10, 20)), [1, 0])) == contents(whole[[11, 10]])
    first, second = random_split(whole, [0.75, 0.25])
    assert sorted(contents(first) + contents(second)) == sorted(contents(whole))
    images, labels = next(iter(headrace.Loader(second, 6, headrace.transforms.imagenet_eval(24), shuffle=False, threads=1)))
    assert images.shape == (6, 3, 24, 24)
    assert labels.tolist() == as_dataset(second).targets


def test_concatenations_of_ours(root: Path) -> None:
    from torch.utils.data import ConcatDataset, Subset

    whole = headrace.open(root)
    both = ConcatDataset([whole, Subset(whole, [3])])
    assert contents(both) == [*contents(whole), contents(whole)[3]]
    assert [label for _, label in contents(both)] == [both[i][1] for i in range(len(both))]
    other = headrace.open(root, classes=["class_2", "class_0"])
    with pytest.raises(UsageError, match="renumbers no label"):
        as_dataset(ConcatDataset([whole, other]))


def test_an_image_folder_without_transforms(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    from torch.utils.data import Subset

    folder = datasets.ImageFolder(root)
    assert contents(folder) == contents(root)
    assert as_dataset(folder).read(3) == headrace.open(root).read(3)
    assert contents(Subset(folder, [7])) == [contents(root)[7]]
    folder.samples = folder.samples[4:6]
    assert contents(folder) == contents(root)[4:6]
    monkeypatch.chdir(root.parent)
    assert contents(datasets.ImageFolder(root.name)) == contents(root)


def test_what_a_loader_cannot_read_is_refused_in_words(root: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")

    class Own(datasets.ImageFolder):  # type: ignore[misc,name-defined]
        pass

    for wrong, text in (
        (datasets.ImageFolder(root, transform=lambda image: image), "transform"),
        (datasets.ImageFolder(root, target_transform=lambda label: label), "target_transform"),
        (datasets.ImageFolder(root, loader=lambda path: path), "loader of its own"),
        (Own(root), "Python code"),
        (torch.utils.data.TensorDataset(torch.zeros(3)), "TensorDataset"),
        (7, "a path"),
    ):
        with pytest.raises(UsageError, match=text):
            headrace.Loader(wrong, 2, headrace.transforms.imagenet_eval(24))


def test_samplers_of_torch(root: Path) -> None:
    from torch.utils import data as torch_data

    whole = headrace.open(root)
    options: dict[str, Any] = {"batch_size": 4, "transform": headrace.transforms.imagenet_eval(24), "threads": 1}
    for sampler in (
        torch_data.RandomSampler(whole, generator=torch.Generator().manual_seed(1)),
        torch_data.WeightedRandomSampler([1.0] * 24, 24),
        torch_data.BatchSampler(torch_data.SequentialSampler(whole), 3, drop_last=True),
        torch_data.DistributedSampler(whole, num_replicas=2, rank=1),
        torch_data.SubsetRandomSampler(range(8)),
        torch.arange(12),
    ):
        made = headrace.Loader(whole, sampler=sampler, **options)
        length = len(made)
        assert len(list(made)) == length > 0
        assert made.epoch == 1
