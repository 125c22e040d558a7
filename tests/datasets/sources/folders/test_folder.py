"""Image folders: torchvision's order, and errors that name the file and say what to do."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace.datasets.records import keys as record_keys
from headrace.datasets.sources.folders import folder
from headrace.errors import SourceError, UsageError
from headrace.packing.planning import listing, pack_plan
from headrace.packing.planning.options import PackOptions

MakeFolder = Callable[..., Path]


def test_same_files_labels_and_classes_as_torchvision(image_folder: MakeFolder) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    root = image_folder()
    nested = root / "class_2" / "deeper"
    nested.mkdir()
    (root / "class_2" / "image_000.jpg").rename(nested / "IMAGE.JPEG")
    (root / "class_2" / "notes.txt").write_text("not an image")
    ours, theirs = headrace.open(root), datasets.ImageFolder(str(root))
    assert list(ours.classes) == theirs.classes
    assert [(path, label) for path, label in zip(ours.table.files, ours.table.label.tolist(), strict=True)] == theirs.samples


def test_the_fingerprint_changes_with_the_contents(image_folder: MakeFolder) -> None:
    root = image_folder()
    before = headrace.open(root).fingerprint
    assert headrace.open(str(root)).fingerprint == before
    (root / "class_0" / "image_000.jpg").unlink()
    assert headrace.open(root).fingerprint != before


def test_the_error_says_why_a_path_is_no_image_folder(image_folder: MakeFolder, tmp_path: Path) -> None:
    flat = image_folder() / "class_0"
    bare = tmp_path / "bare"
    (bare / "cats").mkdir(parents=True)
    empty_class = image_folder(name="second")
    (empty_class / "class_9").mkdir()
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "gone")
    for path, words in [
        (tmp_path / "missing", "no such file or folder"),
        (dangling, "a link to .*gone, which does not exist"),
        (Path("/dev/null"), "a device, not a file"),
        (flat / "image_000.jpg", "is a file"),
        (bare, "no images in"),
        (nothing, "no class folders and no images"),
        (empty_class, "class_9"),
    ]:
        with pytest.raises(SourceError, match=words) as caught:
            headrace.open(path)
        assert caught.value.hint


def test_a_broken_link_is_an_error_that_names_it(image_folder: MakeFolder) -> None:
    root = image_folder()
    (root / "class_0" / "link.jpg").symlink_to(root / "gone.jpg")
    with pytest.raises(SourceError, match=r"link\.jpg"):
        headrace.open(root)


@pytest.mark.timeout(20)
def test_a_link_to_a_folder_above_is_refused(image_folder: MakeFolder) -> None:
    root = image_folder()
    for label in range(3):  # three ways at each of 40 levels: following them would never end
        (root / f"class_{label}" / "again").symlink_to(root)
    with pytest.raises(SourceError, match=r"class_0/again is a link to a folder above it"):
        headrace.open(root)
    for label in range(3):
        (root / f"class_{label}" / "again").unlink()
    (root / "class_3").symlink_to(root / "class_0")
    assert len(headrace.open(root).classes) == 4


@pytest.mark.timeout(20)
def test_links_that_double_at_each_folder_are_refused(image_folder: MakeFolder, tmp_path: Path) -> None:
    """Forty folders, each with two links to the next: no loop, and a trillion paths."""
    root = image_folder()
    chain = [tmp_path / "chain" / str(number) for number in range(40)]
    for place, following in zip(chain, [*chain[1:], tmp_path / "end"], strict=True):
        place.mkdir(parents=True)
        for name in ("a", "b"):
            (place / name).symlink_to(following)
    (tmp_path / "end").mkdir()
    (root / "class_1" / "chain").symlink_to(chain[0])
    with pytest.raises(SourceError, match="is a link to a folder that is met more than 100 times"):
        headrace.open(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_an_error_that_names_it(image_folder: MakeFolder) -> None:
    root = image_folder()
    (root / "class_1").chmod(0)
    with pytest.raises(SourceError, match="class_1"):
        headrace.open(root)
    (root / "class_1").chmod(0o755)


def test_splits_are_not_taken_for_classes(image_folder: MakeFolder, tmp_path: Path) -> None:
    from headrace.datasets.records.splits import train_and_validation
    from headrace.training.inputs.data import open_data
    from headrace.training.settings.options import Options

    for part in ("train", "test"):
        image_folder(name=f"whole/{part}")
    with pytest.raises(SourceError, match="holds 2 datasets, not classes: test, train"):
        headrace.open(tmp_path / "whole")
    training, validation = open_data(Options(model="resnet18", data=str(tmp_path / "whole"), out=str(tmp_path / "run")))
    assert validation is not None and (training.root, validation.root) == tuple(
        str(tmp_path / f"whole/{p}") for p in ("train", "test")
    )
    (tmp_path / "whole/val").mkdir()
    assert train_and_validation(tmp_path / "whole") == (tmp_path / "whole/train", tmp_path / "whole/val")
    for name in ("train", "test"):  # classes of these names, with images and no folders inside, are classes
        (tmp_path / "vehicles" / name).mkdir(parents=True)
        (tmp_path / "vehicles" / name / "one.jpg").write_bytes((tmp_path / "whole/train/class_0/image_000.jpg").read_bytes())
    assert headrace.open(tmp_path / "vehicles").classes == ("test", "train")


def test_images_that_image_folder_ignores_are_listed(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder(classes=2, per_class=2)
    (root / "class_1/moving.GIF").write_bytes(b"GIF89a")
    (root / "class_1/notes.txt").write_text("no image")
    assert headrace.open(root).strays == ("class_1/moving.GIF",)
    result = headrace.pack(root, tmp_path / "out")
    assert (result.records, result.errors) == (4, 1)
    assert '"class_1/moving.GIF", "reason": "no image"' in (tmp_path / "out/errors.jsonl").read_text()


def test_the_quick_listing_finds_what_the_careful_one_finds(
    image_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder()
    for name in ("b/2.jpg", "b-/1.JPG", "b/c/längs.tiff", ".hidden.png", "moving.gif", "notes.txt", "no-ending"):
        path = root / "class_1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))
        os.utime(path, ns=(-(10**18), 3))
    (root / "class_0" / "link.jpg").symlink_to(root / "class_1/b/2.jpg")
    (root / "class_2" / "elsewhere").symlink_to(root / "class_1/b")  # followed, by the careful listing
    quick = headrace.open(root)
    monkeypatch.setattr(folder, "list_images", lambda *_: None)
    careful = headrace.open(root)
    assert "class_2/elsewhere/c/längs.tiff" in quick.table.keys
    assert list(quick.table.files) == [f"{root}/{key}" for key in quick.table.keys]
    assert (list(quick.table.keys), quick.strays) == (list(careful.table.keys), careful.strays)
    assert quick.fingerprint == careful.fingerprint
    for name in ("label", "file_size", "file_change"):
        assert getattr(quick.table, name).tolist() == getattr(careful.table, name).tolist(), name


def test_the_listing_takes_at_most_150_bytes_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the source's order, shuffled, and split."""
    count = 20_000
    for label in range(20):
        (tmp_path / f"n{label:08d}").mkdir()
        for number in range(count // 20):
            os.close(os.open(tmp_path / f"n{label:08d}/n{label:08d}_{number}.JPEG", os.O_CREAT))
    for module in (
        record_keys,
        listing,
        pack_plan,
    ):  # what is worked on at a time is as small a share of the whole as in a large folder
        monkeypatch.setattr(module, "_CHUNK", 256)
    listing.list_records(headrace.open(tmp_path), PackOptions())  # what is imported and kept is none of a record
    for options in (
        PackOptions(),
        PackOptions(shuffle=1),
        PackOptions(train_ratio=0.8, test_ratio=0.1),
        PackOptions(shuffle=1, train_ratio=0.8),
    ):
        tracemalloc.start()
        try:
            found = listing.list_records(headrace.open(tmp_path), options)
            parts = listing.split(found, options)
            for part in parts.values():
                pack_plan.make_pack_plan(part, options, None)
            held, peak = (size / count for size in tracemalloc.get_traced_memory())
        finally:
            tracemalloc.stop()
        assert len(found) == sum(map(len, parts.values())) == count
        assert held < 140 and peak < 150, (options, held, peak)


def test_progress_is_reported_while_a_folder_is_listed(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder(classes=3, per_class=2)
    opened, packed = list[int](), list[int]()
    headrace.open(root, on_listed=opened.append)
    headrace.pack(root, tmp_path / "out", on_listed=packed.append)
    assert opened == packed == [2, 2, 2]


def test_a_folder_of_images_alone_opens_without_labels(image_folder: MakeFolder, tmp_path: Path) -> None:
    flat = image_folder() / "class_0"
    (flat / ".ipynb_checkpoints").mkdir()
    (flat / ".ipynb_checkpoints" / "image_000.jpg").write_bytes(b"")
    (flat / "notes.txt").write_text("x")
    data = headrace.open(flat)
    assert data.classes == () and set(data.targets) == {-1} and len(data) == 4
    assert list(data.table.keys) == sorted(path.name for path in flat.glob("*.jpg"))
    assert (data.other_files, data.ignored_folders) == (1, (".ipynb_checkpoints",))
    with headrace.Loader(flat, 2, headrace.transforms.imagenet_train(16), output="numpy") as loader:
        assert [labels.tolist() for _, labels in loader] == [[-1, -1]] * 2
    with pytest.raises(SourceError, match="nothing to pack") as caught:
        headrace.pack(flat, tmp_path / "packed")
    assert "FOLDER/CLASS/image.jpg" in (caught.value.hint or "")


def test_hidden_folders_and_those_of_a_mac_are_ignored_and_named(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder()
    before = headrace.open(root)
    for name in (".git", "__MACOSX", "class_1/.ipynb_checkpoints"):
        (root / name).mkdir()
        (root / name / "a.jpg").write_bytes(b"no image")
    data = headrace.open(root)
    assert (data.classes, data.fingerprint) == (before.classes, before.fingerprint)
    assert sorted(data.ignored_folders) == [".git", "__MACOSX", "class_1/.ipynb_checkpoints"]
    assert "ignored folders: " in repr(data)
    (root / ".\x1b[2J\u202e").mkdir()
    assert "'.\\x1b[2J\\u202e'" in repr(headrace.open(root))
    result = headrace.pack(root, tmp_path / "packed")
    assert result.records == len(data)
    assert "__MACOSX/" in (tmp_path / "packed" / "errors.jsonl").read_text()


def test_a_split_below_a_folder_opens_and_all_are_packed_at_once(image_folder: MakeFolder, tmp_path: Path) -> None:
    import shutil

    for part in ("train", "valid"):
        image_folder(name=f"whole/{part}", classes=3)
    shutil.rmtree(tmp_path / "whole/valid/class_1")
    (tmp_path / "whole/valid/class_0/image_000.jpg").unlink()
    for path in (tmp_path / "whole/valid/class_0").iterdir():
        path.unlink()
    training, validation = (headrace.open(tmp_path / "whole", split=name) for name in ("train", "val"))
    assert training.classes == validation.classes == ("class_0", "class_1", "class_2")
    assert set(validation.targets) == {2}
    result = headrace.pack(tmp_path / "whole", tmp_path / "packed")
    assert [Path(part.path).name for part in result.parts] == ["train", "valid"]
    assert headrace.open(tmp_path / "packed", split="val").targets == validation.targets
    with pytest.raises(UsageError, match="split is 'training'"):
        headrace.open(tmp_path / "whole", split="training")
    with pytest.raises(SourceError, match="holds no folder test"):
        headrace.open(tmp_path / "whole", split="test")
    with pytest.raises(UsageError, match="packed without --train-ratio"):
        headrace.pack(tmp_path / "whole", tmp_path / "other", train_ratio=0.5)


def test_a_folder_of_images_alone_takes_a_folder_of_masks(image_folder: MakeFolder, tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    flat = image_folder() / "class_0"
    (tmp_path / "masks").mkdir()
    for path in flat.iterdir():
        with Image.open(path) as image:
            Image.fromarray(np.ones(image.size[::-1], dtype=np.uint8)).save(tmp_path / "masks" / f"{path.stem}.png")
    transform = headrace.transforms.CenterCrop(8)
    with headrace.Loader(flat, 2, transform, mask=tmp_path / "masks", output="numpy") as loader:
        assert all((masks == 1).all() for _, _, masks in loader)
