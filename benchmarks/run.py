"""`headrace run` beside the same script without it: input path alone, first epoch and later ones.

    python benchmarks/run.py [--images FOLDER] [--repeats N] [--only NAME …] [--write]

The script is an ordinary one: ImageFolder, torchvision transforms on Pillow images, DataLoader with as many workers as there
are usable cores, batches of 64, three epochs, no computation. Plain and taken over alternate, in fresh processes; CPU time is
that of the process and its finished workers, which does not suffer from other load on the machine as the rate does. The first
epoch includes starting workers or threads. Images are in the page cache.
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

import machine_facts
from headrace import machine
from sample import photographs

CLASSES, BATCH, EPOCHS = 10, 64, 3
CORES = max(1, round(machine.cores().usable))
PAGE = Path(__file__).parent / "results" / "run.md"


def stacks() -> dict[str, list[Any]]:
    """The transforms that are compared, by name; each list is what the script hands to Compose."""
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
    """The training script whose loading is measured; prints one JSON list of (images/s, CPU milliseconds an image)."""
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


def measure(root: Path, name: str, *, ours: bool) -> list[tuple[float, float]]:
    """One process of the script, plain or through `headrace run`."""
    command = [sys.executable, __file__, "--script", str(root), name]
    if ours:
        command = [sys.executable, "-m", "headrace", "run", "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or (ours and "taken over" not in done.stderr):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    epochs: list[tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return epochs


def table(results: dict[str, dict[bool, list[list[tuple[float, float]]]]]) -> list[str]:
    """Markdown rows: CPU milliseconds an image and images a second, first epoch and the last one, and how many times better."""
    lines = [
        "| transforms | epoch | CPU ms/image plain | run | times less | img/s plain | run | times faster |",
        "|" + "---|" * 8,
    ]
    for name, found in results.items():
        for words, epoch in (("first", 0), ("third", -1)):
            plain, ours = (
                [statistics.median(run[epoch][which] for run in found[mine]) for which in (0, 1)] for mine in (False, True)
            )
            lines.append(
                f"| {name} | {words} | {plain[1]:.2f} | {ours[1]:.2f} | {plain[1] / ours[1]:.1f} "
                f"| {plain[0]:.0f} | {ours[0]:.0f} | {ours[0] / plain[0]:.1f} |"
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="transforms whose name holds one of these words")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}")
    parser.add_argument("--script", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.script:
        script(*args.script)
        return 0
    files = photographs(args.images, 1000)
    results: dict[str, dict[bool, list[list[tuple[float, float]]]]] = {
        name: {False: [], True: []} for name in stacks() if not args.only or any(word in name for word in args.only)
    }
    with tempfile.TemporaryDirectory() as temporary:
        for number, file in enumerate(files):
            folder = Path(temporary) / f"c{number % CLASSES}"
            folder.mkdir(exist_ok=True)
            (folder / f"{number:05d}.jpg").write_bytes(file.read_bytes())
        for repeat in range(args.repeats):
            for name, found in results.items():
                for ours in (False, True):
                    found[ours].append(measure(Path(temporary), name, ours=ours))
                    print(
                        f"{repeat + 1}/{args.repeats} {name} {'run' if ours else 'plain'}: {found[ours][-1]}", file=sys.stderr
                    )
    text = [
        "# headrace run",
        "",
        f"A script's input path alone, {len(files)} photographs, batches of {BATCH}, {CORES} workers or threads; medians of",
        f"{args.repeats} repeats, plain and taken over alternating. Made by `python benchmarks/run.py --write`; its text has",
        "the method. RandAugment is taken over in part (decode and crop, in the script's own workers).",
        "",
        *machine_facts.describe(["headrace", "pillow", "torch", "torchvision", "numpy"]),
        "",
        *table(results),
        "",
    ]
    print("\n".join(text))
    if args.write:
        PAGE.write_text("\n".join(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
