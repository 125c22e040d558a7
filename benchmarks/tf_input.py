"""The input of a TensorFlow script: its tf.data pipeline against `Loader.to_tf_dataset`, input alone.

    make bench-tf-input ARGS="[--images FOLDER] [--limit N] [--copies N] [--passes N] [--rounds N]"

Each cell is a process of its own, and the cells follow each other in every round. The job: random order, a random crop of 8
to 100 % of the area resized to 224, a random flip, batches of 64, uint8. A loop in eager mode takes the batches and does
nothing with them. The tf.data pipelines map in parallel and prefetch with AUTOTUNE for both, and decode only the crop
(`decode_and_crop_jpeg`), as TensorFlow's own guides advise. The first pass over the files counts apart: headrace then has no
index of a JPEG.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
from sample import photographs

SIZE, BATCH = 224, 64
PACKAGES = ["headrace", "tensorflow-cpu", "numpy"]
CELLS = {
    "tf.data": "tf.data, as TensorFlow resizes by default",
    "tf.data, antialias": "tf.data, `antialias=True`, as Pillow resizes",
    "tf.data, whole decode": "tf.data, `decode_jpeg`, then the crop",
    "headrace": "`Loader.to_tf_dataset`",
    "headrace, Keras": "`Loader.to_keras_dataset`",
}


def main() -> None:
    """Measure, print the page, and write it with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", metavar="FOLDER")
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--copies", type=int, default=8, help="of each photograph")
    parser.add_argument("--passes", type=int, default=4, help="over the files, in each process")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    parser.add_argument("--cell", choices=list(CELLS), help=argparse.SUPPRESS)
    parser.add_argument("--root", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        print(json.dumps(passes(given.cell, Path(given.root), given.passes)))
        return
    found: dict[str, list[list[dict[str, float]]]] = {cell: [] for cell in CELLS}
    with tempfile.TemporaryDirectory() as folder:
        count = fill(Path(folder) / "data", photographs(given.images, given.limit), given.copies)
        for _ in range(given.rounds):
            for cell, rounds in found.items():
                rounds.append(measured(cell, Path(folder) / "data", given.passes))
                print(cell, rounds[-1], file=sys.stderr, flush=True)
    settings = {"batch_size": BATCH, "size": SIZE, "files": count, "passes": given.passes, "rounds": given.rounds}
    rows = [summary(cell, rounds) for cell, rounds in found.items()]
    record.publish(record.document("tf_input", PACKAGES, settings=settings, rows=rows), save=given.write)


def fill(root: Path, files: list[Path], copies: int) -> int:
    """Make an image folder of two classes with copies of each file. Return the number of files."""
    for number, file in enumerate(files):
        folder = root / f"class_{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            shutil.copyfile(file, folder / f"{number:04d}-{copy}.jpg")
    return len(files) * copies


def measured(cell: str, root: Path, count: int) -> list[dict[str, float]]:
    """Return the passes of one process. Its headrace finds no index of an earlier one."""
    command = [sys.executable, __file__, "--cell", cell, "--root", str(root), "--passes", str(count)]
    environment = os.environ | {"HEADRACE_INDEX_CACHE": "off", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{cell}: {done.stderr[-2000:]}")
    result: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return result


def passes(cell: str, root: Path, count: int) -> list[dict[str, float]]:
    """Take all batches `count` times. Return images per second, and milliseconds of CPU time an image, of each pass."""
    import tensorflow as tf

    make: Callable[[Path, str], Any] = with_headrace if cell.startswith("headrace") else with_tf_data
    batches = make(root, cell)
    list(tf.data.Dataset.range(4).batch(2))  # TensorFlow's own beginning is not measured
    found = []
    for _ in range(count):
        begun_s, used_s, images = time.perf_counter(), cpu_s(), 0
        for _, labels in batches:
            images += len(labels)
        took_s = time.perf_counter() - begun_s
        found.append({"img_s": images / took_s, "cpu_ms": 1000 * (cpu_s() - used_s) / images})
    return found


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def with_headrace(root: Path, cell: str) -> Any:
    import headrace as hr

    transform = hr.transforms.Compose([hr.transforms.RandomResizedCrop(SIZE), hr.transforms.RandomHorizontalFlip()])
    loader = hr.Loader(root, BATCH, transform, output="numpy", seed=0)
    return loader.to_keras_dataset() if cell.endswith("Keras") else loader.to_tf_dataset()


def with_tf_data(root: Path, cell: str) -> Any:
    import tensorflow as tf

    files = sorted(root.rglob("*.jpg"))
    labels = [int(file.parent.name[-1]) for file in files]

    def load(path: Any, label: Any) -> Any:
        encoded = tf.io.read_file(path)
        whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded),
            whole,
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        if cell == "tf.data, whole decode":
            image = tf.slice(tf.io.decode_jpeg(encoded, channels=3), begin, [size[0], size[1], 3])
        else:
            image = tf.image.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], size[:2]], 0), channels=3)
        image = tf.image.resize(image, [SIZE, SIZE], antialias=cell == "tf.data, antialias")
        return tf.cast(tf.round(tf.image.random_flip_left_right(image)), tf.uint8), label

    data = tf.data.Dataset.from_tensor_slices(([str(file) for file in files], labels)).shuffle(len(files))
    data = data.map(load, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def summary(cell: str, rounds: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Return the row of the page: the first pass, and the median of the later ones, over all rounds."""

    def later(key: str) -> list[float]:
        return [statistics.median(one[key] for one in passes[1:]) for passes in rounds]

    return {
        "input": CELLS[cell],
        "ours": cell.startswith("headrace"),
        "first_img_s": record.spread([passes[0]["img_s"] for passes in rounds]),
        "later_img_s": record.spread(later("img_s")),
        "first_cpu_ms": record.spread([passes[0]["cpu_ms"] for passes in rounds]),
        "later_cpu_ms": record.spread(later("cpu_ms")),
    }


if __name__ == "__main__":
    main()
