"""Files that Pillow reads without a warning: usual ones are known as such, and of damaged ones no others."""

from __future__ import annotations

import io
import os
import random
import warnings
from collections.abc import Callable

import headrace
import numpy as np
import pytest
from headrace._native import quiet_orientation
from noisy_files import ON_OPENING, ON_TURNING, exif, large_png
from PIL import Image, ImageCms, ImageOps, PngImagePlugin
from refused_files import REFUSED
from sample_images import photograph

SIZE = (40, 30)
FILES = 200_000 if "HEADRACE_TEST_LONG" in os.environ else 3_000
TURNED = exif((0x10F, 2, 4, 0x61626300), (0x112, 3, 1, 6), (0x128, 3, 1, 2))


def encoded(format: str, **options: object) -> bytes:
    file = io.BytesIO()
    photograph(*SIZE, seed=3).save(file, format, **options)
    return file.getvalue()


def palette(format: str) -> bytes:
    file = io.BytesIO()
    photograph(*SIZE, seed=3).quantize(32).save(file, format, transparency=3)
    return file.getvalue()


def several() -> bytes:
    file = io.BytesIO()
    image = photograph(*SIZE, seed=3)
    image.save(file, "MPO", save_all=True, append_images=[image])
    return file.getvalue()


def described_png() -> bytes:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Software", "a program")
    texts.add_text("Comment", "compressed " * 50, zip=True)
    texts.add_itxt("Title", "a title", "en", "Title", zip=True)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return encoded("PNG", pnginfo=texts, icc_profile=profile, dpi=(72, 72), exif=TURNED)


def camera_jpeg() -> bytes:
    """Return a JPEG with the fields of a telephone's photograph."""
    block = Image.Exif()
    block[0x010F], block[0x0110], block[0x0112], block[0x0131] = "Maker", "Model 3", 6, "17.1"
    block[0x011A], block[0x011B], block[0x0128], block[0x0132] = 72.0, 72.0, 2, "2024:05:06 07:08:09"
    block[0x0213] = 1
    inner = {0x829A: 0.01, 0x9000: b"0232", 0x9204: 0.0, 0x927C: b"Maker\0" * 9, 0xA000: b"0100", 0xA002: 40, 0xA003: 30}
    place = {0: b"\2\3\0\0", 1: "N", 2: (52.0, 31.0, 12.5), 3: "E", 4: (13.0, 24.0, 1.0), 5: b"\0", 6: 34.0, 29: "2024:05:06"}
    block.get_ifd(0x8769).update(inner)
    block.get_ifd(0x8825).update(place)
    return encoded("JPEG", exif=block.tobytes())


USUAL: dict[str, Callable[[], bytes]] = {
    "JPEG": lambda: encoded("JPEG", exif=TURNED),
    "orientation twice": lambda: encoded("JPEG", exif=exif((0x112, 3, 1, 6), (0x112, 3, 1, 6), (0x128, 3, 1, 2))),
    "progressive JPEG": lambda: encoded("JPEG", progressive=True, dpi=(300, 300), comment=b"a comment"),
    "photograph": camera_jpeg,
    "several images": several,
    "PNG": lambda: encoded("PNG"),
    "PNG with texts": described_png,
    "PNG with a palette": lambda: palette("PNG"),
    "GIF": lambda: palette("GIF"),
    "WebP": lambda: encoded("WEBP", exif=TURNED),
    "lossless WebP": lambda: encoded("WEBP", lossless=True),
    "TIFF": lambda: encoded("TIFF", software="a program", dpi=(72, 72)),
    "LZW TIFF": lambda: encoded("TIFF", compression="tiff_lzw", exif=TURNED),
    "BMP": lambda: encoded("BMP"),
    "PPM": lambda: encoded("PPM"),
}


@pytest.mark.parametrize("kind", USUAL)
def test_usual_files_are_quiet(kind: str) -> None:
    data = USUAL[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    orientation = Image.open(io.BytesIO(data)).getexif().get(0x112, 1)
    assert quiet_orientation(data) == orientation
    assert quiet_orientation(data, False) is not None


@pytest.mark.parametrize("name", [*ON_OPENING, *ON_TURNING])
def test_files_of_which_pillow_warns_are_not(name: str) -> None:
    data = (ON_OPENING | ON_TURNING)[name]()
    assert quiet_orientation(data) is None
    if name in ON_OPENING:
        assert quiet_orientation(data, False) is None


def test_two_orientations_are_not_quiet() -> None:
    assert quiet_orientation(encoded("JPEG", exif=exif((0x112, 3, 1, 6), (0x112, 3, 1, 3)))) is None


@pytest.mark.parametrize("kind", REFUSED)
def test_files_that_pillow_refuses_are_not_decoded_in_its_place(kind: str) -> None:
    data = REFUSED[kind]()
    with pytest.raises((OSError, ValueError)), Image.open(io.BytesIO(data)) as image:
        image.load()
    one = np.zeros((1, 1, 1, 3), dtype=np.uint8)
    assert quiet_orientation(data, False) is None or headrace.decode_into([data], one, boxes=[(0, 0, 1, 1)])[0]


def test_large_images_are_not_quiet() -> None:
    assert quiet_orientation(large_png(9459, 9459)) == 1
    assert quiet_orientation(large_png(9460, 9460)) is None


def damaged(random_: random.Random, data: bytes) -> bytes:
    """Return a file with a few bytes changed, left out or put in, most of them in its headers."""
    changed = bytearray(data)
    for _ in range(random_.choice([1, 1, 2, 4])):
        at = random_.randrange(2, min(len(changed), random_.choice([60, 200, 700, 5000])))
        match random_.choices(["byte", "less", "more", "cut"], [60, 15, 15, 10])[0]:
            case "byte":
                changed[at] = random_.choice([0, 1, 2, 255, random_.randrange(256), changed[at] ^ 1 << random_.randrange(8)])
            case "less":
                del changed[at : at + random_.randint(1, 8)]
            case "more":
                changed[at:at] = random_.randbytes(random_.randint(1, 8))
            case "cut":
                del changed[max(3, len(changed) - random_.randint(1, 200)) :]
    return bytes(changed)


@pytest.mark.filterwarnings("ignore")
def test_pillow_says_nothing_of_damaged_files_that_are_quiet() -> None:
    files = {kind: make() for kind, make in USUAL.items()}
    quiet = 0
    for seed in range(FILES):
        random_ = random.Random(seed)
        kind = random_.choice(sorted(files))
        data, upright = damaged(random_, files[kind]), random_.random() < 0.5
        if quiet_orientation(data, upright) is None:
            continue
        quiet += 1
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            try:
                image = Image.open(io.BytesIO(data))
                image = (ImageOps.exif_transpose(image) if upright else image).convert("RGB")
            except Exception:
                image = None
        assert not given, f"seed {seed}, {kind}: {given[0].message}"
        width, height = image.size if image is not None else SIZE
        out = np.empty((1, height, width, 3), dtype=np.uint8)
        decoded = headrace.decode_into([data], out, exif=upright)[0] == 0
        assert not decoded or image is not None, f"seed {seed}, {kind}: Pillow refuses it"
    assert quiet > FILES // 4
