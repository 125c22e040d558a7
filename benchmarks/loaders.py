"""Whole loaders side by side: random order, RandomResizedCrop(224), flip, batches of 256, on one core and on all cores.

    make bench-loaders                      (or, with other options:)
    python benchmarks/loaders.py [--quick] [--images FOLDER] [--repeats N] [--seconds S] [--only WORD …] [--write]

Each measurement is a process of its own, pinned to its cores. Loaders are interleaved in a new random order in each repeat;
the page shows medians and spread over the repeats. After a warm-up of four batches, the window runs from the arrival of one
batch to that of another and is at least `--seconds` long. The images are in the page cache and listed many times, so that
no epoch ends in a window. CPU time is that of the process and all its descendants. Memory is the sum of their proportional
shares (PSS), the highest of two samples per second. Every loader has as many workers or threads as cores. loader_peers.py
holds the loaders; the page names those that are not installed (benchmarks/peers.txt). `--quick` makes one repeat of short
windows: about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import record
from headrace.system.hardware import machine
from loader_data import prepare
from loader_peers import BATCH, PEERS, SIDE

CORES = max(1, round(machine.cores().usable))
PACKAGES = (
    *("headrace", "pillow", "torch", "torchvision", "opencv-python-headless", "nvidia-dali-cuda130", "ffcv", "spdl"),
    *("tensorflow-cpu", "webdataset", "litdata", "numpy"),
)
BASE = "torch DataLoader, PIL transforms"
LIMIT_S = 180  # of one measurement: a loader that takes longer is reported as failed


@dataclass(frozen=True)
class Case:
    """One kind of measurement."""

    name: str
    floats: bool
    cores: int


def processes(top: int) -> Iterator[tuple[Path, list[str]]]:
    """Yield the /proc folder and the fields of `stat` (from the state on) of `top` and all its descendants."""
    found: dict[int, tuple[Path, list[str]]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            found[int(path.name)] = path, (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
    for pid in found:
        ancestor = pid
        while ancestor in found and ancestor != top:
            ancestor = int(found[ancestor][1][1])
        if ancestor == top:
            yield found[pid]


def cpu_seconds() -> float:
    """Return the user and system time of this process, its reaped children and its live descendants."""
    return sum(sum(int(value) for value in fields[11:15]) for _, fields in processes(os.getpid())) / os.sysconf("SC_CLK_TCK")


def proportional_bytes(top: int) -> int:
    """Return the memory of a process tree. Each page counts once, however many of its processes share it."""
    total = 0
    for path, _ in processes(top):
        try:
            lines = (path / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def measure(case: Case, root: Path, seconds: float) -> dict[str, Any]:
    """Measure one window of one loader in this process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: case.cores])
    peer = PEERS[case.name]
    if peer.torch:  # a training script has it in any case, so its import is not counted as the loader's
        import torch

        torch.set_num_threads(1)
    began = time.perf_counter()
    batches = iter(peer.make(root, case.floats, case.cores))
    images, _ = next(batches)
    first_s = time.perf_counter() - began
    pixels = np.asarray(images)
    if pixels.size != BATCH * 3 * SIDE**2 or (pixels.dtype == np.float32) != case.floats or pixels[:2].std() == 0:
        raise SystemExit(f"{case.name}: not the batch that was asked for: {pixels.dtype} {pixels.shape}")
    for _ in range(peer.warm_up - 1):
        next(batches)
    start, start_cpu, start_main, count = time.perf_counter(), cpu_seconds(), time.thread_time(), 0
    while time.perf_counter() - start < seconds or count % case.cores:
        next(batches)
        count += 1
    wall, main, cpu = time.perf_counter() - start, time.thread_time() - start_main, cpu_seconds() - start_cpu
    done = count * BATCH
    return {"img_s": done / wall, "cpu_s_per_1000": cpu / done * 1000, "main_share": main / wall, "first_batch_s": first_s}


def import_seconds(package: str) -> float:
    """Return the seconds that `import package` takes in a fresh process, with all that it imports; median of three."""
    program = f"import time; began = time.perf_counter(); import {package}; print(time.perf_counter() - began)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False) for _ in range(3)]
    return statistics.median(float(run.stdout.splitlines()[-1]) if run.returncode == 0 else float("nan") for run in runs)


def import_bytes(package: str) -> float:
    """Return the memory (PSS) of a fresh process that has only imported a package; NaN where it is not installed."""
    program = f"import {package}; print(open('/proc/self/smaps_rollup').read())"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    found = [line.split()[1] for line in run.stdout.splitlines() if line.startswith("Pss:")]
    return 1024 * float(found[0]) if found else float("nan")


def measured(case: Case, root: Path, seconds: float) -> dict[str, Any] | str:
    """Measure in a fresh process; return the figures with the highest memory of its tree, or the reason for having none."""
    command = [
        sys.executable,
        __file__,
        "--measure",
        case.name,
        str(int(case.floats)),
        str(case.cores),
        str(root),
        str(seconds),
    ]
    # No index of an earlier process: a first epoch is a first epoch.
    environment = os.environ | {"HEADRACE_INDEX_CACHE": "off", "OMP_NUM_THREADS": "1"}
    highest = 0
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, start_new_session=True)
        watchdog = threading.Timer(LIMIT_S, process.kill)
        watchdog.start()
        while process.poll() is None:
            highest = max(highest, proportional_bytes(process.pid))
            time.sleep(0.5)
        watchdog.cancel()
        output.seek(0)
        errors.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
        said = errors.read().decode(errors="replace").strip().splitlines()
    if process.returncode or not lines:
        return said[-1] if said else f"ended with {process.returncode}"
    return json.loads(lines[-1]) | {"memory_bytes": highest}


Results = dict[Case, list[dict[str, Any]]]


def drive(names: list[str], args: argparse.Namespace, root: Path) -> tuple[Results, dict[str, str]]:
    """Make all measurements, interleaved. Return them, and the loaders that failed with their errors."""
    cases = [Case(name, floats, cores) for name in names for floats in (False, True) for cores in sorted({1, CORES})]
    results: Results = {case: [] for case in cases}
    failed: dict[str, str] = {}
    order = random.Random(0)
    for repeat in range(args.repeats):
        for case in order.sample(cases, len(cases)):
            if case.name in failed:
                continue
            found = measured(case, root, args.seconds)
            print(f"{repeat + 1}/{args.repeats} {case}: {found}", file=sys.stderr)
            if isinstance(found, str):
                failed[case.name] = found
            else:
                results[case].append(found)
    return {case: found for case, found in results.items() if case.name not in failed}, failed


def rates(results: Results) -> list[dict[str, Any]]:
    """Return the rows of the tables of rates, one for each loader and number of cores."""
    rows = []
    for cores in sorted({1, CORES}, reverse=True):
        for name in names(results):
            sides = {kind: side(results, Case(name, kind == "float32", cores)) for kind in ("uint8", "float32")}
            rows.append({"cores": cores, "loader": name, "ours": name.startswith("headrace"), **sides})
    return rows


def side(results: Results, case: Case) -> dict[str, Any]:
    """Return rate, times the DataLoader, and CPU time of one case."""
    found = record.spread([one["img_s"] for one in results[case]])
    base = results.get(Case(BASE, case.floats, case.cores))
    times = found["median"] / _median(base, "img_s") if base else None
    return {"img_s": found, "times": times, "cpu_s_per_1000": _median(results[case], "cpu_s_per_1000")}


def names(results: Results) -> list[str]:
    """Return the names of the loaders that were measured, in order."""
    return list(dict.fromkeys(case.name for case in results))


def _median(runs: list[dict[str, Any]], field: str) -> float:
    return statistics.median(one[field] for one in runs)


def other(results: Results, imports: dict[str, float]) -> list[dict[str, Any]]:
    """Return the rows of what is not a rate, on all cores."""
    rows = []
    for name in names(results):
        runs = {kind: results[Case(name, kind == "float32", CORES)] for kind in ("uint8", "float32")}
        row = {"loader": name, "ours": name.startswith("headrace"), "import_s": imports[PEERS[name].package]}
        row |= {f"memory_{kind}_mib": _median(found, "memory_bytes") / 2**20 for kind, found in runs.items()}
        row |= {f"main_thread_{kind}": _median(found, "main_share") for kind, found in runs.items()}
        rows.append({**row, "first_batch_s": _median(runs["uint8"], "first_batch_s")})
    return rows


def document(results: Results, failed: dict[str, str], count: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the results as a document."""
    imports = {package: import_seconds(package) for package in {PEERS[case.name].package for case in results}}
    settings = {"size": SIDE, "batch_size": BATCH, "photographs": count, "repeats": args.repeats, "seconds": args.seconds}
    return record.document(
        "loaders",
        PACKAGES,
        settings=settings,
        rates=rates(results),
        other=other(results, imports),
        torch_import_mib=import_bytes("torch") / 2**20,
        absent=[name for name, peer in PEERS.items() if not peer.installed()],
        failed=failed,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--quick", action="store_true", help="one repeat, windows of 2 s")
    parser.add_argument("--only", nargs="*", help="loaders whose name holds one of these words")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE instead, without pages")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, floats, cores, root, seconds = args.measure
        print(json.dumps(measure(Case(name, floats == "1", int(cores)), Path(root), float(seconds))), flush=True)
        os._exit(0)  # without waiting for prefetching workers
    if args.quick:
        args.repeats, args.seconds = 1, 2.0
    with tempfile.TemporaryDirectory() as temporary:
        count, unprepared = prepare(args.images, Path(temporary))
        for line in unprepared:
            print(f"could not be prepared: {line}", file=sys.stderr)
        wanted = [name for name in PEERS if not args.only or any(word in name for word in args.only)]
        results, failed = drive([name for name in wanted if PEERS[name].installed()], args, Path(temporary))
    record.publish(document(results, failed, count, args), save=args.write, file=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
