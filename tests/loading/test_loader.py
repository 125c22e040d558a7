"""The loader's contract: order, exactly once, resume, bad records, memory that never changes under a kept batch, threads."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import DecodeError, StateError, UsageError
from headrace.loading.order.arithmetic import hashed
from headrace.transforms import (
    CenterCrop,
    Compose,
    CutMix,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    Views,
    imagenet_eval,
    imagenet_train,
)
from native_threads import native_threads, settled
from PIL import Image

MakeFolder = Callable[..., Path]


def loader(root: Path, **options: Any) -> headrace.Loader:
    defaults: dict[str, Any] = {"batch_size": 4, "transform": imagenet_train(32), "seed": 5, "threads": 2, "output": "numpy"}
    return headrace.Loader(headrace.open(root), **(defaults | options))


def digests(batches: Any) -> list[str]:
    return [hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest() for images, labels in batches]


def test_torch_batches_are_nchw_over_channels_last_memory(image_folder: MakeFolder) -> None:
    torch = pytest.importorskip("torch")
    images, labels = next(iter(loader(image_folder(), output="torch")))
    assert images.shape == (4, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64
    assert labels.shape == (4,)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_batches_do_not_depend_on_threads(image_folder: MakeFolder, threads: int) -> None:
    root = image_folder()
    assert digests(loader(root, threads=threads)) == digests(loader(root, threads=3, prefetch=1))


def test_each_record_once_per_epoch_and_epochs_differ(image_folder: MakeFolder) -> None:
    data = loader(image_folder(classes=3, per_class=5), drop_last=False)
    first = np.concatenate([labels for _, labels in data])
    assert sorted(first.tolist()) == [0] * 5 + [1] * 5 + [2] * 5
    assert data.epoch == 1
    assert digests(data) != digests(data)


def test_leaving_early_starts_the_same_epoch_again(image_folder: MakeFolder) -> None:
    root = image_folder()
    whole = digests(loader(root))
    data = loader(root)
    for _ in data:
        break
    assert digests(data) == whole
    data.set_epoch(0)
    assert digests(data) == whole


@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_resume_yields_the_remaining_batches(image_folder: MakeFolder, stop: int) -> None:
    root = image_folder(classes=4, per_class=4)
    whole = loader(root)
    expected = digests(whole) + digests(whole)
    data = loader(root)
    iterator = iter(data)
    for _ in range(stop):
        next(iterator)
    state = json.loads(json.dumps(data.state_dict()))
    assert len(json.dumps(state)) < 1000
    resumed = loader(root, threads=1, prefetch=5)
    resumed.load_state_dict(state)
    assert digests(resumed) + digests(resumed) == expected[stop:]


def test_a_state_after_the_last_batch_belongs_to_the_next_epoch(image_folder: MakeFolder) -> None:
    root = image_folder()
    data = loader(root)
    for _ in data:
        state = data.state_dict()
    assert (state["epoch"], state["records_done"]) == (1, 0)


def test_resume_on_another_world_size(image_folder: MakeFolder) -> None:
    root = image_folder(classes=4, per_class=4)
    data = loader(root, batch_size=8)
    next(iter(data))
    state = data.state_dict()
    parts = []
    for rank in range(2):
        half = loader(root, batch_size=4, rank=rank, world_size=2)
        half.load_state_dict(state)
        parts.append(list(half))
    data.load_state_dict(state)
    for (images, labels), (left, left_labels), (right, right_labels) in zip(data, *parts, strict=True):
        np.testing.assert_array_equal(images, np.concatenate([left, right]))
        np.testing.assert_array_equal(labels, np.concatenate([left_labels, right_labels]))


def test_refuses_states_that_do_not_fit(image_folder: MakeFolder) -> None:
    root = image_folder()
    state = loader(root).state_dict()
    for options, words in [
        ({"transform": imagenet_train(48)}, "transform"),
        ({"seed": 6}, "seed"),
        ({"batch_size": 2}, "global batch"),
    ]:
        with pytest.raises(StateError, match=words):
            loader(root, **options).load_state_dict(state)
    with pytest.raises(StateError, match="dataset"):
        loader(image_folder(per_class=5, name="other")).load_state_dict(state)
    with pytest.raises(StateError, match="damaged"):
        loader(root).load_state_dict(state | {"records_done": 3})
    with pytest.raises(StateError, match="version"):
        loader(root).load_state_dict({})


def test_kept_batches_never_change(image_folder: MakeFolder) -> None:
    data = loader(image_folder(classes=4, per_class=8), prefetch=1)
    kept = list(data)
    before = digests(kept)
    for _ in range(3):
        list(data)
    assert digests(kept) == before
    assert data.stats().ring_batches >= len(kept)


def test_memory_returns_to_the_ring(image_folder: MakeFolder) -> None:
    data = loader(image_folder(classes=4, per_class=8), prefetch=2)
    for _ in range(5):
        for _ in data:
            pass
    assert data.stats().ring_batches <= 4


@pytest.mark.parametrize("contents", [b"", b"text named .jpg", None])
def test_a_bad_record_raises_with_its_name(image_folder: MakeFolder, contents: bytes | None) -> None:
    root = image_folder()
    bad = root / "class_1" / "image_002.jpg"
    bad.write_bytes(bad.read_bytes()[:700] if contents is None else contents)
    with pytest.raises(DecodeError, match=r"class_1/image_002\.jpg") as caught:
        list(loader(root))
    assert caught.value.key == "class_1/image_002.jpg"
    assert caught.value.hint is not None
    assert "on_error" in caught.value.hint


def test_bad_records_are_substituted_deterministically_counted_and_listed(image_folder: MakeFolder) -> None:
    root = image_folder()
    (root / "class_1" / "image_002.jpg").write_bytes(b"broken")
    data = loader(root, on_error="skip")
    batches = list(data)
    assert len(batches) == 3
    assert digests(batches) == digests(loader(root, on_error="skip", threads=1))
    stats = data.stats()
    assert stats.skipped_count == 1
    assert stats.skipped[0].key == "class_1/image_002.jpg"
    assert all(images.any(axis=(1, 2, 3)).all() for images, _ in batches)


def test_only_bad_records_end_in_an_error(image_folder: MakeFolder) -> None:
    root = image_folder()
    for path in root.rglob("*.jpg"):
        path.write_bytes(b"broken")
    with pytest.raises(DecodeError, match="none of"):
        list(loader(root, on_error="skip"))


def test_evaluation_pipeline_equals_pillow(image_folder: MakeFolder) -> None:
    root = image_folder()
    data = headrace.open(root)
    transform = Compose([Resize(40), CenterCrop(32)])
    images = np.concatenate([i for i, _ in loader(root, transform=transform, shuffle=False, drop_last=False)])
    for record, result in enumerate(images):
        picture = Image.open(data.table.files[record]).convert("RGB")
        width, height = picture.size
        short = min(width, height)
        grid = (40 * width // short, 40 * height // short)
        left, top = round((grid[0] - 32) / 2.0), round((grid[1] - 32) / 2.0)
        expected = picture.resize(grid, Image.Resampling.BILINEAR).crop((left, top, left + 32, top + 32))
        np.testing.assert_array_equal(result, np.asarray(expected))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_float_values_equal_torchvisions(image_folder: MakeFolder, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    v2 = pytest.importorskip("torchvision.transforms.v2.functional")
    root = image_folder()
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
    geometry = [RandomResizedCrop(32), RandomHorizontalFlip()]
    plain, _ = next(iter(loader(root, transform=Compose(geometry), output="torch")))
    floats = loader(root, transform=Compose([*geometry, Normalize(mean, std)]), output="torch", dtype=dtype)
    images, _ = next(iter(floats))
    expected = v2.normalize(v2.to_dtype(plain, torch.float32, scale=True), mean, std)
    assert images.dtype == getattr(torch, dtype)
    torch.testing.assert_close(images, expected.to(images.dtype), rtol=0, atol=0)


def test_a_python_function_runs_on_each_image(image_folder: MakeFolder) -> None:
    root = image_folder()
    plain = list(loader(root))
    inverted = list(loader(root, transform=Compose([*imagenet_train(32).transforms, lambda image: 255 - image])))
    for (images, _), (other, _) in zip(plain, inverted, strict=True):
        np.testing.assert_array_equal(255 - images, other)
    with pytest.raises(UsageError, match="uint8 array"):
        list(loader(root, transform=Compose([CenterCrop(32), lambda image: image.astype(np.float32)])))


def test_no_thread_survives_the_loader(image_folder: MakeFolder) -> None:
    before, python_threads = native_threads(), set(threading.enumerate())
    data = loader(image_folder())
    next(iter(data))
    assert settled(native_threads, before + 2) == before + 2  # a thread takes its name when it first runs
    data.close()
    assert settled(native_threads, before) == before
    assert len(list(data)) == 3  # it may be used again
    del data
    assert settled(native_threads, before) == before
    assert set(threading.enumerate()) <= python_threads


def test_two_loaders_at_once(image_folder: MakeFolder) -> None:
    root = image_folder()
    left, right = loader(root), loader(root, seed=6)
    both = list(zip(left, right, strict=True))
    assert digests(a for a, _ in both) == digests(loader(root))
    assert digests(b for _, b in both) == digests(loader(root, seed=6))


def test_works_in_a_forked_child(image_folder: MakeFolder) -> None:
    data = loader(image_folder())
    expected = digests(data)
    data.set_epoch(0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        result = "different"
        try:
            result = "same" if digests(data) == expected else "different"
        finally:
            os.write(writer, result.encode())
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 100) == b"same"
    os.close(reader)
    assert os.waitpid(child, 0)[1] == 0
    assert digests(data) == expected


def test_dataset_smaller_than_a_batch(image_folder: MakeFolder) -> None:
    root = image_folder(classes=1, per_class=3)
    with pytest.raises(UsageError, match="3 records, fewer than one global batch") as caught:
        loader(root)
    assert "batch_size=3 or less" in str(caught.value.hint) and "drop_last=False" in str(caught.value.hint)
    with pytest.raises(UsageError, match=r"global batch of 6 \(batch_size=2 on each of 3 ranks\)") as caught:
        loader(root, batch_size=2, rank=1, world_size=3)
    assert "batch_size=1 or less" in str(caught.value.hint)
    data = loader(root, drop_last=False)
    assert [len(labels) for _, labels in data] == [3]


def test_random_crop_with_padding(image_folder: MakeFolder) -> None:
    transform = Compose([RandomCrop(256, padding=8, pad_if_needed=True)])
    images, _ = next(iter(loader(image_folder(), transform=transform)))
    assert images.shape == (4, 256, 256, 3)
    assert (images == 0).all(axis=3).any(), "some padding must be visible: the images are smaller than the crop"


def test_refuses_pipelines_and_options_that_cannot_work(image_folder: MakeFolder) -> None:
    root = image_folder()
    for transform, words in [
        (None, "transform is needed"),
        (Resize(32), "differs from image to image"),
        (Compose([Normalize([0.5], [0.5]), CenterCrop(32)]), "CenterCrop after Normalize"),
        (Compose([CenterCrop(32), Normalize([0.5], [0.5])]), "dtype is uint8"),
    ]:
        with pytest.raises(UsageError, match=words):
            loader(root, transform=transform)
    with pytest.raises(UsageError, match="neither a transform nor callable"):
        Compose([3])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="ToDtype"):
        loader(root, transform=Compose([CenterCrop(32), ToDtype("float16")]), dtype="float32")
    with pytest.raises(UsageError, match="together"):
        loader(root, rank=1)
    with pytest.raises(UsageError, match="seed"):
        loader(root, seed=-1)


def test_explain_and_repr_describe_the_loader(image_folder: MakeFolder) -> None:
    data = loader(image_folder(), transform=imagenet_eval(32, normalize=True), dtype="float32")
    text = data.explain()
    for word in ("Resize(37)", "CenterCrop(32)", "float32", "threads"):
        assert word in text
    assert "records=12" in repr(data)


def test_indexes_grow_in_the_first_epoch_and_change_no_pixel(image_folder: MakeFolder) -> None:
    data = loader(image_folder(), threads=1)
    first = digests(data)
    known = data.stats().index_bytes
    assert known > 0
    data.set_epoch(0)
    assert digests(data) == first
    for path in (Path(file) for file in data.dataset.table.files):  # the files change under the loader: its indexes are void
        path.write_bytes(headrace.restart_markers(path.read_bytes()))
    data.set_epoch(0)
    assert digests(data) == first


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_views_are_several_crops_of_each_image(image_folder: MakeFolder, output: str) -> None:
    root = image_folder()
    large, small = imagenet_train(32), Compose([RandomResizedCrop(16, scale=(0.05, 0.3)), RandomHorizontalFlip()])
    data = loader(root, transform=Views([large, large, small]), output=output)
    alone = loader(root, transform=large, output=output)
    seen = 0
    for (views, labels), (images, same_labels) in zip(data, alone, strict=True):
        first, second, crop = (np.asarray(view) for view in views)
        np.testing.assert_array_equal(first, np.asarray(images))  # the first view draws as a loader without views
        np.testing.assert_array_equal(np.asarray(labels), np.asarray(same_labels))
        assert first.shape == second.shape and crop.shape == ((4, 16, 16, 3) if output == "numpy" else (4, 3, 16, 16))
        assert all((one != other).any() for one, other in zip(first, second, strict=True)), "each view has its own draws"
        seen += 1
    assert seen == 3
    assert "view 2:" in data.explain()
    assert data.stats().images == 12, "an image is read and counted once for all views"


@pytest.mark.parametrize("share", [(0.4, 1.0), (0.01, 0.05)], ids=["decoded together", "decoded apart"])
def test_each_view_equals_pillow_with_its_own_draws(image_folder: MakeFolder, share: tuple[float, float]) -> None:
    root = image_folder()
    other = root / "class_0" / "image_000.jpg"
    Image.open(other).save(other, "PNG")
    crop = RandomResizedCrop(24, scale=share)
    data = loader(root, transform=Views([crop, crop]), batch_size=12, shuffle=False, seed=3, threads=1)
    ((views, _),) = data
    for record, path in enumerate(data.dataset.table.files):
        image = Image.open(path).convert("RGB")
        for view in (0, 1):
            seed = hashed(3, view) if view else 3
            (x, y, w, h), *_ = data.pipeline.program.place(*image.size, seed, 0, record)
            expected = image.crop((x, y, x + w, y + h)).resize((24, 24), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(views[view][record], np.asarray(expected))
    data.close()


def test_views_resume_and_agree_about_bad_records(image_folder: MakeFolder) -> None:
    root = image_folder()
    (root / "class_1" / "image_002.jpg").write_bytes(b"broken")
    views = Views([imagenet_train(32), imagenet_train(16)])

    def walk(data: headrace.Loader) -> list[str]:
        return [
            hashlib.sha256(b"".join(view.tobytes() for view in images) + labels.tobytes()).hexdigest()
            for images, labels in data
        ]

    whole = walk(loader(root, transform=views, on_error="skip"))
    data = loader(root, transform=views, on_error="skip", threads=1)
    next(iter(data))
    state = data.state_dict()
    resumed = loader(root, transform=views, on_error="skip")
    resumed.load_state_dict(state)
    assert walk(resumed) == whole[1:]
    assert resumed.stats().skipped_count <= 1
    with pytest.raises(StateError, match="transform"):
        loader(root, transform=imagenet_train(32)).load_state_dict(state)
    with pytest.raises(DecodeError, match="image_002"):
        walk(loader(root, transform=views))
    data.close()


def test_views_with_batch_transforms_and_wrong_arguments(image_folder: MakeFolder) -> None:
    torch = pytest.importorskip("torch")
    root = image_folder()
    erased = Compose([RandomResizedCrop(32), RandomErasing(p=1, value=9)])
    (first, second), _ = next(iter(loader(root, transform=Views([erased, erased]), output="torch")))
    where = [(view == 9).all(dim=1) for view in (first, second)]
    assert where[0].any() and where[1].any() and not torch.equal(where[0], where[1])
    for make, words in [
        (lambda: Views([]), "one or more"),
        (lambda: Views([Views([imagenet_train(32)])]), "without Views"),
        (
            lambda: loader(root, transform=Views([Compose([CenterCrop(8), CutMix()])]), output="torch"),
            "cannot be used in Views",
        ),
        (lambda: loader(root, transform=Compose([CenterCrop(8), Views([CenterCrop(8)])])), "Views"),
    ]:
        with pytest.raises(UsageError, match=words):
            make()


def test_with_json_yields_the_json_beside_the_images(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder()
    archive = tmp_path / "data.tar"
    with tarfile.open(archive, "w") as tar:
        for number, path in enumerate(sorted(root.rglob("*.jpg"))):
            document = json.dumps({"label": number % 3, "boxes": [[number, 1, 2, 3]], "caption": "ä"}).encode()
            for name, data in ((f"{number:03d}.jpg", path.read_bytes()), (f"{number:03d}.json", document)):
                if number == 5 and name.endswith("json"):
                    continue
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    headrace.pack(archive, tmp_path / "pack")
    for source in (archive, tmp_path / "pack"):
        plain = loader(source, drop_last=False)
        seen = 0
        for (images, labels, documents), (same, same_labels) in zip(
            loader(source, drop_last=False, with_json=True), plain, strict=True
        ):
            np.testing.assert_array_equal(images, same)
            np.testing.assert_array_equal(labels, same_labels)
            for label, document in zip(labels.tolist(), documents, strict=True):
                assert document is None or (document["label"] == label and document["boxes"][0][0] % 3 == label)
                seen += document is not None
        assert seen == 11
    with pytest.raises(UsageError, match="no JSON"):
        loader(root, with_json=True)


def test_translates_torchvisions_transforms(image_folder: MakeFolder) -> None:
    """v2's transforms return an array unchanged: as functions they would change nothing, without an error."""
    v1, v2 = pytest.importorskip("torchvision.transforms"), pytest.importorskip("torchvision.transforms.v2")
    root, crop = image_folder(), Resize((16, 16))
    for given in (v1.RandomResizedCrop(16), v2.GaussianBlur(3), v2.Compose([v2.Resize(16), v2.CenterCrop(16)])):
        made = loader(root, transform=Compose([crop, given]))
        assert "torchvision" not in "\n".join(made.pipeline.describe()) and not made.pipeline.functions
    doubled = headrace.Loader(root, 4, Compose([crop, v2.Lambda(lambda image: image // 2)]), output="numpy", shuffle=False)
    plain = headrace.Loader(root, 4, crop, output="numpy", shuffle=False)
    for (halves, _), (images, _) in zip(doubled, plain, strict=True):
        assert (halves == images // 2).all() and images.max() > 100


def test_takes_a_list_as_transform_and_a_torch_dtype(image_folder: MakeFolder) -> None:
    torch = pytest.importorskip("torch")
    root = image_folder()
    for dtype in (torch.float32, "torch.float32", "float32"):
        made = loader(root, transform=[Resize((16, 16))], dtype=dtype, output="torch")
        assert (made.dtype, next(iter(made))[0].dtype) == ("float32", torch.float32)
    with pytest.raises(UsageError, match="is not offered"):
        loader(root, dtype=torch.float64, output="torch")
