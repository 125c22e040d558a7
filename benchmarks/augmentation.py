"""Augmentation load on one core: n times (two random flips, a rotation by up to 5°), then RandomResizedCrop(224).

    python benchmarks/augmentation.py [--images FOLDER] [--limit N] [--rounds N] [--write]

The same transforms run through torchvision on Pillow images and through `headrace.Loader` with one thread, from JPEG files
to uint8 pixels. headrace runs with fuse="geometry" (one sampling per image) and with fuse="off" (bit for bit what
torchvision computes). Measured is the CPU time of the whole process, with all ways in turn in every round; the page shows
the median and the range. Each round makes a new Loader without stored JPEG indexes, so nothing is known of the images
before. headrace cuts the same crops at each load.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import record
from headrace import transforms as ours
from PIL import Image
from sample import photographs

LOADS = (1, 4, 8, 12)
SIZE = 224
BATCH = 50
PACKAGES = ["headrace", "pillow", "torch", "torchvision", "numpy"]


@dataclass(slots=True)
class Way:
    """One way to load and augment, and its CPU milliseconds per image in each round."""

    name: str
    interpolation: str
    load: int
    run: Callable[[], None]
    ms: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.ms)


def torchvision_way(files: list[Path], interpolation: str, load: int) -> Callable[[], None]:
    from torchvision.transforms import v2

    step = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.RandomRotation(5, interpolation=interpolation)]
    transform = v2.Compose([*(step * load), v2.RandomResizedCrop(SIZE)])

    def run() -> None:
        for file in files:
            np.asarray(transform(Image.open(file).convert("RGB")))

    return run


def our_way(root: Path, images: int, interpolation: str, load: int, fuse: Any) -> Callable[[], None]:
    step = ours.Compose(
        [ours.RandomHorizontalFlip(), ours.RandomVerticalFlip(), ours.RandomRotation(5, interpolation=interpolation)]
    )
    # Draws depend on an operation's place in the pipeline: with as many that do nothing, all loads cut the same crops.
    rest = ours.Repeat(ours.RandomHorizontalFlip(p=0.0), 3 * (max(LOADS) - load))
    transform = ours.Compose([ours.Repeat(step, load), rest, ours.RandomResizedCrop(SIZE)])
    data = headrace.open(root)

    def run() -> None:
        options: dict[str, Any] = {"transform": transform, "threads": 1, "output": "numpy", "drop_last": False, "fuse": fuse}
        with headrace.Loader(data, BATCH, **options) as loader:
            if sum(len(labels) for _, labels in loader) != images:
                raise SystemExit("images were lost")

    return run


def ways(files: list[Path], root: Path) -> list[Way]:
    made = []
    for interpolation in ("nearest", "bilinear"):
        for load in LOADS:
            made += [
                Way("torchvision on Pillow", interpolation, load, torchvision_way(files, interpolation, load)),
                Way("headrace, off", interpolation, load, our_way(root, len(files), interpolation, load, "off")),
                Way("headrace, fused", interpolation, load, our_way(root, len(files), interpolation, load, "geometry")),
            ]
    return made


def measure(made: list[Way], images: int, rounds: int) -> None:
    for way in made:
        way.run()  # imports, page cache
    for number in range(rounds):
        for way in made:
            began = time.process_time()
            way.run()
            way.ms.append((time.process_time() - began) * 1e3 / images)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)


def rows(made: list[Way]) -> list[dict[str, Any]]:
    """Return the rows of the page: one for each interpolation and load."""
    found = {(way.interpolation, way.load, way.name): way for way in made}
    lines = []
    for interpolation in ("nearest", "bilinear"):
        first = found[interpolation, LOADS[0], "headrace, fused"].median
        for load in LOADS:
            pillow, off, fused = (
                found[interpolation, load, name] for name in ("torchvision on Pillow", "headrace, off", "headrace, fused")
            )
            lines.append(
                {
                    "interpolation": interpolation,
                    "load": load,
                    "torchvision_ms": record.spread(pillow.ms),
                    "off_ms": record.spread(off.ms),
                    "off_times": pillow.median / off.median,
                    "fused_ms": record.spread(fused.ms),
                    "fused_times": pillow.median / fused.median,
                    "fused_of_load_1": fused.median / first,
                }
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample)")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    args = parser.parse_args()
    files = photographs(args.images, args.limit)
    os.environ["HEADRACE_INDEX_CACHE"] = "off"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "one").mkdir()
        copies = [Path(shutil.copy(file, root / "one" / f"{number:05}.jpg")) for number, file in enumerate(files)]
        made = ways(copies, root)
        measure(made, len(files), args.rounds)
    settings = {"images": len(files), "rounds": args.rounds, "threads": 1, "size": SIZE}
    record.publish(record.document("augmentation", PACKAGES, settings=settings, rows=rows(made)), save=args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
