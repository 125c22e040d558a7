"""Compare the pixels of other libraries with headrace's, and headrace's with Pillow's:
the table of docs/reference/exactness.md.

    python benchmarks/exactness.py [--images FOLDER] [--limit N] [--crops N] [--write]

Every library decodes each photograph, cuts `--crops` random boxes and resizes them to 224×224. Each result is compared with
headrace's value by value. Rows that begin with "Decoded" compare the whole decoded image instead. Augmentation is compared
on one draw for each photograph.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import numpy.typing as npt
import record
from headrace import _native, transforms
from headrace.transforms.compile import Fuse
from PIL import Image
from sample import Box, photographs, random_resized_crops

SIZE = 224
PACKAGES = ["headrace", "pillow", "torch", "torchvision", "opencv-python-headless", "nvidia-dali-cuda130", "numpy"]
Pixels = npt.NDArray[np.uint8]
Crop = Callable[[bytes, Box], Pixels]


def ours(image: bytes, box: Box, resample: Any = "bilinear") -> Pixels:
    out = np.empty((1, SIZE, SIZE, 3), dtype=np.uint8)
    if headrace.decode_into([image], out, boxes=[box], resample=resample)[0]:
        raise SystemExit("an image could not be decoded")
    return out[0]


def pillow(filter_name: str) -> Crop:
    def crop(image: bytes, box: Box) -> Pixels:
        x, y, w, h = box
        picture = Image.open(io.BytesIO(image)).convert("RGB").crop((x, y, x + w, y + h))
        return np.asarray(picture.resize((SIZE, SIZE), Image.Resampling[filter_name.upper()]))

    return crop


def torchvision_crop() -> Crop:
    import torch
    import torchvision.transforms.v2.functional as functional
    from torchvision.io import ImageReadMode, decode_jpeg

    def crop(image: bytes, box: Box) -> Pixels:
        x, y, w, h = box
        pixels = decode_jpeg(torch.frombuffer(bytearray(image), dtype=torch.uint8), mode=ImageReadMode.RGB)
        return functional.resized_crop(pixels, y, x, h, w, [SIZE, SIZE], antialias=True).permute(1, 2, 0).numpy()

    return crop


def opencv(interpolation: str) -> Crop:
    import cv2

    def crop(image: bytes, box: Box) -> Pixels:
        x, y, w, h = box
        pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)
        return cv2.resize(pixels[y : y + h, x : x + w], (SIZE, SIZE), interpolation=getattr(cv2, interpolation))

    return crop


def dali_crop() -> Crop:
    from nvidia.dali import fn, pipeline_def, types

    waiting: list[tuple[Pixels, npt.NDArray[np.float32], npt.NDArray[np.float32]]] = []

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def pipeline():  # type: ignore[no-untyped-def]
        encoded, anchor, shape = fn.external_source(source=lambda: [[part] for part in waiting.pop()], num_outputs=3)
        cut = fn.decoders.image_slice(encoded, anchor, shape, axis_names="WH", normalized_anchor=False, normalized_shape=False)
        return fn.resize(cut, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)

    made = pipeline()
    made.build()

    def crop(image: bytes, box: Box) -> Pixels:
        x, y, w, h = box
        waiting.append((np.frombuffer(image, np.uint8), np.array([x, y], np.float32), np.array([w, h], np.float32)))
        return np.array(made.run()[0].as_array()[0])

    return crop


def others() -> dict[str, Callable[[], Crop]]:
    return {
        "torchvision.io decode, v2 resized_crop on tensors (antialias=True)": torchvision_crop,
        "OpenCV, INTER_AREA": lambda: opencv("INTER_AREA"),
        "OpenCV, INTER_LINEAR (no antialiasing)": lambda: opencv("INTER_LINEAR"),
        "DALI CPU, image_slice + linear resize, antialias": dali_crop,
    }


class Difference:
    """The differences between two sets of pixels, value by value."""

    def __init__(self) -> None:
        self.values = self.differing = self.total = self.greatest = 0

    def add(self, a: Pixels, b: Pixels) -> None:
        gap = np.abs(a.astype(np.int16) - b.astype(np.int16))
        self.values += gap.size
        self.differing += int(np.count_nonzero(gap))
        self.total += int(gap.sum())
        self.greatest = max(self.greatest, int(gap.max()))

    def row(self, name: str) -> dict[str, Any]:
        """Return the row of the page."""
        mean = self.total / self.values
        return {"compared": name, "differing": self.differing, "values": self.values, "greatest": self.greatest, "mean": mean}


def reduced(images: list[bytes], boxes: list[Box], size: int = 96) -> Difference:
    """Compare exact decoding with dct_scale="auto", at a target so small that most crops are decoded at a reduced size."""
    found = Difference()
    exact, scaled = np.empty((2, len(images), size, size, 3), dtype=np.uint8)
    headrace.decode_into(images, exact, boxes=boxes)
    headrace.decode_into(images, scaled, boxes=boxes, dct_scale="auto")
    found.add(exact, scaled)
    return found


def pipelines() -> dict[str, transforms.Compose]:
    """Return the augmentations whose draws are replayed through torchvision."""

    def load(n: int, interpolation: str) -> transforms.Compose:
        turn = transforms.RandomRotation(5, interpolation=interpolation)
        step = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.RandomVerticalFlip(), turn])
        return transforms.Compose([transforms.Repeat(step, n), transforms.RandomResizedCrop(SIZE)])

    crop = transforms.RandomResizedCrop(SIZE)
    return {
        "flips, rotation by 5° (bilinear), crop": load(1, "bilinear"),
        "4 × flips, rotation by 5° (bilinear), crop": load(4, "bilinear"),
        "12 × flips, rotation by 5° (bilinear), crop": load(12, "bilinear"),
        "12 × flips, rotation by 5° (nearest), crop": load(12, "nearest"),
        "crop, rotation by 30° (bilinear)": transforms.Compose([crop, transforms.RandomRotation(30, interpolation="bilinear")]),
        "crop, RandAugment(2)": transforms.Compose([crop, transforms.RandAugment()]),
        "crop, RandAugment(4)": transforms.Compose([crop, transforms.RandAugment(4)]),
    }


def augmented(files: list[Path]) -> list[dict[str, Any]]:
    """Compare fuse="off" with torchvision on Pillow images with the same draws, and fuse="geometry" with fuse="off"."""
    import torchvision.transforms.v2.functional as functional

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "one").mkdir()
        copies = [Path(shutil.copy(file, Path(folder) / "one" / f"{at:05}.jpg")) for at, file in enumerate(files)]
        for name, transform in pipelines().items():
            exact, fused = Difference(), Difference()
            batches = []
            for fuse in FUSES:
                with headrace.Loader(folder, len(files), transform, shuffle=False, output="numpy", fuse=fuse) as loader:
                    batches.append(next(iter(loader))[0].copy())
                    program = loader.pipeline.program
            for at, (off, one) in enumerate(zip(*batches, strict=True)):
                picture: Any = Image.open(copies[at]).convert("RGB")
                for operation, arguments in program.parameters(picture.width, picture.height, 0, 0, at):
                    picture = getattr(functional, operation)(picture, **arguments)
                exact.add(off, np.asarray(picture))
                fused.add(one, off)
            rows += [
                exact.row(f'torchvision on Pillow images: {name} (against ours, fuse="off")'),
                fused.row(f'headrace fused: {name} (against fuse="off")'),
            ]
    return rows


FUSES: tuple[Fuse, Fuse] = ("off", "geometry")


def compare(files: list[Path], crops: int) -> list[dict[str, Any]]:
    images = [path.read_bytes() for path in files]
    sizes = [Image.open(io.BytesIO(image)).size for image in images]
    boxes = [random_resized_crops(sizes, seed) for seed in range(crops)]

    def difference(crop: Crop, resample: str = "bilinear") -> Difference:
        found = Difference()
        for round_boxes in boxes:
            for image, box in zip(images, round_boxes, strict=True):
                found.add(ours(image, box, resample), crop(image, box))
        return found

    decoded, marked = Difference(), Difference()
    for image, size in zip(images, sizes, strict=True):
        width, height = size
        whole = np.frombuffer(_native.reference_decode(image), np.uint8).reshape(height, width, 3)
        decoded.add(np.asarray(Image.open(io.BytesIO(image)).convert("RGB")), whole)
        marked.add(np.asarray(Image.open(io.BytesIO(headrace.restart_markers(image))).convert("RGB")), whole)
    rows = [
        decoded.row("Decoded: Pillow, whole image, against libjpeg-turbo as vendored here"),
        marked.row("Decoded: Pillow on the file with restart markers, against the original"),
    ]
    rows += [difference(pillow(name), name).row(f"Pillow {name}: crop, resize") for name in ("bilinear", "bicubic", "lanczos")]
    rows.append(reduced(images, boxes[0]).row('headrace with dct_scale="auto", to 96×96 (against exact)'))
    rows += augmented(files)
    for name, make in others().items():
        try:
            rows.append(difference(make()).row(f"{name} (against ours, bilinear)"))
        except ImportError as error:
            print(f"left out: {name} ({error})", file=sys.stderr)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample)")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--crops", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    args = parser.parse_args()
    files = photographs(args.images, args.limit)
    settings = {"photographs": len(files), "crops": args.crops, "size": SIZE}
    record.publish(record.document("exactness", PACKAGES, settings=settings, rows=compare(files, args.crops)), save=args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
