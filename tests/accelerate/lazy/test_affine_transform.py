"""The native affine transform of images: pixels, attributes and errors are those of Pillow's own."""

from __future__ import annotations

import io
import os
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from headrace._native import pillow_affine
from headrace.accelerate.lazy import affine_transform
from headrace.accelerate.lazy.affine_transform import compare_first_transforms, pillows_transform, transforms_alike
from headrace.accelerate.lazy.opening import lazy_images
from headrace.accelerate.lazy.pillow import LazyImage
from PIL import Image
from torchvision.transforms import functional as v1

#: The number of random transforms. `HEADRACE_AFFINE_CASES=50000` makes the long run.
CASES = int(os.environ.get("HEADRACE_AFFINE_CASES", "3000"))
FILTERS = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
AFFINE = Image.Transform.AFFINE

pytestmark = pytest.mark.skipif(not transforms_alike(), reason="this processor's Pillow is left to itself")


@pytest.fixture(autouse=True)
def always_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small images natively too, and compare none of them again."""
    monkeypatch.setattr(affine_transform._first_images, "_count", 0)
    monkeypatch.setattr(affine_transform, "FEWEST_PIXELS", 1)


def picture(rng: random.Random, width: int, height: int) -> Image.Image:
    """Noise, blocks of one colour, or extremes: sums beyond 0 and 255 in a bicubic."""
    noise = np.random.default_rng(rng.randrange(1 << 30))
    kind = rng.randrange(3)
    if kind == 0:
        values = noise.integers(0, 256, (height, width, 3), dtype=np.uint8)
    elif kind == 1:
        values = noise.integers(0, 256, (height // 5 + 1, width // 5 + 1, 3), dtype=np.uint8)
        values = values.repeat(5, 0).repeat(5, 1)[:height, :width]
    else:
        values = noise.choice(np.array([0, 255], dtype=np.uint8), (height, width, 3))
    return Image.fromarray(np.ascontiguousarray(values))


def matrix(rng: random.Random, width: int, height: int) -> list[float]:
    """Return a map as augmentations draw them, or any map: enlarged, reduced, mirrored, far away, in round numbers."""
    kind = rng.randrange(8)
    if kind == 0:
        return [1, rng.uniform(-0.5, 0.5), 0, 0, 1, 0]
    if kind == 1:
        return [1, 0, 0, rng.uniform(-0.5, 0.5), 1, 0]
    if kind == 2:
        return [1, 0, rng.uniform(-width, width), 0, 1, rng.choice([0.0, rng.uniform(-height, height)])]
    if kind == 3:
        return [rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0]) for _ in range(6)]
    if kind == 4:
        return [rng.randint(-40, 40) / 16 for _ in range(6)]
    scale = rng.choice([0.1, 1.0, 3.0])
    numbers = [rng.uniform(-scale, scale) for _ in range(6)]
    numbers[2], numbers[5] = rng.uniform(-width, 2 * width), rng.uniform(-height, 2 * height)
    return numbers if kind < 7 else [*numbers[:2], numbers[2] * 1e4, *numbers[3:5], numbers[5] * 1e9]


@pytest.mark.parametrize("name", FILTERS)
def test_thousands_of_random_maps_equal_pillows(name: str) -> None:
    rng = random.Random(name)
    for number in range(CASES // len(FILTERS)):
        width, height = rng.choice([(1, 1), (2, 9), (17, 3), (40, 30), (33, 64), (rng.randint(1, 90), rng.randint(1, 90))])
        image = picture(rng, width, height)
        size = image.size if rng.random() < 0.5 else (rng.randint(1, 70), rng.randint(1, 70))
        numbers = matrix(rng, width, height)
        fill = (rng.randrange(256), rng.randrange(256), rng.randrange(256))
        expected = image.transform(size, AFFINE, numbers, FILTERS[name], fillcolor=fill).tobytes()
        ours = pillow_affine(image.tobytes(), image.size, size, numbers, name, fill, b"")
        assert ours == expected, f"{number}: {image.size} to {size} by {numbers}"


@pytest.mark.parametrize("name", FILTERS)
def test_rotations_equal_pillows(name: str) -> None:
    rng = random.Random(name)
    for _ in range(CASES // 30):
        image = picture(rng, rng.randint(1, 80), rng.randint(1, 80))
        options: dict[str, Any] = {"expand": rng.random() < 0.3, "fillcolor": rng.choice([None, (9, 8, 7)])}
        if rng.random() < 0.3:
            options |= {"center": (rng.uniform(0, 80), rng.uniform(0, 80)), "translate": (rng.randint(-9, 9), 3)}
        angle = rng.choice([45, -30.0, 90, 0.5, rng.uniform(-400, 400)])
        expected = image.rotate(angle, FILTERS[name], **options)
        with lazy_images():
            ours = image.rotate(angle, FILTERS[name], **options)
        assert (ours.size, ours.tobytes()) == (expected.size, expected.tobytes())


def test_a_lazy_image_stays_lazy_through_transforms(image_folder: Any) -> None:
    path = next(image_folder().rglob("*.jpg"))

    def chain() -> Image.Image:
        image = Image.open(path).convert("RGB").resize((100, 80), Image.Resampling.BILINEAR)
        image.info["note"] = "kept"
        sheared = image.transform(image.size, AFFINE, (1, 0.3, 0, 0, 1, 0), Image.Resampling.BICUBIC, fillcolor=(124, 116, 104))
        turned = sheared.rotate(12, Image.Resampling.BILINEAR).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return v1.affine(turned, 10, [1, 2], 1.1, [3], fill=[7, 8, 9]).crop((3, 3, 90, 70))

    expected = chain()
    with lazy_images():
        ours = chain()
    assert type(ours) is LazyImage
    assert pickle.loads(pickle.dumps(ours)).tobytes() == expected.tobytes()
    assert (ours.mode, ours.size, ours.info, ours.readonly) == (expected.mode, expected.size, expected.info, expected.readonly)
    assert ours.tobytes() == expected.tobytes()
    assert type(ours) is Image.Image and vars(ours).keys() == vars(expected).keys()


def test_an_image_is_decoded_once_for_several_transforms(image_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.accelerate.lazy import pillow as lazy_pillow

    decoded: list[Any] = []
    own = lazy_pillow.pixels
    monkeypatch.setattr(lazy_pillow, "pixels", lambda *rest: decoded.append(rest) or own(*rest))
    with lazy_images():
        image = Image.open(next(image_folder().rglob("*.jpg"))).convert("RGB").crop((1, 1, 31, 21))
        made = [image.transform((70, 60), AFFINE, (1, 0, pixels, 0, 1, 0), 2) for pixels in (1, 2, 3)]
    assert len(decoded) == 1
    assert made[2].tobytes() == pillows_transform(image, (70, 60), AFFINE, (1, 0, 3, 0, 1, 0), 2).tobytes()
    assert len(decoded) == 1


UNUSUAL: dict[str, Callable[[Any], Any]] = {
    "no data": lambda image: image.transform((9, 9), AFFINE),
    "too few numbers": lambda image: image.transform((9, 9), AFFINE, (1, 0, 0)),
    "eight numbers": lambda image: image.transform((9, 9), AFFINE, (1, 0.2, 0, 0, 1, 0, 5, 6)),
    "text": lambda image: image.transform((9, 9), AFFINE, ("1", 0, 0, 0, 1, 0)),
    "numpy numbers": lambda image: image.transform((9, 9), AFFINE, tuple(np.array([1, 0.2, 0, 0, 1, 0]))),
    "numpy array": lambda image: image.transform((9, 9), AFFINE, np.array([1, 0.2, 0, 0, 1, 0])),
    "not finite": lambda image: image.transform((9, 9), AFFINE, (float("nan"), 0, 0, 0, float("inf"), 0)),
    "a huge number": lambda image: image.transform((9, 9), AFFINE, (10**400, 0, 0, 0, 1, 0)),
    "lanczos": lambda image: image.transform((9, 9), AFFINE, (1, 0, 0, 0, 1, 0), Image.Resampling.LANCZOS),
    "no filter": lambda image: image.transform((9, 9), AFFINE, (1, 0, 0, 0, 1, 0), None),
    "extent": lambda image: image.transform((9, 9), Image.Transform.EXTENT, (1, 2, 9, 8), 2),
    "perspective": lambda image: image.transform((9, 9), Image.Transform.PERSPECTIVE, (1, 0, 0, 0, 1, 0, 0.01, 0), 2),
    "colour by name": lambda image: image.transform((9, 9), AFFINE, (1, 0, -3, 0, 1, 0), 2, fillcolor="orange"),
    "colour as number": lambda image: image.transform((9, 9), AFFINE, (1, 0, -3, 0, 1, 0), 2, fillcolor=700),
    "colour of floats": lambda image: image.transform((9, 9), AFFINE, (1, 0, -3, 0, 1, 0), 2, fillcolor=(1.0, 2.0, 3.0)),
    "colour too large": lambda image: image.transform((9, 9), AFFINE, (1, 0, -3, 0, 1, 0), 2, fillcolor=(300, -4, 3)),
    "four values": lambda image: image.transform((9, 9), AFFINE, (1, 0, -3, 0, 1, 0), 2, fillcolor=(1, 2, 3, 4)),
    "no size": lambda image: image.transform(None, AFFINE, (1, 0, 0, 0, 1, 0)),
    "empty": lambda image: image.transform((0, 4), AFFINE, (1, 0, 0, 0, 1, 0)),
    "size as list": lambda image: image.transform([9, 7], AFFINE, [1, 0.1, 0, 0, 1, 0], 3),
    "gray": lambda image: image.convert("L").transform((9, 9), AFFINE, (1, 0.1, 0, 0, 1, 0), 2),
    "with alpha": lambda image: image.convert("RGBA").transform((9, 9), AFFINE, (1, 0.1, 0, 0, 1, 0), 2),
    "no arguments": lambda image: image.transform(),
    "unknown argument": lambda image: image.transform((9, 9), AFFINE, (1, 0, 0, 0, 1, 0), colour=3),
    "nearest along the axes": lambda image: image.transform((90, 90), AFFINE, (1.3, 0, -3, 0, 0.9, 2), 0),
    "all named": lambda image: image.transform(size=(9, 9), method=0, data=(1, 0.1, 0, 0, 1, 0), resample=3, fill=0),
}


def outcome(call: Callable[[Any], Any], image: Any) -> Any:
    try:
        made = call(image)
    except Exception as error:
        return type(error), str(error)
    return made.mode, made.size, made.info, made.tobytes()


@pytest.mark.parametrize("what", UNUSUAL)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_not_a_plain_case_is_pillows(what: str, image_folder: Any) -> None:
    data = next(image_folder().rglob("*.jpg")).read_bytes()
    expected = outcome(UNUSUAL[what], Image.open(io.BytesIO(data)))
    with lazy_images():
        assert outcome(UNUSUAL[what], Image.open(io.BytesIO(data))) == expected


def test_pillows_method_is_back_behind_the_block_and_a_scripts_own_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with lazy_images():
        assert Image.Image.transform is not pillows_transform
        assert Image.Image.transform.__qualname__ == "Image.transform"
        with lazy_images():
            pass
        assert Image.Image.transform is not pillows_transform
    assert Image.Image.transform is pillows_transform

    def own(*_: Any, **__: Any) -> str:
        return "own"

    monkeypatch.setattr(Image.Image, "transform", own)
    with lazy_images():
        assert Image.new("RGB", (4, 4)).transform() == "own"
    assert Image.Image.transform is own  # type: ignore[comparison-overlap]


def test_a_difference_ends_native_transforms_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(affine_transform._first_images, "equal", True)
    monkeypatch.setattr(affine_transform._first_images, "_count", 2)
    image = picture(random.Random(3), 40, 30)
    expected = image.rotate(10, Image.Resampling.BILINEAR).tobytes()
    monkeypatch.setattr(affine_transform, "pillow_affine", lambda *_: b"other")
    compare_first_transforms()
    with lazy_images():
        assert image.rotate(10, Image.Resampling.BILINEAR).tobytes() == expected
        assert not affine_transform._first_images.equal
        assert image.rotate(10, Image.Resampling.BILINEAR).tobytes() == expected
    assert "an affine transform came out different" in capsys.readouterr().err
