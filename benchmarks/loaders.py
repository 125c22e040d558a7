"""Whole loaders side by side: random order, RandomResizedCrop(224), flip, batches of 256, on this machine's cores.

    python benchmarks/loaders.py [--images FOLDER] [--repeats N] [--seconds S] [--only NAME …] [--write]

One process a measurement, loaders interleaved in a new random order in each repeat; medians and spread over the repeats. After
a warm-up of four batches the window runs from one batch's arrival to another's, at least `--seconds` long. The images
are in the page cache, listed many times over, so that no epoch border falls into a window. CPU time is that of the process
and all its descendants. Workers or threads = usable cores for everybody. Loaders that are not installed are left out
(benchmarks/peers.txt).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine_facts
import numpy as np
from headrace import machine
from sample import photographs

BATCH, CLASSES, REPEAT = 256, 10, 200  # 400 photographs, listed 200 times: enough for 16 workers
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CORES = max(1, round(machine.cores().usable))
PACKAGES = ["headrace", "pillow", "torch", "torchvision", "nvidia-dali-cuda130", "webdataset", "spdl", "numpy"]
PAGE = Path(__file__).parent / "results" / "loaders.md"


def torchvision_dataset(root: Path, transform: Any) -> Any:
    from torch.utils.data import ConcatDataset
    from torchvision.datasets import ImageFolder

    return ConcatDataset([ImageFolder(str(root / "folder"), transform)] * REPEAT)


def pytorch(root: Path, floats: bool) -> Iterable[Any]:
    from torch.utils.data import DataLoader
    from torchvision import transforms

    last = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)] if floats else [transforms.PILToTensor()]
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *last]
    data = torchvision_dataset(root, transforms.Compose(steps))
    return DataLoader(data, BATCH, shuffle=True, num_workers=CORES, drop_last=True)


def torchvision_io(root: Path, floats: bool) -> Iterable[Any]:
    import torch
    from torch.utils.data import DataLoader, Dataset
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    steps: list[Any] = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    if floats:
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    transform = v2.Compose(steps)
    files = sorted((root / "folder").rglob("*.jpg")) * REPEAT

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, number: int) -> Any:
            image = decode_image(str(files[number]), mode=ImageReadMode.RGB)
            return transform(image), int(files[number].parent.name[1:])

    return DataLoader(Images(), BATCH, shuffle=True, num_workers=CORES, drop_last=True)


def webdataset(root: Path, floats: bool) -> Iterable[Any]:
    import webdataset as wds
    from torchvision import transforms

    last = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)] if floats else [transforms.PILToTensor()]
    transform = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *last])
    shards = [str(path) for path in sorted((root / "pack").glob("*.tar"))]
    data = wds.WebDataset(shards, resampled=True, shardshuffle=False).shuffle(200).decode("pil")
    data = data.to_tuple("jpg", "cls").map_tuple(transform, int).batched(BATCH)
    return wds.WebLoader(data, batch_size=None, num_workers=CORES)


def dali_cpu(root: Path, floats: bool) -> Iterable[Any]:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=CORES, device_id=None, prefetch_queue_depth=2)
    def pipeline():  # type: ignore[no-untyped-def]
        encoded, labels = fn.readers.file(file_root=str(root / "folder"), random_shuffle=True, initial_fill=1024)
        images = fn.decoders.image_random_crop(encoded, random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0])
        images = fn.resize(images, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=True)
        flip = fn.random.coin_flip(probability=0.5)
        if not floats:
            return fn.flip(images, horizontal=flip), labels
        scale = {"mean": [255 * value for value in MEAN], "std": [255 * value for value in STD]}
        return fn.crop_mirror_normalize(images, mirror=flip, output_layout="CHW", dtype=types.FLOAT, **scale), labels

    made = pipeline()
    made.build()

    def batches() -> Iterator[Any]:
        while True:
            images, labels = made.run()
            yield images.as_array(), labels.as_array()

    return batches()


def repeated(data: Any) -> Any:
    """The dataset with every record listed REPEAT times."""
    table = data.table
    columns = {name: np.tile(getattr(table, name), REPEAT) for name in ("file", "offset", "size", "label")}
    known = {name: np.tile(column, REPEAT) for name in ("width", "height") if (column := getattr(table, name)) is not None}
    return replace(data, table=replace(table, keys=list(table.keys) * REPEAT, **columns, **known))


def ours(source: str) -> Callable[[Path, bool], Iterable[Any]]:
    def make(root: Path, floats: bool) -> Iterable[Any]:
        import headrace

        data = repeated(headrace.open(root / source))
        transform = headrace.transforms.imagenet_train(224, normalize=floats)
        loader = headrace.Loader(data, BATCH, transform, threads=CORES, dtype="float32" if floats else "uint8")
        while True:
            yield from loader

    return make


LOADERS: dict[str, Callable[[Path, bool], Iterable[Any]]] = {
    "torch DataLoader, PIL transforms": pytorch,
    "torch DataLoader, torchvision.io + v2": torchvision_io,
    "WebDataset, PIL transforms": webdataset,
    "DALI, CPU": dali_cpu,
    "headrace, image folder": ours("folder"),
    "headrace, packed": ours("pack"),
}


def cpu_seconds() -> float:
    """User and system time of this process, its reaped children and its live descendants."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid], used[pid] = int(fields[1]), sum(int(value) for value in fields[11:15])
    total, own = 0, os.getpid()
    for pid in used:
        ancestor = pid
        while ancestor not in (own, 0, 1):
            ancestor = parents.get(ancestor, 0)
        total += used[pid] if ancestor == own else 0
    return total / ticks


def measure(name: str, root: Path, floats: bool, seconds: float) -> dict[str, Any]:
    """One window of one loader in this process."""
    import torch

    torch.set_num_threads(1)
    began = time.perf_counter()
    batches = iter(LOADERS[name](root, floats))
    images, _ = next(batches)
    first_s = time.perf_counter() - began
    pixels = np.asarray(images)
    if pixels.size != BATCH * 3 * 224 * 224 or (pixels.dtype == np.float32) != floats or pixels.std() == 0:
        raise SystemExit(f"{name}: not the batch that was asked for: {pixels.dtype} {pixels.shape}")
    for _ in range(3):
        next(batches)
    start, start_cpu, count = time.perf_counter(), cpu_seconds(), 0
    while time.perf_counter() - start < seconds or count % CORES:
        next(batches)
        count += 1
    wall, cpu = time.perf_counter() - start, cpu_seconds() - start_cpu
    done = count * BATCH
    return {"img_s": done / wall, "cpu_s_per_1000": cpu / done * 1000, "first_batch_s": first_s}


def prepare(folder: str | None, root: Path) -> int:
    """The image folder and its pack, once; returns the number of images."""
    import headrace

    files = photographs(folder, 1000)
    for number, path in enumerate(files):
        target = root / "folder" / f"c{number % CLASSES}" / f"{number:05d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    headrace.pack(root / "folder", root / "pack")
    return len(files)


def table(results: dict[str, dict[bool, list[dict[str, Any]]]]) -> list[str]:
    lines = [
        "| loader | uint8 img/s | × DataLoader | CPU s / 1000 | float32 img/s | × DataLoader | CPU s / 1000 | first batch |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def median(name: str, floats: bool, field: str) -> float:
        return statistics.median(one[field] for one in results[name][floats])

    base = next(iter(results))
    for name, runs in results.items():
        cells = [f"**{name}**" if name.startswith("headrace") else name]
        for floats in (False, True):
            rates = [one["img_s"] for one in runs[floats]]
            cells.append(f"{statistics.median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})")
            cells.append(f"{median(name, floats, 'img_s') / median(base, floats, 'img_s'):.2f}")
            cells.append(f"{median(name, floats, 'cpu_s_per_1000'):.2f}")
        cells.append(f"{median(name, False, 'first_batch_s'):.2f} s")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def drive(args: argparse.Namespace, root: Path) -> dict[str, dict[bool, list[dict[str, Any]]]]:
    names = [name for name in LOADERS if not args.only or any(word in name for word in args.only)]
    results: dict[str, dict[bool, list[dict[str, Any]]]] = {name: {False: [], True: []} for name in names}
    jobs = [(name, floats) for name in names for floats in (False, True)]
    order = random.Random(0)
    for repeat in range(args.repeats):
        for name, floats in order.sample(jobs, len(jobs)):
            if name not in results:
                continue
            command = [sys.executable, __file__, "--measure", name, "--root", str(root), "--seconds", str(args.seconds)]
            run = subprocess.run([*command, *(["--floats"] if floats else [])], capture_output=True, text=True, check=False)
            if run.returncode:
                print(f"left out: {name}: {run.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                del results[name]
                continue
            results[name][floats].append(json.loads(run.stdout.splitlines()[-1]))
            print(
                f"{repeat + 1}/{args.repeats} {name} {'f32' if floats else 'u8'}: {results[name][floats][-1]}", file=sys.stderr
            )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", nargs="*", help="loaders whose name holds one of these words (the first row is the base)")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--floats", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.root, args.floats, args.seconds)), flush=True)
        os._exit(0)  # without waiting for prefetching workers
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        count = prepare(args.images, root)
        results = drive(args, root)
    text = [
        "# Loaders",
        "",
        f"Random order, RandomResizedCrop(224), flip, batches of {BATCH}; {count} photographs in the page cache;",
        f"{CORES} workers or threads; median (least–greatest) of {args.repeats} interleaved repeats. Made by `make bench`;",
        "the method is described in `benchmarks/loaders.py`.",
        "",
        *machine_facts.describe(PACKAGES),
        "",
        *table(results),
        "",
        "What is not the same work: torchvision.io and DALI do not reproduce Pillow's pixels (headrace does); WebDataset",
        "shuffles in a buffer, DALI in a buffer of 1,024; float32 is normalised and (N, 3, H, W), channels-last in headrace.",
        "The packed rows read the same JPEG coefficients, with restart markers.",
        "",
    ]
    print("\n".join(text))
    if args.write:
        args.page.write_text("\n".join(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
