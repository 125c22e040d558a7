"""Masks: class numbers that follow the geometry of their image, exactly as Pillow's nearest sampling."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import numpy.typing as npt
import pytest
from containers import write_tar
from headrace import transforms as t
from headrace.errors import DecodeError, SourceError, UsageError
from PIL import Image

Pixels = npt.NDArray[np.uint8]
SIZES = [(90, 70), (64, 96), (101, 101), (40, 55), (77, 61), (120, 48)]
FILL, SEED = 255, 5
NEAREST = Image.Resampling.NEAREST


def picture(number: int) -> Image.Image:
    width, height = SIZES[number]
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8))


def classes_of(number: int) -> Pixels:
    width, height = SIZES[number]
    return np.random.default_rng(100 + number).integers(0, 21, (height, width), dtype=np.uint8)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def mask(number: int) -> bytes:
    """Return a mask: grey for an even number, else with a palette whose colours differ from the class numbers."""
    image = Image.fromarray(classes_of(number))
    if number % 2:
        image.putpalette([255 - value // 3 for value in range(768)])
    return encoded(image)


def labeled(masks: Callable[[int], bytes] = mask) -> list[tuple[str, bytes]]:
    """Return members sorted by name: `7.mask.png` comes before `7.png`."""
    members = []
    for number in range(len(SIZES)):
        members.append((f"{number:02}.cls", str(number % 3).encode()))
        members.append((f"{number:02}.json", b'{"number": %d}' % number))
        members.append((f"{number:02}.mask.png", masks(number)))
        members.append((f"{number:02}.png", encoded(picture(number))))
    return members


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "data.tar", labeled())


def loader(source: Path, transform: t.Transform, **options: Any) -> headrace.Loader:
    defaults: dict[str, Any] = {
        "mask": "mask.png",
        "mask_fill": FILL,
        "batch_size": len(SIZES),
        "shuffle": False,
        "drop_last": False,
        "seed": SEED,
        "output": "numpy",
        "threads": 2,
    }
    return headrace.Loader(source, transform=transform, **(defaults | options))


def replayed(classes: Pixels, parameters: Sequence[tuple[str, dict[str, Any]]]) -> Pixels:
    """Apply the parameters of an image to its mask with Pillow."""
    image = Image.fromarray(classes)
    for name, given in parameters:
        if name == "crop":
            (x, y), (w, h) = (given["left"], given["top"]), (given["width"], given["height"])
            canvas = Image.new("L", (w, h), FILL)
            canvas.paste(image, (-x, -y))
            image = canvas
        elif name == "pad":
            left, top, right, bottom = given["padding"]
            canvas = Image.new("L", (image.width + left + right, image.height + top + bottom), FILL)
            canvas.paste(image, (left, top))
            image = canvas
        elif name == "resize":
            image = image.resize((given["size"][1], given["size"][0]), NEAREST)
        elif name == "horizontal_flip":
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        elif name == "vertical_flip":
            image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        elif name == "rotate":
            image = image.rotate(given["angle"], NEAREST, expand=given["expand"], center=given["center"], fillcolor=FILL)
        else:
            assert name.startswith(("adjust", "invert")), name
    return np.asarray(image)


PIPELINES: dict[str, list[t.Transform]] = {
    "crop, flip": [t.RandomResizedCrop(32), t.RandomHorizontalFlip()],
    "bicubic": [t.RandomResizedCrop((30, 50), interpolation=("bicubic", "lanczos")), t.RandomVerticalFlip()],
    "evaluation": [t.Resize(60), t.CenterCrop(48)],
    "larger than the image": [t.CenterCrop(110), t.RandomHorizontalFlip()],
    "padded": [t.Pad((3, 5, 8, 2), fill=9), t.RandomCrop(40, padding=6, pad_if_needed=True)],
    "turned": [t.RandomHorizontalFlip(), t.RandomRotation(30, interpolation="bilinear"), t.RandomResizedCrop(32)],
    "turned last": [t.RandomResizedCrop(48), t.RandomRotation(70, fill=3), t.RandomVerticalFlip()],
    "expanded": [t.RandomRotation(60, expand=True), t.Resize((50, 60))],
    "colours": [t.ColorJitter(0.4, 0.4, 0.4, 0.2), t.RandomResizedCrop(32), t.RandomInvert(), t.RandomHorizontalFlip()],
}


@pytest.mark.parametrize("fuse", ["geometry", "off"])
@pytest.mark.parametrize("name", PIPELINES)
def test_masks_follow_their_image_as_pillow_does(tar: Path, name: str, fuse: Any) -> None:
    with loader(tar, t.Compose(PIPELINES[name]), fuse=fuse) as made:
        plain = headrace.Loader(
            tar, len(SIZES), t.Compose(PIPELINES[name]), shuffle=False, seed=SEED, output="numpy", threads=1, fuse=fuse
        )
        for epoch in range(2):
            ((images, labels, masks),) = made
            ((same, same_labels),) = plain
            np.testing.assert_array_equal(images, same)
            np.testing.assert_array_equal(labels, same_labels)
            assert masks.shape == images.shape[:3] and masks.dtype == np.uint8
            assert "255 outside" in made.explain()
            for number, found in enumerate(masks):
                drawn = made.pipeline.program.parameters(*SIZES[number], SEED, epoch, number)
                np.testing.assert_array_equal(found, replayed(classes_of(number), drawn))
        plain.close()


def test_a_rotated_mask_lies_where_its_rotated_image_does(tmp_path: Path) -> None:
    """The image is its own mask: only the interpolation at edges may differ."""
    y, x = np.mgrid[0:120, 0:160]
    blob = np.where((x - 60) ** 2 + (y - 70) ** 2 < 900, 200, 20).astype(np.uint8)
    members = [
        ("a.cls", b"0"),
        ("a.png", encoded(Image.fromarray(blob).convert("RGB"))),
        ("a.seg.png", encoded(Image.fromarray(blob))),
    ]
    source = write_tar(tmp_path / "one.tar", members)
    steps = t.Compose(
        [t.RandomAffine(40, (0.1, 0.1), (0.8, 1.2), 10, interpolation="bilinear", fill=20), t.RandomResizedCrop(64)]
    )
    with loader(source, steps, mask="seg.png", mask_fill=20, batch_size=1) as made:
        for _ in range(8):
            ((images, _, masks),) = made
            differ = (images[..., 0] > 110) != (masks > 110)
            assert differ.mean() < 0.03, differ.mean()


def test_masks_are_torch_tensors_before_json_documents(tar: Path) -> None:
    torch = pytest.importorskip("torch")
    with loader(tar, t.RandomResizedCrop(16), output="torch", with_json=True, batch_size=4) as made:
        seen = []
        for images, labels, masks, documents in made:
            assert masks.dtype == torch.uint8 and tuple(masks.shape) == (len(labels), 16, 16)
            assert tuple(images.shape) == (len(labels), 3, 16, 16)
            seen += [document["number"] for document in documents]
    assert seen == list(range(len(SIZES)))


def test_each_view_has_its_mask(tar: Path) -> None:
    views = t.Views([t.RandomResizedCrop(32), t.Compose([t.RandomResizedCrop(16), t.RandomHorizontalFlip()])])
    with loader(tar, views) as made:
        (((large, small), _, (large_masks, small_masks)),) = made
    assert large_masks.shape == large.shape[:3] and small_masks.shape == small.shape[:3]
    for number, found in enumerate(large_masks):
        drawn = made.pipeline.program.parameters(*SIZES[number], SEED, 0, number)
        np.testing.assert_array_equal(found, replayed(classes_of(number), drawn))


def test_masks_of_an_archive_without_labels(tmp_path: Path) -> None:
    members = [member for member in labeled() if member[0].endswith("png")]
    source = write_tar(tmp_path / "plain.tar", members)
    assert len(headrace.open(source)) == 2 * len(SIZES)
    with loader(source, t.Resize((20, 30))) as made:
        assert len(made.dataset) == len(SIZES)
        ((images, _, masks),) = made
    for number, found in enumerate(masks):
        expected = Image.fromarray(classes_of(number)).resize((30, 20), NEAREST)
        np.testing.assert_array_equal(found, np.asarray(expected))
        np.testing.assert_array_equal(images[number], np.asarray(picture(number).resize((30, 20), Image.Resampling.BILINEAR)))


@pytest.mark.parametrize("packed", [False, True])
def test_masks_in_a_folder(tmp_path: Path, packed: bool) -> None:
    for number in range(len(SIZES)):
        for root, data in (("images", encoded(picture(number))), ("masks", mask(number))):
            path = tmp_path / root / f"class{number % 2}" / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    source = tmp_path / "images"
    if packed:
        headrace.pack(source, tmp_path / "pack")
        source = tmp_path / "pack"
    with loader(source, t.Resize((20, 30)), mask=tmp_path / "masks") as made:
        ((_, labels, masks),) = made
        order = [int(Path(key).stem) for key in made.dataset.table.keys]
    assert sorted(order) == list(range(len(SIZES)))
    for number, label, found in zip(order, labels.tolist(), masks, strict=True):
        expected = Image.fromarray(classes_of(number)).resize((30, 20), NEAREST)
        np.testing.assert_array_equal(found, np.asarray(expected))
        assert label == number % 2
    (tmp_path / "masks" / "class1" / "03.png").unlink()
    with pytest.raises(SourceError, match=r"1 of 6 records .* the first is 'class1/03"):
        loader(source, t.Resize((20, 30)), mask=tmp_path / "masks")


def test_a_missing_mask_is_an_error_that_names_its_record(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "data.tar", [member for member in labeled() if member[0] != "04.mask.png"])
    with pytest.raises(SourceError, match=r"1 of 6 records .* the first is '04'"):
        loader(source, t.Resize((20, 30)))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (encoded(Image.new("RGB", SIZES[3])), "its mask is not a sound PNG"),
        (encoded(Image.new("L", (7, 7))), "its mask and the image differ in size"),
        (mask(3)[:60], "its mask is not a sound PNG"),
    ],
    ids=["colours", "size", "truncated"],
)
def test_a_bad_mask_is_a_bad_record(tmp_path: Path, bad: bytes, words: str) -> None:
    source = write_tar(tmp_path / "data.tar", labeled(lambda number: bad if number == 3 else mask(number)))
    with pytest.raises(DecodeError, match=f"'03'.*{words}"), loader(source, t.Resize((20, 30))) as made:
        next(iter(made))
    with loader(source, t.Resize((20, 30)), on_error="skip", with_json=True) as made:
        ((_, _, masks, documents),) = made
        assert [skipped.key for skipped in made.stats().skipped] == ["03"]
    for found, document in zip(masks, documents, strict=True):
        expected = Image.fromarray(classes_of(document["number"])).resize((30, 20), NEAREST)
        np.testing.assert_array_equal(found, np.asarray(expected))
    assert len(documents) == len(SIZES) and all(document["number"] != 3 for document in documents)


def test_masks_that_cannot_work_are_refused(tar: Path, image_folder: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="no folder"):
        loader(image_folder(), t.Resize((8, 8)))
    with pytest.raises(SourceError, match="leave no image"):
        loader(tar, t.Resize((8, 8)), mask=".PNG")
    with pytest.raises(UsageError, match="mask_fill"):
        loader(tar, t.Resize((8, 8)), mask_fill=256)
    with pytest.raises(UsageError, match="masks cannot be mixed"):
        loader(tar, t.Compose([t.Resize((8, 8)), t.MixUp()]), output="torch", dtype="float32")


@pytest.mark.timeout(20)
def test_a_folder_of_masks_with_links_to_itself_is_refused(tmp_path: Path) -> None:
    """Two such links are a trillion paths, which filled the memory."""
    images, masks = tmp_path / "images" / "cat", tmp_path / "masks" / "cat"
    for folder in (images, masks):
        folder.mkdir(parents=True)
    (images / "0.png").write_bytes(encoded(picture(0)))
    (masks / "0.png").write_bytes(mask(0))
    for name in ("a", "b"):
        (masks / name).symlink_to(tmp_path / "masks")
    with pytest.raises(SourceError, match="is a link to a folder above it"):
        headrace.Loader(tmp_path / "images", batch_size=1, mask=tmp_path / "masks", transform=t.Compose([t.Resize(8)]))
