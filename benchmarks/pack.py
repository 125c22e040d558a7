"""Packing a folder of JPEGs: headrace and peers, each in a process of its own, interleaved.

    python benchmarks/pack.py [--images N] [--rounds N] [--write]

Each round runs every row over one folder (the sample photographs, repeated under other names) and over a folder of 100
images, in a new random order. Figures are medians over rounds. A Python row measures its work only, without imports. Rates
come from the difference between the two folders, so they leave out the start of interpreters and worker processes, which
takes some peers seconds. The times of whole commands include it. Everything is in the page cache; only the rows that name
it wait for the disk. All rows that know workers use the same number. Peers that are not installed are left out
(benchmarks/peers.txt).
"""

from __future__ import annotations

import argparse
import compileall
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
from typing import Any

import headrace
import record
from headrace.system.hardware import machine
from sample import photographs

PACKAGES = ["headrace", "pillow", "webdataset", "litdata", "ffcv", "numpy"]
# What a Python row runs: imports first, then work() under the clock. CPU time is that of its processes too, which some peers do
# not wait for.
MEASURED = """
import multiprocessing, os, pathlib, sys, time
{text}
if __name__ == "__main__":
    source, out, workers = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    begin_s, before = time.perf_counter(), os.times()
    work(source, out, workers)
    end_s = time.perf_counter()
    for process in multiprocessing.active_children():
        process.join(20)
    print("\\nwork", sum(os.times()[:4]) - sum(before[:4]), end_s - begin_s)
"""
OURS = """
from headrace.cli.data import pack
from headrace.cli.main import main
def work(source, out, workers):
    main(["pack", str(source), str(out / "p"), "--workers", str(workers), {options}])
"""
PILLOW = """
import io, multiprocessing, tarfile
from PIL import Image
def smaller(path):
    image = Image.open(path).convert("RGB")
    scale = min(1, 500 / max(image.size))
    if scale < 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return path.name, file.getvalue()
def work(source, out, workers):
    with tarfile.open(out / "a.tar", "w") as archive, multiprocessing.Pool(workers) as pool:
        for name, data in pool.imap(smaller, sorted(source.rglob("*.jpg")), chunksize=16):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
"""
WEBDATASET = """
import webdataset
def work(source, out, workers):
    with webdataset.ShardWriter(str(out / "%06d.tar"), maxsize=1 << 27, verbose=0) as writer:
        for path in sorted(source.rglob("*.jpg")):
            writer.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": int(path.parent.name)})
"""
LITDATA = """
from litdata import optimize
def sample(path):
    return {"image": pathlib.Path(path).read_bytes(), "label": int(pathlib.Path(path).parent.name)}
def work(source, out, workers):
    paths = [str(path) for path in sorted(source.rglob("*.jpg"))]
    optimize(sample, paths, str(out), chunk_bytes="128MB", num_workers=workers)
"""
FFCV = """
from ffcv.fields import IntField, RGBImageField
from ffcv.writer import DatasetWriter
from torchvision.datasets import ImageFolder
fields = {"image": RGBImageField(write_mode="jpg", max_resolution=500, jpeg_quality=90), "label": IntField()}
def work(source, out, workers):
    DatasetWriter(str(out / "a.beton"), fields, num_workers=workers).from_indexed_dataset(ImageFolder(str(source)))
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to pack. `command`: a shell line with {source}, {out} and {workers}; `needs`: a module that it imports."""

    name: str
    does: str
    command: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of one run: CPU and wall time of its work, and wall time of the whole command."""

    cpu_s: float
    wall_s: float
    whole_s: float


def script(text: str) -> str:
    """Return a shell line that runs a Python program on {source}, {out} and {workers}."""
    file = tempfile.NamedTemporaryFile("w", suffix=".py", delete=False)  # noqa: SIM115 (removed with the machine's /tmp)
    with file:
        file.write(MEASURED.replace("{text}", text))
    return f"{sys.executable} {file.name} {{source}} {{out}} {{workers}}"


JPEGTRAN = (
    'find {source} -name "*.jpg" | xargs -P {workers} -I % '
    """sh -c 'jpegtran -copy all -optimize -restart 1 -outfile "{out}/$(basename %)" %'"""
)
VERIFY = """
from headrace.cli.data import verify
from headrace.cli.main import main
def work(source, out, workers):
    main(["verify", str(out / "p"), "--workers", str(workers)])
"""
SMALL = 100  # images of the runs that tell what a start costs
LOSSY = "--max-side 500 --quality 90"


def ours(options: str = "") -> str:
    """Return a shell line that runs `headrace pack` with these options."""
    return script(OURS.replace("{options}", ", ".join(repr(word) for word in options.split())))


def rows() -> list[Row]:
    """Return all ways that this machine can run."""
    every = [
        Row("tar", "copies", "tar -cf {out}/a.tar -C {source} ."),
        Row("headrace --keep-bytes", "copies, checks, digests, index", ours("--keep-bytes")),
        Row("webdataset ShardWriter", "copies, one process", script(WEBDATASET), "webdataset"),
        Row("litdata optimize", "copies", script(LITDATA), "litdata"),
        Row("tar, then sync", "copies, waits for the disk", "tar -cf {out}/a.tar -C {source} . && sync {out}/a.tar"),
        Row("headrace --keep-bytes --sync", "copies, checks, digests, index, waits", ours("--keep-bytes --sync")),
        Row("headrace", "restart markers, without loss, index", ours()),
        Row("jpegtran -optimize -restart", "restart markers, without loss, a process a file", JPEGTRAN),
        Row(f"headrace {LOSSY}", "reduces or requantises, restart markers, index", ours(LOSSY)),
        Row("Pillow loop", "reduces, re-encodes", script(PILLOW)),
        Row("FFCV DatasetWriter", "reduces, re-encodes", script(FFCV), "ffcv"),
    ]
    return [
        row
        for row in every
        if (not row.needs or importlib.util.find_spec(row.needs)) and (row.name[:8] != "jpegtran" or shutil.which("jpegtran"))
    ]


def measured(command: str) -> Time:
    """Run a shell line. A program that does not print the time of its work is measured as a whole."""
    before, start_s = os.times(), time.perf_counter()
    done = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    after, end_s = os.times(), time.perf_counter()
    if done.returncode:
        raise SystemExit(f"{command}\nfailed:\n{done.stderr[-2000:]}")
    said = [line.split() for line in done.stdout.splitlines() if line.startswith("work ")]
    if said:
        return Time(float(said[-1][1]), float(said[-1][2]), end_s - start_s)
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Time(cpu_s, end_s - start_s, end_s - start_s)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=round(machine.cores().usable))
    parser.add_argument("--only", default="", help="only rows whose name or description holds this")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-pack-") as scratch:
        found = document(Path(scratch), args)
    record.publish(found, save=args.write)
    return 0


def fill(folder: Path, sample: list[bytes], images: int) -> Path:
    """Make an image folder of ten classes."""
    for number in range(images):
        path = folder / f"{number % 10}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample[number % len(sample)])
    return folder


def document(scratch: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run everything; return the results as a document."""
    load = os.getloadavg()[0]
    compileall.compile_dir(Path(headrace.__file__).parent, quiet=1)  # as pip does when it installs, also the peers
    sample = [path.read_bytes() for path in photographs(None, args.images)]
    sources = {count: fill(scratch / f"in{count}", sample, count) for count in (SMALL, args.images)}
    out, verify = scratch / "out", script(VERIFY)
    ways = [row for row in rows() if args.only in f"{row.name} {row.does}"]
    times: dict[str, list[dict[int, Time]]] = {row.name: [] for row in ways}
    sizes: dict[str, int] = {}
    verified: list[float] = []
    for number in range(args.rounds):
        for row in random.Random(number).sample(ways, len(ways)):
            took = {}
            for count, source in sources.items():
                shutil.rmtree(out, ignore_errors=True)
                out.mkdir()
                where = {"source": source, "out": out, "workers": args.workers}
                took[count] = measured(row.command.format(**where))
            times[row.name].append(took)
            sizes[row.name] = size_of(out)
            if row.name == "headrace":
                cpu_s = measured(verify.format(**where)).cpu_s
                if cpu_s:  # os.times() counts hundredths of a second; a few images take none
                    verified.append(sizes[row.name] / cpu_s)
    source_bytes = size_of(sources[args.images])
    settings = {
        "images": args.images,
        "image_kb": source_bytes / args.images / 1000,
        "workers": args.workers,
        "rounds": args.rounds,
        "small_images": SMALL,
        "load_average": load,
    }
    return record.document(
        "pack",
        PACKAGES,
        settings=settings,
        rows=[summarised(row, times[row.name], args.images, sizes[row.name] / source_bytes) for row in ways],
        verify_gb_s=record.spread([rate / 1e9 for rate in verified]) if verified else None,
        absent=absent(),
    )


def absent() -> list[str]:
    """Return the peers that are missing."""
    missing = [name for name in ("webdataset", "litdata", "ffcv") if not importlib.util.find_spec(name)]
    return missing + ([] if shutil.which("jpegtran") else ["jpegtran"])


def summarised(row: Row, times: list[dict[int, Time]], images: int, share: float) -> dict[str, Any]:
    """Return one row: rates without the start, times of whole commands, size beside the source."""
    count = images - SMALL
    cpu, wall = (
        rate([count / max(getattr(took[images], kind) - getattr(took[SMALL], kind), 1e-9) for took in times])
        for kind in ("cpu_s", "wall_s")
    )
    small_s, large_s = (statistics.median(took[size].whole_s for took in times) for size in (SMALL, images))
    names = {"way": row.name, "ours": row.name.startswith("headrace"), "does": row.does}
    return {**names, "cpu_img_s": cpu, "wall_img_s": wall, "small_s": small_s, "large_s": large_s, "size_share": share}


def rate(values: list[float]) -> dict[str, Any] | None:
    """Return the spread of rates; None where the variation of the start hides them."""
    return None if max(values) > 1e6 else record.spread(values)


if __name__ == "__main__":
    sys.exit(main())
