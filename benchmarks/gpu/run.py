"""Measure everything that awaits a GPU, the most valuable first:   make bench-gpu

    python benchmarks/gpu/run.py [--minutes 9] [--resume] [--only NAME …] [--images FOLDER] [--out FOLDER] [--write]
    python benchmarks/gpu/run.py --dry-run          all of it in tiny, on the CPU: shows that it starts and renders

Each measurement runs in a process of its own, with a time limit, and leaves one JSON file in `--out` (default: gpu-results).
Where one fails or runs out of time, its rows until then are on the page, with the reason, and `--resume` measures it again.
With `--resume` those that are there are not measured again, so a run that ended, or was killed, continues; without it the run
begins anew. `--write` merges the results into benchmarks/results/data and renders the pages. Needs no network and no
repository: a copy of benchmarks/ beside an installed headrace is enough. A dry run never writes into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import record
from headrace.system.files.atomic_write import atomic_write
from headrace.system.processes.end_with_parent import end_with_parent
from pages import awaits_gpu
from pages.document import DATA
from render import measured, write
from sample import photographs

from gpu.measurements import MEASUREMENTS, TRIALS_FOLDER, Measurement

PACKAGES = ["headrace", "torch", "torchvision", "triton", "timm", "numpy"]
LEAST_S = 20  # a measurement is not begun with less time left


def main() -> int:
    """Run the measurements, then merge and render."""
    args = _parser().parse_args()
    if args.measure:
        return _measure(args)
    if args.dry_run:
        args.device, args.tiny = "cpu", True
    elif not _has_gpu():
        raise SystemExit("no CUDA device here; --dry-run shows on the CPU that everything starts")
    out = Path(args.out or ("gpu-results" if not args.dry_run else tempfile.mkdtemp(prefix="gpu-dry-run-")))
    if args.dry_run and DATA.resolve() in (out.resolve(), *out.resolve().parents):
        raise SystemExit("a dry run never writes into benchmarks/results")
    out.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in MEASUREMENTS if not args.only or one.name in args.only]
    if not args.resume:
        for one in MEASUREMENTS:
            (out / f"{one.name}.json").unlink(missing_ok=True)
        shutil.rmtree(out / TRIALS_FOLDER, ignore_errors=True)
        for page in out.glob("document-*.json"):
            page.unlink()
    for left in out.glob(".work-*"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".work-", dir=out) as temporary:
        images = _prepare(args.images, Path(temporary), 24 if args.tiny else 400)
        ended = _run_all(chosen, args, out, images)
    document = _document(out, args)
    (out / "awaits_gpu.md").write_text(awaits_gpu.render(document), encoding="utf-8")
    print(out / "awaits_gpu.md")
    if args.write and not args.dry_run:
        _merge(document, out)
    return 0 if ended else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="end within so many minutes (default: 9)")
    parser.add_argument("--resume", action="store_true", help="keep the results that are there")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in MEASUREMENTS], metavar="NAME")
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample, or made ones)")
    parser.add_argument("--out", help="folder of the results (default: gpu-results; of a dry run a new temporary folder)")
    parser.add_argument("--dry-run", action="store_true", help="all of it in tiny, on the CPU")
    parser.add_argument("--write", action="store_true", help="merge the results into the repository, and render the pages")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--limit-s", type=float, default=600.0, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # in the child: the name; --out is the file, --images the folder
    return parser


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _prepare(images: str | None, root: Path, limit: int) -> Path:
    """Make an image folder and a packed dataset of photographs: those given, the sample, or made ones."""
    import headrace

    try:
        files = photographs(images, limit)
    except SystemExit:
        if images:
            raise
        from headrace.images.photographs import make

        make(root / "made")
        files = sorted((root / "made").rglob("*.jp*g"))[:limit]
    for number, path in enumerate(files):
        target = root / "folder" / f"c{number % 4}" / f"{number:05d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    headrace.pack(root / "folder", root / "pack")
    return root


def _run_all(chosen: list[Measurement], args: argparse.Namespace, out: Path, images: Path) -> bool:
    """Run each measurement that has no result yet. Return whether all have one now."""
    end, whole = time.monotonic() + 60 * args.minutes, True
    for one in chosen:
        file = out / f"{one.name}.json"
        if file.exists() and json.loads(file.read_text(encoding="utf-8"))["status"] == "measured":
            continue
        left_s = end - time.monotonic()
        if left_s < LEAST_S:
            print(f"{one.name}: no time left; --resume goes on", file=sys.stderr)
            whole = False
            continue
        print(f"{one.name}: {one.decides}", file=sys.stderr, flush=True)
        began = time.monotonic()
        reason = _run_one(one, args, file, images, min(one.limit_s, left_s))
        if reason is not None:
            partial = _partial(file)
            rows = json.loads(partial.read_text(encoding="utf-8")) if partial.exists() else []
            before = json.loads(file.read_text(encoding="utf-8")).get("rows", []) if file.exists() else []
            rows = max(rows, before, key=len)  # a shorter time limit does not replace what an earlier run found
            _save(file, _result(one.name, args, status="failed", reason=reason, rows=rows))
            whole = False
        print(f"  {reason or 'measured'}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return whole


def _run_one(one: Measurement, args: argparse.Namespace, file: Path, images: Path, limit_s: float) -> str | None:
    """Run a measurement in a process group of its own. Return None, or why it has no result."""
    command = [
        sys.executable,
        __file__,
        "--measure",
        one.name,
        "--device",
        args.device,
        "--out",
        str(file),
        "--images",
        str(images),
        "--limit-s",
        str(limit_s),
    ]
    command += ["--tiny"] if args.tiny else []
    _partial(file).unlink(missing_ok=True)
    log = file.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=errors, stderr=errors, start_new_session=True)
        try:
            code = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return f"took longer than {limit_s:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code == 0:
        return None
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"ended with code {code}"


def _partial(file: Path) -> Path:
    """Return the file of the rows of a measurement that is under way."""
    return file.with_suffix(".partial")


def _measure(args: argparse.Namespace) -> int:
    """Run one measurement here, in the child."""
    from gpu import feed, job_measures, measures
    from gpu.setting import Run

    end_with_parent()  # else it would measure on, and leave its result, after the runner was killed
    name, out = args.measure, Path(args.out)
    seconds = 0.05 if args.tiny else 3.0
    run = Run(args.device, args.tiny, Path(args.images), seconds, _partial(out), kept=out.parent, limit_s=args.limit_s)
    module = next(module for module in (measures, feed, job_measures) if name in module.__all__)
    try:
        rows = getattr(module, name)(run)
    finally:
        for document in run.folder.glob("document-*.json"):
            shutil.copyfile(document, out.with_name(document.name))
    _save(out, _result(name, args, status="measured", rows=rows))
    _partial(out).unlink(missing_ok=True)
    return 0


def _result(name: str, args: argparse.Namespace, **parts: Any) -> dict[str, Any]:
    """Return what a measurement leaves: its rows, and where and when they were measured."""
    found = record.document(name, PACKAGES, settings={})
    return {
        **found,
        "command": f"{awaits_gpu.COMMAND} ARGS='--only {name}'",
        "device": args.device,
        "is_tiny": args.tiny,
        **parts,
    }


def _save(file: Path, found: dict[str, Any]) -> None:
    atomic_write(file, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _document(out: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the document of the page: all results in the folder."""
    found = {}
    for one in MEASUREMENTS:
        file = out / f"{one.name}.json"
        if file.exists():
            found[one.name] = json.loads(file.read_text(encoding="utf-8"))
    document = record.document("awaits_gpu", PACKAGES, settings={"dry_run": bool(args.dry_run)}, measurements=found)
    document["command"] = shlex.join(["python", "benchmarks/gpu/run.py", *sys.argv[1:]])
    return document


def _merge(document: dict[str, Any], out: Path) -> None:
    """Add the results to those of the repository, and render all pages. What failed does not replace what was measured."""
    file = DATA / "awaits_gpu.json"
    before = json.loads(file.read_text(encoding="utf-8"))["measurements"] if file.exists() else {}
    kept = {name for name, one in before.items() if one["status"] == "measured"}
    new = {name: one for name, one in document["measurements"].items() if one["status"] == "measured" or name not in kept}
    document = {**document, "measurements": before | new}
    _save(file, document)
    for page in out.glob("document-*.json"):
        _replace(DATA / page.name.removeprefix("document-"), json.loads(page.read_text(encoding="utf-8")))
    write(measured())


def _replace(file: Path, found: dict[str, Any]) -> None:
    """Write the document of a page of its own. One with fewer of its cells does not replace one with more."""
    if found["settings"].get("dropped") and file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before.get("experiments") and before["settings"].get("dropped", 0) < found["settings"]["dropped"]:
            return
    _save(file, found)


if __name__ == "__main__":
    sys.exit(main())
