"""Writes resize.txt, warp.txt and colour.txt, the results of Pillow that the Rust tests must reproduce bit for bit.

Run: python crates/headrace-core/tests/golden/make_golden.py   (needs Pillow and numpy)
Each line holds the request and the FNV-1a hash of the resulting bytes.
The source images are computed by a formula that both sides know.
"""

import random
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def pattern(width: int, height: int, kind: int) -> np.ndarray:
    """A test image (height, width, 3) uint8: kind 0 noise, 1 smooth with a little noise, 2 black and white noise."""
    index = np.arange(width * height * 3, dtype=np.uint32).reshape(height, width, 3)
    mixed = (index + np.uint32(1)) * np.uint32(2654435761)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(2246822519)
    mixed ^= mixed >> np.uint32(13)
    if kind == 0:
        return (mixed >> np.uint32(8)).astype(np.uint8)
    if kind == 1:
        y, x, channel = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
        return ((x * 5 + y * 3 + channel * 40) % 240 + (mixed >> np.uint32(28)).astype(int)).astype(np.uint8)
    return np.where(mixed >> np.uint32(31) == 1, 255, 0).astype(np.uint8)


def fnv1a(data: bytes) -> int:
    """64-bit FNV-1a hash."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def resize_cases() -> list[str]:
    """One line per request: size, kind, box, grid, window, filter, flips, hash."""
    rng = random.Random(20)
    sides = [1, 2, 3, 5, 8, 17, 31, 64, 100, 150]
    lines = []
    for case in range(240):
        width, height, kind = rng.choice(sides), rng.choice(sides), case % 3
        if case % 24 == 0:
            width = 2000
        box_w, box_h = rng.randint(1, width), rng.randint(1, height)
        x, y = rng.randint(0, width - box_w), rng.randint(0, height - box_h)
        grid_w = rng.choice([1, 2, 7, 33, 40, box_w, rng.randint(1, 90)])
        grid_h = rng.choice([1, 2, 7, 33, 40, box_h, rng.randint(1, 90)])
        window = (0, 0, grid_w, grid_h)
        if case % 2:
            window_w, window_h = rng.randint(1, grid_w), rng.randint(1, grid_h)
            window = (rng.randint(0, grid_w - window_w), rng.randint(0, grid_h - window_h), window_w, window_h)
        name = list(FILTERS)[case % 6]
        flip_x, flip_y = rng.randrange(2), rng.randrange(2)
        image = Image.fromarray(pattern(width, height, kind)).crop((x, y, x + box_w, y + box_h))
        out = np.asarray(image.resize((grid_w, grid_h), FILTERS[name]))
        out = out[window[1] : window[1] + window[3], window[0] : window[0] + window[2]]
        out = out[:: -1 if flip_y else 1, :: -1 if flip_x else 1]
        numbers = [width, height, kind, x, y, box_w, box_h, grid_w, grid_h, *window, name, flip_x, flip_y]
        lines.append(" ".join(map(str, numbers)) + f" {fnv1a(out.tobytes()):016x}")
    return lines


def warp_cases() -> list[str]:
    """One line per request: size, kind, grid, output size, interpolation, rotation in degrees or "-", the matrix, hash."""
    rng = random.Random(21)
    fill = (10, 200, 77)
    lines = []
    filters = (Image.Resampling.BILINEAR, Image.Resampling.NEAREST, Image.Resampling.BICUBIC)
    for case in range(150):
        width, height, kind = rng.choice([1, 2, 9, 40, 90]), rng.choice([1, 3, 40, 77]), case % 3
        grid = (width, height) if case % 2 else (rng.randint(1, 80), rng.randint(1, 80))
        image = Image.fromarray(pattern(width, height, kind)).resize(grid, Image.Resampling.BILINEAR)
        interpolation = rng.randrange(2) if case < 90 else 2
        filtering = filters[interpolation]
        size, degrees, matrix = grid, "-", [0.0] * 6
        if case % 3 == 0:
            angle = rng.choice([45.0, 30.0, 0.0, 180.0, rng.uniform(-360, 360)])
            degrees, out = repr(angle), image.rotate(angle, filtering, fillcolor=fill)
        else:
            straight = rng.randrange(4) == 0
            size = (rng.randint(1, 60), rng.randint(1, 60))
            matrix = [rng.uniform(-2, 2), rng.uniform(-1, 1), rng.uniform(-9, 40)]
            matrix += [rng.uniform(-1, 1), rng.uniform(-2, 2), rng.uniform(-9, 40)]
            if straight:
                matrix[1] = matrix[3] = 0.0
            if case % 11 == 4 and case >= 90:  # along one axis, as timm shears
                matrix = [1.0, rng.uniform(-0.5, 0.5), 0.0, 0.0, 1.0, 0.0]
            if case % 9 == 1:
                matrix = [1.0, 0.0, float(rng.randint(-9, 9)), 0.0, 1.0, float(rng.randint(-9, 9))]
            out = image.transform(size, Image.Transform.AFFINE, matrix, filtering, fillcolor=fill)
        numbers = [width, height, kind, *grid, *size, interpolation, degrees, *map(repr, matrix)]
        lines.append(" ".join(map(str, numbers)) + f" {fnv1a(out.tobytes()):016x}")
    return lines


def shift_hue(image: Image.Image, share: float) -> Image.Image:
    """torchvision's adjust_hue on a Pillow image: the 8-bit hue plus share * 255, modulo 256."""
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.int32(share * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


COLOUR_OPS = {
    "brightness": lambda image, value: ImageEnhance.Brightness(image).enhance(value),
    "contrast": lambda image, value: ImageEnhance.Contrast(image).enhance(value),
    "saturation": lambda image, value: ImageEnhance.Color(image).enhance(value),
    "sharpness": lambda image, value: ImageEnhance.Sharpness(image).enhance(value),
    "hue": shift_hue,
    "grayscale": lambda image, _: image.convert("L").convert("RGB"),
    "invert": lambda image, _: ImageOps.invert(image),
    "posterize": lambda image, value: ImageOps.posterize(image, int(value)),
    "solarize": lambda image, value: ImageOps.solarize(image, int(value)),
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "dilate": lambda image, _: image.filter(ImageFilter.MaxFilter(3)),
    "erode": lambda image, _: image.filter(ImageFilter.MinFilter(3)),
}


def colour_cases() -> list[str]:
    """One line per request: size, kind, operation, its value, hash."""
    rng = random.Random(22)
    lines = []
    for case in range(130):
        width, height, kind = rng.choice([1, 2, 3, 10, 41, 90]), rng.choice([1, 3, 20, 77]), case % 3
        name = list(COLOUR_OPS)[case % len(COLOUR_OPS)]
        value = rng.choice([0.0, 0.5, 1.0, 1.9, rng.uniform(0, 2.5)])
        if name == "hue":
            value = rng.choice([-0.5, 0.5, 0.0, rng.uniform(-0.5, 0.5)])
        if name == "posterize":
            value = float(rng.randint(1, 8))
        if name == "solarize":
            value = float(rng.choice([0, 128, 256, rng.randint(0, 255)]))
        out = COLOUR_OPS[name](Image.fromarray(pattern(width, height, kind)), value)
        lines.append(f"{width} {height} {kind} {name} {value!r} {fnv1a(out.tobytes()):016x}")
    for case in range(40):
        width, height, kind = rng.choice([1, 2, 3, 10, 41, 90]), rng.choice([1, 3, 20, 77]), case % 3
        radius = rng.choice([0.0, 0.1, 1.0, 2.0, rng.uniform(0.1, 2), rng.uniform(0, 12), 60.0])
        out = Image.fromarray(pattern(width, height, kind)).filter(ImageFilter.GaussianBlur(radius))
        lines.append(f"{width} {height} {kind} blur {radius!r} {fnv1a(out.tobytes()):016x}")
    return lines


def write(name: str, header: str, lines: list[str]) -> None:
    """Writes one golden file beside this script."""
    text = f"# Pillow {PIL.__version__}: {header}\n" + "\n".join(lines) + "\n"
    (Path(__file__).parent / name).write_text(text)


if __name__ == "__main__":
    write("resize.txt", "width height kind box(4) grid(2) window(4) filter flip_x flip_y fnv1a64", resize_cases())
    write("warp.txt", "width height kind grid(2) size(2) interpolation degrees matrix(6) fnv1a64", warp_cases())
    write("colour.txt", "width height kind operation value fnv1a64", colour_cases())
