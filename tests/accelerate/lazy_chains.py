"""Random chains of Pillow operations on lazy and on ordinary images, for the tests of lazy images."""

from __future__ import annotations

import copy
import io
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from headrace.accelerate.lazy.opening import lazy_images
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps, ImageStat
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

SIZES = [(1, 1), (2, 300), (8, 8), (33, 17), (64, 48), (97, 131), (160, 120), (300, 7)]


def jpeg_kinds(rng: random.Random, count: int) -> list[bytes]:
    """Make JPEGs of many kinds: colour, grey, CMYK, progressive, restart markers, EXIF, several pictures, damaged ones."""
    files = []
    for number in range(count):
        width, height = rng.choice(SIZES)
        values = np.random.default_rng(rng.randrange(1 << 30)).integers(
            0, 256, (height // 6 + 1, width // 6 + 1, 3), dtype=np.uint8
        )
        image = Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)
        image = image.convert(rng.choices(["RGB", "L", "CMYK"], [8, 1, 1])[0])
        options: dict[str, Any] = {"quality": rng.choice([20, 75, 95]), "optimize": rng.random() < 0.3}
        if image.mode == "RGB":
            options["subsampling"] = rng.choice([0, 1, 2])
        if rng.random() < 0.1:
            options["progressive"] = True
        if rng.random() < 0.2:
            options["restart_marker_blocks"] = rng.randint(1, 9)
        if rng.random() < 0.3:
            exif = Image.Exif()
            exif[0x0112] = rng.randint(1, 8)
            options["exif"] = exif
        if rng.random() < 0.2:
            options |= {"dpi": (72, 71), "comment": b"a comment", "icc_profile": b"profile" * 9}
        kind = "MPO" if image.mode == "RGB" and rng.random() < 0.06 else "JPEG"
        if kind == "MPO":
            options |= {"save_all": True, "append_images": [image.transpose(Image.Transpose.ROTATE_180)]}
        file = io.BytesIO()
        image.save(file, kind, **options)
        files.append(damaged(file.getvalue(), rng) if number % 5 == 4 else file.getvalue())
    return files


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Change, cut, remove or append bytes."""
    changed, kind = bytearray(data), rng.randrange(5)
    place = rng.randrange(3, len(data))
    if kind == 0:
        del changed[place:]
    elif kind == 1:
        del changed[place : place + rng.randint(1, 40)]
    elif kind == 2:
        changed += rng.randbytes(rng.choice([1, 100, 70_000]))
    else:
        for _ in range(kind):
            changed[rng.randrange(3, len(data))] = rng.randrange(256)
    return bytes(changed)


def _box(rng: random.Random, size: tuple[int, int]) -> tuple[Any, ...]:
    """Draw a crop: mostly inside the image, sometimes at its edge, beyond it, empty, the wrong way round or not of integers."""
    width, height = size
    kind = rng.random()
    if kind < 0.6:
        x, y = rng.randrange(width), rng.randrange(height)
        return (x, y, rng.randint(x + 1, width), rng.randint(y + 1, height))
    if kind < 0.7:
        return (0, 0, width, height)
    if kind < 0.8:
        return tuple(rng.uniform(-1, side) for side in (width, height, width + 1, height + 1))
    x, y = rng.randint(-4, width + 4), rng.randint(-4, height + 4)
    return (x, y, x + rng.randint(-2, width), y + rng.randint(-2, height))


def _size(rng: random.Random, size: tuple[int, int]) -> Any:
    kind = rng.random()
    if kind < 0.1:
        return size
    if kind < 0.2:
        return (size[0], rng.randint(1, 90))
    if kind < 0.26:
        return rng.choice([(0, 4), (5, -1), (3.5, 4), (7,), [20, 30], np.array([12, 9])])
    return (rng.randint(1, 120), rng.randint(1, 120))


def _resize(rng: random.Random, size: tuple[int, int]) -> Callable[[Any], Any]:
    options: dict[str, Any] = {}
    if rng.random() < 0.8:
        options["resample"] = rng.choice([0, 1, 2, 3, 4, 5, Image.Resampling.BILINEAR, None, 77])
    if rng.random() < 0.15:
        x, y = rng.random() * size[0] / 2, rng.random() * size[1] / 2
        options["box"] = rng.choice([(0, 0, *size), (x, y, *size), (int(x), int(y), *size), (0, 0, size[0] + 1, size[1])])
    if rng.random() < 0.2:
        options["reducing_gap"] = rng.choice([1.0, 1.5, 2.0, 3.0, 0.5])
    target = _size(rng, size)
    return lambda image: image.resize(target, **options)


def _draw(rng: random.Random, size: tuple[int, int]) -> tuple[str, Callable[[Any], Any]]:
    """Draw an operation: most stay lazy, the others look at pixels or change the image itself."""
    box, target = _box(rng, size), _size(rng, size)
    method, mode = rng.choice([0, 1, 2, 3, 4, 5, 6, 9]), rng.choice(["RGB", "L", "CMYK", "P", "RGBA", "1", "HSV", None, "no"])
    top, left = rng.randint(-3, size[1]), rng.randint(-3, size[0])
    side = (rng.randint(1, 40), rng.randint(1, 40))
    pixel = (rng.randrange(-1, size[0] + 1), rng.randrange(size[1]))
    lazily: list[tuple[str, Callable[[Any], Any]]] = [
        ("convert RGB", lambda image: image.convert("RGB")),
        ("convert RGB", lambda image: image.convert("RGB")),
        (f"crop {box}", lambda image: image.crop(box)),
        (f"crop {box}", lambda image: image.crop(box)),
        ("resize", _resize(rng, size)),
        ("resize", _resize(rng, size)),
        (f"transpose {method}", lambda image: image.transpose(method)),
        ("copy", lambda image: image.copy()),
        ("copy.copy", copy.copy),
        ("hflip", v1.hflip),
        (f"v1 crop {top} {left} {side}", lambda image: v1.crop(image, top, left, *side)),
        (f"v2 center_crop {side}", lambda image: v2.center_crop(image, list(side))),
        (f"resized_crop {side}", lambda image: v2.resized_crop(image, 0, 0, size[1], max(1, size[0] // 2), list(side))),
        ("mirror", ImageOps.mirror),
        ("exif_transpose", ImageOps.exif_transpose),
        ("load", lambda image: image.load() and None),
        ("rotate 0", lambda image: image.rotate(rng.choice([0, 180]))),
    ]
    looking: list[tuple[str, Callable[[Any], Any]]] = [
        (f"convert {mode}", lambda image: image.convert(mode)),
        ("gray", lambda image: v1.to_grayscale(image, 3)),
        ("array", lambda image: np.asarray(image)),
        ("to_tensor", v1.to_tensor),
        ("pil_to_tensor", v2.pil_to_tensor),
        ("getpixel", lambda image: image.getpixel(pixel)),
        ("putpixel", lambda image: image.putpixel(pixel, 3)),
        ("access", lambda image: image.load()[pixel]),
        ("change", lambda image: image.load().__setitem__(pixel, image.getpixel(pixel))),
        ("thumbnail", lambda image: image.thumbnail(side)),
        (f"draft {target}", lambda image: image.draft(rng.choice(["RGB", "L"]), side)),
        ("verify", lambda image: image.verify()),
        ("rotate 90", lambda image: image.rotate(90, expand=True)),
        ("rotate", lambda image: image.rotate(17, rng.choice([0, 2, 3]))),
        ("shear", lambda image: image.transform(side, 0, (1, 0.2, 0, 0, 1, 0), 3, fillcolor=(9, 8, 7))),
        ("pickle", lambda image: pickle.loads(pickle.dumps(image))),
        ("deepcopy", copy.deepcopy),
        ("histogram", lambda image: image.histogram()),
        ("extrema", lambda image: image.getextrema()),
        ("bbox", lambda image: image.getbbox()),
        ("stat", lambda image: ImageStat.Stat(image).mean),
        ("split", lambda image: image.split()[0]),
        ("point", lambda image: image.point(lambda value: 255 - value)),
        ("filter", lambda image: image.filter(ImageFilter.BoxBlur(1))),
        ("enhance", lambda image: ImageEnhance.Contrast(image).enhance(1.3)),
        ("invert", ImageOps.invert),
        ("fit", lambda image: ImageOps.fit(image, side)),
        ("pad", lambda image: v1.pad(image, 3)),
        ("affine", lambda image: v1.affine(image, 10, [1, 2], 1.1, [3])),
        ("chops", lambda image: ImageChops.add(image, image)),
        ("paste", lambda image: image.paste(image.copy(), (1, 2))),
        ("reduce", lambda image: image.reduce(2)),
        ("seek", lambda image: image.seek(rng.choice([0, 1]))),
        ("quantize", lambda image: image.quantize(4)),
        ("close", lambda image: image.close()),
        ("leave", lambda image: image.__exit__(None, None, None)),
        ("tobytes", lambda image: image.tobytes()),
        ("save", lambda image: image.save(io.BytesIO(), "PNG")),
        ("getdata", lambda image: bytes(image.getchannel(0).tobytes())),
        ("equal", lambda image: image == image.copy()),
    ]
    return rng.choice(lazily) if rng.random() < 0.8 else rng.choice(looking)


def facts(value: Any) -> Any:
    """Return what can be compared of a result. Of an image, what it says without its pixels."""
    if isinstance(value, Image.Image):
        fields = ("mode", "size", "info", "format", "width", "readonly", "filename", "tile", "decoderconfig", "is_animated")
        found = {name: getattr(value, name, "absent") for name in fields}
        found["palette"] = value.palette and bytes(value.palette.palette)
        file = getattr(value, "fp", "absent")
        exif = attempt(lambda: dict(value.getexif()))[1]
        return value.__class__, repr(value).split(" at ")[0], found, file is None, value.getbands(), exif
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.strides, value.flags.writeable, value.tobytes()
    if hasattr(value, "numpy"):
        return value.dtype, value.stride(), value.numpy().tobytes()
    return value


def attempt(call: Callable[[], Any]) -> tuple[Any, Any]:
    """Call, and return the result with what can be compared of it. An exception is a result."""
    try:
        result = call()
    except Exception as error:
        return None, (type(error), _text(error))
    return result, facts(result)


def _text(error: Exception) -> str:
    return str(error).split(" at 0x")[0]


def opened(source: str, data: bytes, path: Path) -> tuple[Any, Any]:
    """Return a file to open, and the function that tells whether and where it stands."""
    if source == "path":
        return str(path), lambda: None
    file: Any = io.BytesIO(data) if source == "bytes" else path.open("rb")
    return file, lambda: file.closed or file.tell()


def _close(file: Any) -> None:
    """Close a file of this test: what only the garbage collector closes is a warning of Python at some later time."""
    if not isinstance(file, str):
        file.close()


def compare_chain(rng: random.Random, data: bytes, path: Path) -> str | None:
    """Apply a random chain to a lazy and to an ordinary image of a file. Return how they differ, or None."""
    seed, source = rng.randrange(1 << 60), rng.choice(["path", "file", "bytes"])
    file, position = opened(source, data, path)
    plain, told = _run_chain(random.Random(seed), file, position)
    _close(file)
    file, position = opened(source, data, path)
    with lazy_images():
        ours, _ = _run_chain(random.Random(seed), file, position)
    _close(file)
    for step, (mine, other) in enumerate(zip(ours, plain, strict=True)):
        if mine != other:
            return f"{source}, step {step} of {told}:\n  lazy     {str(mine)[:600]}\n  ordinary {str(other)[:600]}"
    return None


def _run_chain(rng: random.Random, file: Any, position: Callable[[], Any]) -> tuple[list[Any], list[str]]:
    """Return what each step of the chain gave, and the pixels of all its images at the end, with the names of the steps."""
    image, first = attempt(lambda: Image.open(file))
    found, names, images = [first if image is not None else first[0]], ["open"], [image]
    for _ in range(rng.randint(1, 6) if image is not None else 0):
        name, operation = _draw(rng, (max(1, image.width), max(1, image.height)))
        names.append(name)
        result, outcome = attempt(lambda operation=operation, image=image: operation(image))  # type: ignore[misc]
        seen = attempt(lambda image=image: facts(image))[1] if rng.random() < 0.7 else None  # type: ignore[misc]
        found.append((outcome, seen, position()))
        if isinstance(result, Image.Image):
            images.append(result)
            image = result
    rng.shuffle(images)
    for one in images:
        if one is not None:
            _, outcome = attempt(one.tobytes)
            found.append((outcome, attempt(lambda one=one: facts(one))[1], sorted(vars(one)), type(one)))  # type: ignore[misc]
            names.append("pixels")
    return found, names
