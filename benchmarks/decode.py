"""One core, one thread: JPEG bytes -> random crop -> 224×224 -> flip, headrace and peers, interleaved in one process.

    python benchmarks/decode.py [--images FOLDER] [--limit N] [--rounds N] [--write]

Each round runs every row over the same images, boxes and flips, in a new random order. A row shows the median over rounds
of images per second of CPU time (user + system of the process), with the least and the greatest. Ratios are taken within a
round, against libjpeg-turbo's full decode alone, and the median is shown. Peers that are not installed are left out
(benchmarks/peers.txt). Everything is in memory; storage is not measured.

Two threads are compared with one by wall time, in chunks of 50 images, one after the other in every round. The least time
of each chunk counts, since other work on the machine only adds time.

`decode_whole.py` measures the decoding of whole images, without a crop.

`crates/headrace-core/examples/decode_profile.rs` measures where the time goes. cargo builds it with stage timers; without
cargo that part is left out.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace
import machine_facts
import numpy as np
import record
from decode_whole import measure_whole
from headrace import _native
from PIL import Image
from sample import Box, photographs, random_resized_crops, shrunk

SIZE = 224
PACKAGES = [
    "headrace",
    "pillow",
    "torch",
    "torchvision",
    "opencv-python-headless",
    "simplejpeg",
    "nvidia-dali-cuda130",
    "numpy",
]
BASELINE = "libjpeg-turbo, full decode alone"

OUT = np.zeros((50, SIZE, SIZE, 3), dtype=np.uint8)
INDEXES: list[_native.Index] = []  # of the original images; made in the warm-up round

Run = Callable[[list[bytes], list[Box], list[bool]], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One way to do the job. `does` names the parts that it does; `images` names the set of files."""

    name: str
    does: str
    run: Run
    images: str = "orig"


def turbo_full(images: list[bytes], boxes: list[Box], flips: list[bool]) -> None:
    for image in images:
        _native.reference_decode(image, keep=False)


def turbo_partial(images: list[bytes], boxes: list[Box], flips: list[bool]) -> None:
    for image, box in zip(images, boxes, strict=True):
        _native.reference_decode(image, box, keep=False)


def ours(images: list[bytes], boxes: list[Box], flips: list[bool], indexes: list[_native.Index] | None = None) -> None:
    """Decode in batches of 50 into the same memory, as a loader's ring does."""
    for start in range(0, len(images), 50):
        part = slice(start, start + 50)
        index = None if indexes is None else indexes[part]
        if headrace.decode_into(images[part], OUT, boxes=boxes[part], flips=flips[part], threads=1, index=index).any():
            raise SystemExit("an image could not be decoded")


def ours_indexed(images: list[bytes], boxes: list[Box], flips: list[bool]) -> None:
    if not INDEXES:
        INDEXES.extend(headrace.checkpoint_index(image) for image in images)
    ours(images, boxes, flips, INDEXES)


def pillow(images: list[bytes], boxes: list[Box], flips: list[bool]) -> object:
    results = []
    for image, (x, y, w, h), flip in zip(images, boxes, flips, strict=True):
        picture = Image.open(io.BytesIO(image)).convert("RGB").crop((x, y, x + w, y + h))
        picture = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        results.append(np.asarray(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else picture))
    return results


def torchvision_rows() -> list[Row]:
    import torch
    import torchvision.transforms.v2.functional as functional
    from torchvision.io import ImageReadMode, decode_jpeg

    torch.set_num_threads(1)

    def run(images: list[bytes], boxes: list[Box], flips: list[bool]) -> object:
        results = []
        for image, (x, y, w, h), flip in zip(images, boxes, flips, strict=True):
            pixels = decode_jpeg(torch.frombuffer(bytearray(image), dtype=torch.uint8), mode=ImageReadMode.RGB)
            pixels = functional.resized_crop(pixels, y, x, h, w, [SIZE, SIZE], antialias=True)
            results.append(pixels.flip(-1) if flip else pixels)
        return results

    return [Row("torchvision.io + v2 (tensor)", "decode, crop, resize, flip", run)]


def opencv_rows() -> list[Row]:
    import cv2

    cv2.setNumThreads(1)

    def run(images: list[bytes], boxes: list[Box], flips: list[bool]) -> object:
        results = []
        for image, (x, y, w, h), flip in zip(images, boxes, flips, strict=True):
            pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)
            pixels = cv2.resize(pixels[y : y + h, x : x + w], (SIZE, SIZE), interpolation=cv2.INTER_AREA)
            results.append(cv2.flip(pixels, 1) if flip else pixels)
        return results

    return [Row("OpenCV (INTER_AREA)", "decode, crop, resize (not Pillow's filter), flip", run)]


def simplejpeg_rows() -> list[Row]:
    import cv2
    import simplejpeg

    def run(images: list[bytes], boxes: list[Box], flips: list[bool]) -> object:
        results = []
        for image, (x, y, w, h), flip in zip(images, boxes, flips, strict=True):
            pixels = simplejpeg.decode_jpeg(image, "RGB")
            pixels = cv2.resize(pixels[y : y + h, x : x + w], (SIZE, SIZE), interpolation=cv2.INTER_AREA)
            results.append(cv2.flip(pixels, 1) if flip else pixels)
        return results

    return [Row("simplejpeg + OpenCV", "decode, crop, resize (not Pillow's filter), flip", run)]


def dali_rows() -> list[Row]:
    from nvidia.dali import fn, pipeline_def, types

    per_batch = 50

    @pipeline_def(batch_size=per_batch, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def pipeline():  # type: ignore[no-untyped-def]
        encoded, anchor, shape, flip = (fn.external_source(name=name) for name in ("jpeg", "anchor", "shape", "flip"))
        crop = fn.decoders.image_slice(encoded, anchor, shape, axis_names="WH", normalized_anchor=False, normalized_shape=False)
        small = fn.resize(crop, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(small, horizontal=flip)

    made = pipeline()
    made.build()

    def run(images: list[bytes], boxes: list[Box], flips: list[bool]) -> object:
        results = []
        for start in range(0, len(images), per_batch):
            part = slice(start, start + per_batch)
            made.feed_input("jpeg", [np.frombuffer(image, np.uint8) for image in images[part]])
            made.feed_input("anchor", [np.array(box[:2], np.float32) for box in boxes[part]])
            made.feed_input("shape", [np.array(box[2:], np.float32) for box in boxes[part]])
            made.feed_input("flip", [np.array(int(flip), np.int32) for flip in flips[part]])
            results.append(made.run()[0].as_array())
        return results

    return [Row("DALI CPU (image_slice)", "decode of the crop, resize, flip", run)]


def all_rows() -> list[Row]:
    rows = [
        Row(BASELINE, "decode", turbo_full),
        Row("libjpeg-turbo, partial decode alone", "decode of the crop", turbo_partial),
        Row("Pillow", "decode, crop, resize, flip", pillow),
    ]
    for make in (torchvision_rows, opencv_rows, simplejpeg_rows, dali_rows):
        try:
            rows += make()
        except ImportError as error:
            print(f"left out: {make.__name__.removesuffix('_rows')} ({error})", file=sys.stderr)
    return [
        *rows,
        Row("headrace, originals, first sight", "decode of the crop, resize, flip", ours),
        Row("headrace, originals, with index", "decode of the crop, resize, flip", ours_indexed),
        Row("headrace, restart-marked", "decode of the crop, resize, flip", ours, "marked"),
        Row("headrace, ≤500 px quality 90", "decode of the crop, resize, flip", ours, "small"),
        Row("headrace, ≤500 px quality 90, restart-marked", "decode of the crop, resize, flip", ours, "small marked"),
    ]


def prepare(files: list[Path]) -> dict[str, tuple[list[bytes], list[Box], list[bool]]]:
    originals = [path.read_bytes() for path in files]
    small = [shrunk(image) for image in originals]
    flips = [bool(number % 2) for number in range(len(originals))]
    boxes = {
        name: random_resized_crops([Image.open(io.BytesIO(image)).size for image in images], seed=1)
        for name, images in (("orig", originals), ("small", small))
    }
    return {
        "orig": (originals, boxes["orig"], flips),
        "marked": ([headrace.restart_markers(image) for image in originals], boxes["orig"], flips),
        "small": (small, boxes["small"], flips),
        "small marked": ([headrace.restart_markers(image) for image in small], boxes["small"], flips),
    }


def measure(rows: list[Row], data: dict[str, tuple[list[bytes], list[Box], list[bool]]], rounds: int) -> dict[str, list[float]]:
    """Return the images per CPU second of every row in every round."""
    rates: dict[str, list[float]] = {row.name: [] for row in rows}
    order = random.Random(0)
    for number in range(rounds + 1):  # the first round warms up
        for row in order.sample(rows, len(rows)):
            images, boxes, flips = data[row.images]
            began = time.process_time()
            row.run(images, boxes, flips)
            if number:
                rates[row.name].append(len(images) / (time.process_time() - began))
        print(f"round {number} of {rounds}", file=sys.stderr)
    return rates


def summarised(rows: list[Row], rates: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return the rows of the page. Ratios are medians over the rounds of the ratios within a round."""
    return [
        {
            "way": row.name,
            "does": row.does,
            "ours": row.name.startswith("headrace"),
            "img_s": record.spread(rates[row.name]),
            "times_full_decode": statistics.median(a / b for a, b in zip(rates[row.name], rates[BASELINE], strict=True)),
        }
        for row in rows
    ]


def two_threads(images: list[bytes], boxes: list[Box], flips: list[bool], rounds: int) -> dict[str, Any] | None:
    """Return two threads beside one by wall time: the sum over chunks of the least time of each. None with only one core."""
    usable = len(os.sched_getaffinity(0))
    if usable < 2:
        return None
    chunks = [slice(start, start + 50) for start in range(0, len(images), 50)]
    least = {threads: [float("inf")] * len(chunks) for threads in (1, 2)}
    for _ in range(rounds):
        for number, part in enumerate(chunks):
            for threads, times in least.items():
                began = time.perf_counter()
                headrace.decode_into(images[part], OUT, boxes=boxes[part], flips=flips[part], threads=threads)
                times[number] = min(times[number], time.perf_counter() - began)
    one, two = (len(images) / sum(times) for times in least.values())
    return {"rounds": rounds, "usable_cores": usable, "one_img_s": one, "two_img_s": two, "times": two / one}


def profiled(files: list[bytes], marked: list[bytes], boxes: list[Box], rounds: int) -> dict[str, Any] | None:
    """Return the document that `decode_profile` prints for these images; None without cargo."""
    if not shutil.which("cargo"):
        print("left out: where the time goes (no cargo)", file=sys.stderr)
        return None
    command = ["cargo", "run", "--release", "--quiet", "-p", "headrace-core", "--features", "profile", "--example"]
    with tempfile.TemporaryDirectory() as folder:
        for number, (file, copy, box) in enumerate(zip(files, marked, boxes, strict=True)):
            (Path(folder) / f"{number}.jpg").write_bytes(file)
            (Path(folder) / f"{number}.marked.jpg").write_bytes(copy)
            (Path(folder) / f"{number}.box").write_text(" ".join(map(str, box)), encoding="ascii")
        run = subprocess.run(
            [*command, "decode_profile", "--", folder],
            cwd=machine_facts.REPOSITORY,
            env={**os.environ, "ROUNDS": str(rounds)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return dict(json.loads(run.stdout))


def profile_summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return what `decode_profile` measured in the shape of the page: one row for each stage."""
    ways = found["ways"]
    wholes = [sum(stage["us"] for stage in way["stages"]) for way in ways]
    stages = []
    for row in zip(*(way["stages"] for way in ways), strict=True):
        cells = [
            {
                "us": stage["us"],
                "share": stage["us"] / whole,
                "times_floor": stage["us"] / stage["floor_us"] if stage["floor_us"] else None,
            }
            for stage, whole in zip(row, wholes, strict=True)
        ]
        stages.append({"stage": row[0]["stage"], "ways": cells, "floor_us": row[-1]["floor_us"] or None})
    facts = {name: value for name, value in found.items() if name != "ways"}
    return {**facts, "ways": [way["way"] for way in ways], "stages": stages, "whole_us": wholes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample)")
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    args = parser.parse_args()

    files = photographs(args.images, args.limit // 50 * 50)
    files = files[: len(files) // 50 * 50]
    data = prepare(files)
    rows = all_rows()
    rates = measure(rows, data, args.rounds)
    mean_kb = statistics.mean(len(image) for image in data["orig"][0]) / 1000
    some = slice(0, 100)
    profile = profiled(data["orig"][0][some], data["marked"][0][some], data["orig"][1][some], args.rounds)
    found = record.document(
        "decode",
        PACKAGES,
        settings={"images": len(files), "mean_kb": round(mean_kb), "rounds": args.rounds},
        rows=summarised(rows, rates),
        whole_images=measure_whole(data["orig"][0], args.rounds),
        two_threads=two_threads(*data["marked"], args.rounds),
        profile=profile_summary(profile) if profile else None,
    )
    record.publish(found, save=args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
