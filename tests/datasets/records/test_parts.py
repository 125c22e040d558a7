"""Parts and unions of datasets: subset, split, slices, `+`, and `open` of several paths or of some classes."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from containers import write_tar
from headrace.datasets.records.labels import labelled_by
from headrace.datasets.records.part_fetcher import PartFetcher
from headrace.errors import RecordIndexError, SourceError, UsageError
from loader_batches import are_equal
from object_store import Bucket
from sample_images import jpeg

Folder = Callable[..., Path]


@pytest.fixture
def folder(image_folder: Folder) -> Path:
    """40 images in four classes."""
    return image_folder(classes=4, per_class=10)


def keys(data: headrace.Dataset) -> list[str]:
    return list(data.table.keys)


def images(data: headrace.Dataset) -> list[bytes]:
    return [data.read(row) for row in range(len(data))]


def stems(data: headrace.Dataset) -> set[str]:
    """The keys without the extension that those of files have."""
    return {key.removesuffix(".jpg").removesuffix(".jpeg") for key in data.table.keys}


def test_a_part_has_its_own_table_targets_and_fingerprint(folder: Path) -> None:
    whole = headrace.open(folder)
    part = whole.subset([30, 2, -1, 2])
    assert len(part) == 4
    assert keys(part) == [whole.table.keys[row] for row in (30, 2, 39, 2)]
    assert part.targets == [whole.targets[row] for row in (30, 2, 39, 2)]
    assert images(part) == [whole.read(row) for row in (30, 2, 39, 2)]
    assert part.classes == whole.classes
    assert part.fingerprint not in {whole.fingerprint, whole.subset([2, 30, 39, 2]).fingerprint}
    assert part.fingerprint == whole[[30, 2, 39, 2]].fingerprint
    assert part[0][1] == whole[30][1]
    assert len(part.table.files) == 4  # not the paths of the whole dataset
    assert whole[:].fingerprint == whole.fingerprint


@pytest.mark.parametrize(
    "which",
    [slice(5, 9), [5, 6, 7, 8], range(5, 9), np.arange(5, 9), (n for n in range(5, 9)), np.arange(40) // 4 == 1],
)
def test_what_chooses_a_part(folder: Path, which: Any) -> None:
    whole = headrace.open(folder)
    wanted = keys(whole)[4:8] if isinstance(which, np.ndarray) and which.dtype == bool else keys(whole)[5:9]
    assert keys(whole[which]) == wanted


def test_masks_and_tensors_choose_a_part(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    whole = headrace.open(folder)
    assert keys(whole[torch.tensor([3, 1])]) == [whole.table.keys[3], whole.table.keys[1]]
    assert keys(whole.subset([label == 2 for label in whole.targets])) == keys(whole.subset(classes=[whole.classes[2]]))
    assert len(whole.subset(np.zeros(40, dtype=bool))) == len(whole[[]]) == len(whole[:0]) == 0


def test_a_part_of_a_part_counts_the_rows_of_that_part(folder: Path) -> None:
    whole = headrace.open(folder)
    assert keys(whole[10:30][[0, 5]][1:]) == [whole.table.keys[15]]


@pytest.mark.parametrize(
    ("which", "error", "text"),
    [
        ([40], RecordIndexError, "no record 40"),
        ([-41], RecordIndexError, "no record -41"),
        ([True] * 39, UsageError, "39 entries"),
        ([0.5], UsageError, r"not by \[0.5\]"),
        ("abc", UsageError, "'abc'"),
        ([[1, 2], [3]], UsageError, "indices"),
        (None, UsageError, "classes="),
    ],
)
def test_wrong_choices_are_refused_in_words(folder: Path, which: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        headrace.open(folder).subset(which)


def test_subset_keeps_labels_and_open_numbers_classes_anew(folder: Path) -> None:
    whole = headrace.open(folder)
    first, second = whole.classes[3], whole.classes[1]
    part = whole.subset(classes=[first, 1])
    assert part.classes == whole.classes
    assert set(part.targets) == {1, 3}
    opened = headrace.open(folder, classes=[first, second])
    assert opened.classes == (first, second)
    assert Counter(opened.targets) == {0: 10, 1: 10}
    assert all(key.startswith(opened.classes[label]) for key, label in zip(opened.table.keys, opened.targets, strict=True))
    assert keys(whole.subset([0, 1, 39], classes=[first])) == [whole.table.keys[39]]
    for wrong in (["no such class"], [9], [first, first]):
        with pytest.raises(UsageError, match="class"):
            headrace.open(folder, classes=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="list of class names"):
        whole.subset(classes=first)


def test_open_numbers_classes_as_pack_does(folder: Path, tmp_path: Path) -> None:
    chosen = headrace.open(folder).classes[2::-2]
    headrace.pack(folder, tmp_path / "packed", classes=chosen)
    packed, opened = headrace.open(tmp_path / "packed"), headrace.open(folder, classes=chosen)
    assert packed.classes == opened.classes == chosen
    assert Counter(packed.targets) == Counter(opened.targets)


@pytest.mark.parametrize("seed", [0, 7])
def test_split_makes_the_parts_that_pack_makes(folder: Path, tmp_path: Path, seed: int) -> None:
    headrace.pack(folder, tmp_path / "split", train_ratio=0.7, seed=seed)
    headrace.pack(folder, tmp_path / "packed")
    packed = [set(headrace.open(tmp_path / "split" / name).table.keys) for name in ("train", "val")]
    assert list(map(len, packed)) == [28, 12]
    for source in (folder, tmp_path / "packed"):
        assert [stems(part) for part in headrace.open(source).split(0.7, seed)] == packed


def test_split_depends_on_keys_and_seed(folder: Path) -> None:
    whole = headrace.open(folder)
    train, rest = whole.split(0.75, seed=3)
    assert sorted(keys(train) + keys(rest)) == sorted(keys(whole))
    assert keys(train) == [key for key in whole.table.keys if key in set(keys(train))]  # in the dataset's order
    assert keys(train) != keys(whole.split(0.75, seed=4)[0])
    backwards = whole[::-1].split(0.75, seed=3)[0]
    assert set(keys(backwards)) == set(keys(train))


def test_a_stratified_split_divides_each_class(image_folder: Folder) -> None:
    root = image_folder(classes=3, per_class=9)
    whole = headrace.open(root)
    uneven = whole.subset([*range(9), *range(9, 13), *range(18, 25)])  # 9, 4 and 7
    train, rest = uneven.split(0.8, seed=1, stratified=True)
    assert len(train) == 16
    for label, count in Counter(uneven.targets).items():
        assert abs(train.targets.count(label) - 0.8 * count) < 1
    assert not set(keys(train)) & set(keys(rest))


@pytest.mark.parametrize("ratio", [0, 1, 1.5, 90, "0.9"])
def test_wrong_ratios_and_seeds_are_refused(folder: Path, ratio: Any) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        headrace.open(folder).split(ratio)
    with pytest.raises(UsageError, match="seed"):
        headrace.open(folder).split(0.5, seed=-1)


def test_pack_refuses_a_seed_without_a_ratio(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="train_ratio"):
        headrace.pack(folder, tmp_path / "packed", seed=3)


def test_joined_datasets_have_the_records_of_both(folder: Path) -> None:
    whole = headrace.open(folder)
    both = whole[:10] + whole[25:]
    assert keys(both) == keys(whole)[:10] + keys(whole)[25:]
    assert both.classes == whole.classes
    assert images(both) == images(whole)[:10] + images(whole)[25:]
    again = whole + whole
    assert len(again) == 80
    assert images(again[40:]) == images(whole)
    with pytest.raises(TypeError):
        whole + "x"  # type: ignore[operator]


def test_classes_of_joined_datasets_are_matched_by_name(image_folder: Folder, tmp_path: Path) -> None:
    first, second = image_folder(classes=2, per_class=3, name="one"), image_folder(classes=2, per_class=2, name="two")
    names = sorted(one.name for one in second.iterdir())
    (second / names[0]).rename(second / "aardvark")
    one, two = headrace.open(first), headrace.open(second)
    both = headrace.open([first, str(second)])
    assert both.classes == (*one.classes, "aardvark")
    assert [both.class_name(label) for label in both.targets] == [
        *map(one.class_name, one.targets),
        *map(two.class_name, two.targets),
    ]
    assert both.fingerprint == (one + two).fingerprint
    assert headrace.open([first]).fingerprint == one.fingerprint
    assert headrace.open([first, second], classes=["aardvark"]).targets == [0, 0]
    for wrong in ([], [3], 3):
        with pytest.raises(UsageError, match="list"):
            headrace.open(wrong)  # type: ignore[arg-type]


def test_classes_of_one_name_are_not_joined_with_others(folder: Path) -> None:
    """The later labels of the first dataset were then those of other classes."""
    data = headrace.open(folder)
    twice = replace(data, classes=(data.classes[0],) * len(data.classes))
    assert (twice + twice).targets == twice.targets * 2  # equal classes need no names
    for one, other in ((data, twice), (twice, data)):
        with pytest.raises(UsageError, match=f"two of their classes have the name {data.classes[0]!r}"):
            one + other
    with pytest.raises(SourceError, match="two of these have one name"):
        labelled_by(data, twice.classes)


def test_kinds_can_be_mixed_read_split_and_packed(folder: Path, tmp_path: Path) -> None:
    headrace.pack(folder, tmp_path / "packed")
    whole, packed = headrace.open(folder), headrace.open(tmp_path / "packed")
    both = whole[:5] + packed[20:]
    assert both.kind == "mixed"
    assert images(both) == [*images(whole)[:5], *images(packed)[20:]]
    assert len(batches_of(both)) == 4
    headrace.pack(both, tmp_path / "again")
    again = headrace.open(tmp_path / "again")
    assert sorted(again.targets) == sorted(both.targets)
    assert set(headrace.open(tmp_path / "again").split(0.5)[0].table.keys) <= set(again.table.keys)


def test_json_and_sidecar_files_go_along(image_folder: Folder, tmp_path: Path) -> None:
    members = [
        (f"{number}.{end}", content)
        for number in range(6)
        for end, content in (
            ("jpg", jpeg(60 + number, 50, number)),
            ("cls", str(number % 2).encode()),
            *([("json", b'{"number": %d}' % number)] if number != 2 else []),
            *([("seg.png", b"mask %d" % number)] if number % 2 else []),
        )
    ]
    whole = headrace.open(write_tar(tmp_path / "data.tar", members))
    plain = headrace.open(image_folder(classes=2, per_class=2))
    part = whole[[5, 2, 3, 5]]
    assert [part.read_json(row) for row in range(4)] == [b'{"number": 5}', b"", b'{"number": 3}', b'{"number": 5}']
    assert [part.read_extras(row) for row in range(3)] == [[("seg.png", b"mask 5")], [], [("seg.png", b"mask 3")]]
    both = part + headrace.open(tmp_path / "data.tar")[:2]
    assert [both.read_json(row) for row in (3, 4, 5)] == [b'{"number": 5}', b'{"number": 0}', b'{"number": 1}']
    assert both.read_extras(5) == [("seg.png", b"mask 1")]
    named = plain + whole
    assert named.classes == ("class_0", "class_1", "0", "1")
    assert named.read_json(4 + 5) == b'{"number": 5}' and named.read_json(0) == b""
    assert named.read_extras(4 + 3) == [("seg.png", b"mask 3")]
    loader = headrace.Loader(
        part, 4, headrace.transforms.imagenet_eval(24), shuffle=False, with_json=True, output="numpy", threads=1
    )
    assert next(iter(loader))[2] == [{"number": 5}, None, {"number": 3}, {"number": 5}]


def batches_of(data: headrace.Dataset, **options: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    settings: dict[str, Any] = {"batch_size": 8, "seed": 1, "drop_last": False, "threads": 2, "output": "numpy"} | options
    with headrace.Loader(data, transform=headrace.transforms.imagenet_train(24), **settings) as loader:
        return [(images.copy(), labels.copy()) for images, labels in loader]


def test_a_part_of_a_pack_is_the_same_part_of_the_folder_when_packed(folder: Path, tmp_path: Path) -> None:
    """A part is packed as a dataset of its own; restart markers change no pixel."""
    part = headrace.open(folder).subset(classes=[0, 2])
    (folder / "outside.jpg").write_bytes(part.read(0))  # concerns the whole folder only
    result = headrace.pack(part, tmp_path / "packed", unlabeled="stop")
    assert result.records == 20
    options: dict[str, Any] = {"shuffle": False}
    same = zip(batches_of(part, **options), batches_of(headrace.open(tmp_path / "packed"), **options), strict=True)
    assert all(np.array_equal(a[0], b[0]) for a, b in same)


def test_streams_have_no_parts(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "train_0")
    stream = headrace.open(tmp_path / "train")
    for call in (lambda: stream.split(0.5), lambda: stream.subset([0]), lambda: stream[:3], lambda: stream + stream):
        with pytest.raises(SourceError, match="stream"):
            call()
    with pytest.raises(UsageError, match="stream"):
        headrace.open(tmp_path / "train", classes=["a"])


@pytest.mark.parametrize("cache_size", ["1GiB", "200KiB"])
def test_parts_of_remote_data_fetch_their_own_records(
    many: Path, bucket: Bucket, cache_size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache for all, and with one for a part of the records only."""
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", cache_size)
    local, remote = headrace.open(many), headrace.open("s3://b/many")
    rows = [100, 3, 77, 3, 20, 119, 64, 51]
    assert images(remote[rows]) == images(local[rows])
    assert are_equal(batches_of(remote[rows]), batches_of(local[rows]))
    mixed = local[:6] + remote[90:][::-1] + remote[5:9]
    assert isinstance(mixed.fetcher, PartFetcher)
    same = local[:6] + local[90:][::-1] + local[5:9]
    assert images(mixed[::3]) == images(same[::3])
    assert are_equal(batches_of(mixed[::2], shuffle="block:100KiB"), batches_of(same[::2], shuffle="block:100KiB"))
    assert images(pickle.loads(pickle.dumps(remote[rows]))) == images(local[rows])


def test_only_the_records_of_a_part_are_fetched(many: Path, bucket: Bucket) -> None:
    remote = headrace.open("s3://b/many")
    part = remote.subset(range(3))
    batches_of(part)
    assert remote.fetcher is not None
    assert remote.fetcher.fetched_bytes < 20 * int(part.table.size.sum())  # type: ignore[attr-defined]
    assert remote.fetcher.fetched_bytes < int(remote.table.size.sum()) / 4  # type: ignore[attr-defined]
