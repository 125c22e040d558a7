"""`headrace run` beside the same script without it: the input path alone, first epoch and later epochs.

    python benchmarks/run.py [--images FOLDER] [--copies N] [--repeats N] [--only NAME …] [--write]

The script is an ordinary one: ImageFolder, torchvision transforms on Pillow images, DataLoader with as many workers as
usable cores, batches of 64, three epochs, no computation. Plain and taken-over runs alternate, in fresh processes. CPU time
is that of the process and its finished workers; other load on the machine disturbs it less than the rate. The first epoch
includes the start of workers or threads. Images are in the page cache. Each photograph is there `--copies` times as a file
of its own (a hard link), so that an epoch is long enough. "next run" is the first epoch of another process, which finds the
JPEG indexes of the process before. That process itself begins without indexes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record
from headrace.system import machine
from sample import photographs

CLASSES, BATCH, EPOCHS = 10, 64, 3
CORES = max(1, round(machine.cores().usable))
PACKAGES = ("headrace", "pillow", "torch", "torchvision", "numpy")


def stacks() -> dict[str, list[Any]]:
    """Return the transforms that are compared, by name: the lists that the script gives to Compose."""
    from torchvision import transforms

    crop, flip = transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()
    floats = [transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    return {
        "crop, flip, normalise": [crop, flip, *floats],
        "crop, flip, uint8": [crop, flip, transforms.PILToTensor()],
        "with colour jitter 0.4": [crop, flip, transforms.ColorJitter(0.4, 0.4, 0.4), *floats],
        "with RandAugment": [crop, flip, transforms.RandAugment(), *floats],
        "evaluation": [transforms.Resize(256), transforms.CenterCrop(224), *floats],
    }


def script(root: str, name: str) -> None:
    """Run the script whose loading is measured; print a JSON list of (images per second, CPU milliseconds per image)."""
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import Compose

    torch.manual_seed(0)
    loader = DataLoader(ImageFolder(root, Compose(stacks()[name])), BATCH, shuffle=True, num_workers=CORES)
    epochs = []
    for _ in range(EPOCHS):
        began_s, cpu_s, images = time.perf_counter(), _cpu_s(), 0
        for batch, _ in loader:
            images += len(batch)
        epochs.append((images / (time.perf_counter() - began_s), 1e3 * (_cpu_s() - cpu_s) / images))
    print(json.dumps(epochs))


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(root: Path, name: str, indexes: str | None) -> list[tuple[float, float]]:
    """Run one process of the script: plain, or through `headrace run` with JPEG indexes in the folder `indexes`."""
    command = [sys.executable, __file__, "--script", str(root), name]
    if indexes:
        command = [sys.executable, "-m", "headrace", "run", "--index-cache", indexes, "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or (indexes and "taken over" not in done.stderr):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    epochs: list[tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return epochs


Found = dict[str, list[list[tuple[float, float]]]]

#: What is compared: the words of a row, which kind of process of ours, and which epoch of it.
ROWS = (("first", "run", 0), ("third", "run", -1), ("next run, first", "again", 0))


def rows(results: dict[str, Found]) -> list[dict[str, Any]]:
    """Return the rows of the page: CPU milliseconds per image and images per second, plain and taken over."""
    lines = []
    for name, found in results.items():
        for words, kind, epoch in ROWS:
            plain, ours = (
                [statistics.median(run[epoch][which] for run in found[side]) for which in (0, 1)] for side in ("plain", kind)
            )
            lines.append(
                {
                    "transforms": name,
                    "epoch": words,
                    "plain_cpu_ms": plain[1],
                    "run_cpu_ms": ours[1],
                    "times_less_cpu": plain[1] / ours[1],
                    "plain_img_s": plain[0],
                    "run_img_s": ours[0],
                    "times_faster": ours[0] / plain[0],
                    "plain_rounds": [run[epoch] for run in found["plain"]],
                    "run_rounds": [run[epoch] for run in found[kind]],
                }
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--copies", type=int, default=5, help="times that each photograph is there, as a file of its own")
    parser.add_argument("--only", nargs="*", help="transforms whose name holds one of these words")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    parser.add_argument("--script", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.script:
        script(*args.script)
        return 0
    files = photographs(args.images, 1000)
    results: dict[str, Found] = {
        name: {"plain": [], "run": [], "again": []}
        for name in stacks()
        if not args.only or any(word in name for word in args.only)
    }
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "images"
        for number, file in enumerate(files):
            folder = root / f"c{number % CLASSES}"
            folder.mkdir(parents=True, exist_ok=True)
            first = folder / f"{number:05d}-0.jpg"
            first.write_bytes(file.read_bytes())
            for copy in range(1, args.copies):
                (folder / f"{number:05d}-{copy}.jpg").hardlink_to(first)
        for repeat in range(args.repeats):
            for number, (name, found) in enumerate(results.items()):
                indexes = f"{temporary}/indexes-{repeat}-{number}"  # of no earlier run
                for kind, folder_of_indexes in (("plain", None), ("run", indexes), ("again", indexes)):
                    found[kind].append(measure(root, name, folder_of_indexes))
                    print(f"{repeat + 1}/{args.repeats} {name} {kind}: {found[kind][-1]}", file=sys.stderr)
    settings = {
        "photographs": len(files),
        "copies": args.copies,
        "batch_size": BATCH,
        "workers": CORES,
        "repeats": args.repeats,
    }
    record.publish(record.document("run", PACKAGES, settings=settings, rows=rows(results)), save=args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
