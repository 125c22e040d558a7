"""Packing a folder of JPEGs: ours and others', each in a process of its own, interleaved.

    python benchmarks/pack.py [--images N] [--rounds N] [--write]

Each round runs every row once over the same folder (the sample photographs, repeated under other names) in a new random
order. A row's figures are medians over rounds: images per second of CPU time (user + system of the process and its
children; what a core can do), images per second of wall time on this machine, and the size of the result. The start of
Python is in the figures. Everything is in the page cache; nobody waits for the disk. Peers that are not installed are left
out (benchmarks/peers.txt).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import machine_facts
from sample import photographs

PAGE = Path(__file__).parent / "results" / "pack.md"
PACKAGES = ["headrace", "pillow", "webdataset", "litdata", "ffcv", "numpy"]
HEADRACE = f"{sys.executable} -m headrace"

PILLOW = """
import io, pathlib, sys, tarfile
from PIL import Image
source, out = map(pathlib.Path, sys.argv[1:])
with tarfile.open(out / "a.tar", "w") as archive:
    for path in sorted(source.rglob("*.jpg")):
        image = Image.open(path).convert("RGB")
        scale = min(1, 500 / max(image.size))
        if scale < 1:
            image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BILINEAR)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        info = tarfile.TarInfo(path.name)
        info.size = file.tell()
        file.seek(0)
        archive.addfile(info, file)
"""
WEBDATASET = """
import pathlib, sys, webdataset
source, out = map(pathlib.Path, sys.argv[1:])
with webdataset.ShardWriter(str(out / "%06d.tar"), maxsize=1 << 27, verbose=0) as writer:
    for path in sorted(source.rglob("*.jpg")):
        writer.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": int(path.parent.name)})
"""
LITDATA = """
import pathlib, sys
from litdata import optimize
source, out = map(pathlib.Path, sys.argv[1:])
def sample(path):
    return {"image": pathlib.Path(path).read_bytes(), "label": int(pathlib.Path(path).parent.name)}
if __name__ == "__main__":
    optimize(sample, [str(path) for path in sorted(source.rglob("*.jpg"))], str(out), chunk_bytes="128MB", num_workers=2)
"""
FFCV = """
import pathlib, sys
from ffcv.fields import IntField, RGBImageField
from ffcv.writer import DatasetWriter
from torchvision.datasets import ImageFolder
source, out = map(pathlib.Path, sys.argv[1:])
fields = {"image": RGBImageField(write_mode="jpg", max_resolution=500, jpeg_quality=90), "label": IntField()}
if __name__ == "__main__":
    DatasetWriter(str(out / "a.beton"), fields, num_workers=2).from_indexed_dataset(ImageFolder(str(source)))
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A way to pack. `command` is a shell line with {source} and {out}, `needs` a module that must be installed."""

    name: str
    does: str
    command: str
    needs: str = ""


def script(text: str) -> str:
    """A shell line that runs a Python program on {source} and {out}."""
    file = tempfile.NamedTemporaryFile("w", suffix=".py", delete=False)  # noqa: SIM115 (removed with the machine's /tmp)
    with file:
        file.write(text)
    return f"{sys.executable} {file.name} {{source}} {{out}}"


JPEGTRAN = 'find {source} -name "*.jpg" | while read f; do jpegtran -copy all -optimize -restart 1 "$f" > {out}/x.jpg; done'


def rows() -> list[Row]:
    """All ways that this machine can run."""
    every = [
        Row("tar", "copies", "tar -cf {out}/a.tar -C {source} ."),
        Row(
            "**headrace --keep-bytes**",
            "copies, checks, index",
            f"{HEADRACE} pack {{source}} {{out}}/p --keep-bytes",
        ),
        Row("webdataset ShardWriter", "copies", script(WEBDATASET), "webdataset"),
        Row("litdata optimize", "copies", script(LITDATA), "litdata"),
        Row("**headrace**", "restart markers, without loss, index", f"{HEADRACE} pack {{source}} {{out}}/p"),
        Row("jpegtran -optimize -restart", "restart markers, without loss, one process a file", JPEGTRAN),
        Row(
            "**headrace --max-side 500 --quality 90**",
            "reduces, re-encodes, index",
            f"{HEADRACE} pack {{source}} {{out}}/p --max-side 500 --quality 90",
        ),
        Row("Pillow loop", "reduces, re-encodes", script(PILLOW)),
        Row("FFCV DatasetWriter", "reduces, re-encodes", script(FFCV), "ffcv"),
    ]
    return [
        row
        for row in every
        if (not row.needs or importlib.util.find_spec(row.needs)) and (row.name[:8] != "jpegtran" or shutil.which("jpegtran"))
    ]


def measured(command: str) -> tuple[float, float]:
    """Runs a shell line; CPU seconds of everything it started, and wall seconds."""
    before, start_s = os.times(), time.perf_counter()
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu_s, time.perf_counter() - start_s


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-pack-") as scratch:
        lines = page(Path(scratch), args.images, args.rounds)
    print("\n".join(lines))
    if args.write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text("\n".join(lines) + "\n")
    return 0


def page(scratch: Path, images: int, rounds: int) -> list[str]:
    """Runs everything; the page's lines."""
    source, out = scratch / "in", scratch / "out"
    sample = [path.read_bytes() for path in photographs(None, images)]
    for number in range(images):
        path = source / f"{number % 10}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample[number % len(sample)])
    ways = rows()
    times: dict[str, list[tuple[float, float]]] = {row.name: [] for row in ways}
    sizes: dict[str, int] = {}
    verify: list[tuple[float, float]] = []
    for number in range(rounds):
        for row in random.Random(number).sample(ways, len(ways)):
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            times[row.name].append(measured(row.command.format(source=source, out=out)))
            sizes[row.name] = size_of(out)
            if row.name == "**headrace**":
                verify.append(measured(f"{HEADRACE} verify {out}/p"))
    start_cpu_s = statistics.median(measured(f"{HEADRACE} pack -h")[0] for _ in range(3))
    return [
        "# Packing",
        "",
        *machine_facts.describe(PACKAGES),
        f"- Command: `python benchmarks/pack.py --images {images} --rounds {rounds} --write`",
        f"- Data: {images} JPEGs, {size_of(source) / images / 1000:.1f} kB each; medians of {rounds} rounds; "
        f"the start of headrace's process ({start_cpu_s:.2f} s of CPU) is in its figures",
        "",
        "| | does | img/s of CPU time | img/s of wall time | bytes of the source |",
        "|---|---|---:|---:|---:|",
        *(line(row, times[row.name], images, sizes[row.name] / size_of(source)) for row in ways),
        "",
        f"`headrace verify` (SHA-256 of every shard and CRC-32C of every image): "
        f"{sizes['**headrace**'] / statistics.median(cpu for cpu, _ in verify) / 1e9:.2f} GB/s of CPU time, with its start "
        f"({sizes['**headrace**'] / max(1e-9, statistics.median(cpu for cpu, _ in verify) - start_cpu_s) / 1e9:.2f} without).",
    ]


def line(row: Row, times: list[tuple[float, float]], images: int, share: float) -> str:
    cpu_s, wall_s = (statistics.median(column) for column in zip(*times, strict=True))
    size = "" if row.name.startswith("jpegtran") else f"{share:.0%}"
    return f"| {row.name} | {row.does} | {images / cpu_s:,.0f} | {images / wall_s:,.0f} | {size} |"


if __name__ == "__main__":
    sys.exit(main())
