"""`headrace run` beside the same script without it: the input path alone, first epoch and later epochs.

    python benchmarks/run.py [--images FOLDER] [--copies N] [--repeats N] [--only NAME …] [--keep FILE] [--write]

The scripts stand in `run_jobs.py`: ImageFolder with torchvision transforms and datasets of a script's own, which are taken
over as a whole; datasets whose items draw numbers or look at their tensors, which are taken over in part; and scripts that
`run` cannot make faster, which it must not make slower. Each has as many workers as usable cores and batches of 64 unless its
name says otherwise, three epochs, and no computation. Plain and taken-over runs alternate, in fresh processes. CPU time is that
of the process and its finished workers; other load on the machine disturbs it less than the rate. The first epoch includes the
start of workers or threads, and the batches that `run` makes both ways to compare their cost. Images are in the page cache.
Each photograph is there `--copies` times as a file of its own (a hard link), so that an epoch is long enough. "next run" is
the first epoch of another process, which finds the JPEG indexes of the process before. That process itself begins without
indexes. With `--keep`, what was measured is kept in a file, and a later call goes on where an earlier one was stopped: an hour
can be measured in quiet pieces. Intervals are 95 % intervals of the mean of the ratios of pairs (of their logarithms, by
Student's distribution).
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record
from run_jobs import BATCH, CORES, JOBS, photographs_as, usable_jobs
from sample import photographs

EPOCHS = 3
PACKAGES = ("headrace", "pillow", "torch", "torchvision", "numpy")

#: 97.5 % quantile of Student's distribution for 1, 2, … degrees of freedom (any table of it).
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


def script(root: str, name: str) -> None:
    """Run the script whose loading is measured; print a JSON list of (images per second, CPU milliseconds per image)."""
    import torch

    torch.manual_seed(0)
    loader = JOBS[name].loader(Path(root))
    epochs = []
    for _ in range(EPOCHS):
        began_s, cpu_s, images = time.perf_counter(), _cpu_s(), 0
        for batch in loader:
            images += count(batch)
        epochs.append((images / (time.perf_counter() - began_s), 1e3 * (_cpu_s() - cpu_s) / images))
    print(json.dumps(epochs))


def count(batch: Any) -> int:
    """Return the number of images of a batch; each view counts."""
    if isinstance(batch, dict):
        return len(batch["pixel_values"])
    images = batch[0]
    return sum(map(len, images)) if isinstance(images, list) else len(images)


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(root: Path, name: str, indexes: str | None) -> list[tuple[float, float]]:
    """Run one process of the script: plain, or through `headrace run` with JPEG indexes in the folder `indexes`."""
    command = [sys.executable, __file__, "--script", str(root), name]
    if indexes:
        command = [sys.executable, "-m", "headrace", "run", "--index-cache", indexes, "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    unmoved = indexes and JOBS[name].gains and "not taken over" in done.stderr
    if done.returncode != 0 or unmoved or (indexes and "taken over" not in done.stderr):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    epochs: list[tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return epochs


Found = dict[str, list[list[tuple[float, float]]]]

#: What is compared: the words of a row, which kind of process of ours, and which epoch of it.
ROWS = (("first", "run", 0), ("third", "run", -1), ("next run, first", "again", 0))


def interval(ratios: Sequence[float]) -> list[float] | None:
    """Return the 95 % interval of the mean ratio of pairs, or None for a single pair."""
    if len(ratios) < 2:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    freedom = min(len(logs) - 1, len(STUDENT))
    half = STUDENT[freedom - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return [math.exp(statistics.fmean(logs) - half), math.exp(statistics.fmean(logs) + half)]


def rows(results: dict[str, Found]) -> list[dict[str, Any]]:
    """Return the rows of the page: CPU milliseconds per image and images per second, plain and taken over."""
    lines = []
    for name, found in results.items():
        for words, kind, epoch in ROWS:
            if not found[kind]:
                continue
            plain, ours = (
                [statistics.median(run[epoch][which] for run in found[side]) for which in (0, 1)] for side in ("plain", kind)
            )
            pairs = [(one[epoch], other[epoch]) for one, other in zip(found["plain"], found[kind], strict=True)]
            lines.append(
                {
                    "transforms": name,
                    "epoch": words,
                    "gains": JOBS[name].gains,
                    "plain_cpu_ms": plain[1],
                    "run_cpu_ms": ours[1],
                    "times_less_cpu": plain[1] / ours[1],
                    "times_less_cpu_interval": interval([one[1] / other[1] for one, other in pairs]),
                    "plain_img_s": plain[0],
                    "run_img_s": ours[0],
                    "times_faster": ours[0] / plain[0],
                    "times_faster_interval": interval([other[0] / one[0] for one, other in pairs]),
                    "plain_rounds": [run[epoch] for run in found["plain"]],
                    "run_rounds": [run[epoch] for run in found[kind]],
                }
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample)")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of plain and taken-over runs (default: 5)")
    parser.add_argument("--copies", type=int, default=5, help="times that each photograph is there, as a file of its own")
    parser.add_argument("--only", nargs="*", help="scripts whose name holds one of these words")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep each pair in this file, and go on after those in it")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    parser.add_argument("--script", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.script:
        script(*args.script)
        return 0
    files = photographs(args.images, 1000)
    jobs = usable_jobs(args.only)
    results: dict[str, Found] = {name: {"plain": [], "run": [], "again": []} for name in jobs}
    if args.keep and args.keep.exists():
        for line in args.keep.read_text(encoding="utf-8").splitlines():
            name, kept = json.loads(line)
            for kind, epochs in kept.items() if name in results else ():
                results[name][kind].append(epochs)
    with tempfile.TemporaryDirectory() as temporary:
        for repeat in range(args.repeats):
            for number, (name, found) in enumerate(results.items()):
                if len(found["plain"]) > repeat:
                    continue
                root = photographs_as(jobs[name].files, files, Path(temporary), args.copies)
                indexes = f"{temporary}/indexes-{repeat}-{number}"  # of no earlier run
                kinds = (("plain", None), ("run", indexes), ("again", indexes))
                measured = {kind: measure(root, name, folder) for kind, folder in (kinds if jobs[name].gains else kinds[:2])}
                for kind, epochs in measured.items():
                    found[kind].append(epochs)
                    print(f"{repeat + 1}/{args.repeats} {name} {kind}: {epochs}", file=sys.stderr)
                if args.keep:
                    with args.keep.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([name, measured]) + "\n")
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
