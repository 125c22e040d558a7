"""`headrace run`: run a training script unmodified, and load its images with headrace where that gives the same job.

`headrace/accelerate/hook.py` (`_decide`) decides for each DataLoader, inside the script's process.
`headrace/accelerate/whole/folders.py` holds the rules of that decision.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from headrace.accelerate.runtime import data_map
from headrace.accelerate.settings import HOOK, WAITS, Settings
from headrace.attach.launch import spawn
from headrace.cli.shared import output
from headrace.errors import UsageError
from headrace.packing.copied_files import opened_record
from headrace.system.files.scratch_folder import scratch_folder
from headrace.system.text.redaction import redact_words
from headrace.system.text.sizes import count_text, percent_text

SUMMARY = "run a PyTorch script unmodified, and load its images with headrace where that gives the same job"
EXAMPLE = """
headrace run --check --explain -- python train.py --data /data/imagenet
headrace run --data-map /data/photos=/fast/photos -- python train.py
HEADRACE=off headrace run -- python train.py   # run the script as it is
"""
TAKES_COMMAND = True

CHECKED_IMAGES = 32
"""`--check` compares this many images of each loader."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace run`."""
    parser.add_argument(
        "--check",
        nargs="?",
        type=_count,
        const=CHECKED_IMAGES,
        default=0,
        metavar="N",
        help=f"first compare both ways of loading on N images of each loader (default: {CHECKED_IMAGES}); leave a loader alone "
        "if they differ",
    )
    parser.add_argument(
        "--explain", action="store_true", help="print the transforms of each loader taken over, and where each one runs"
    )
    parser.add_argument(
        "--threads", type=_count, metavar="N", help="native threads per process (default: the script's num_workers)"
    )
    parser.add_argument(
        "--data-map",
        action="append",
        type=_pair,
        default=[],
        metavar="A=B",
        help="read the script's files below folder A from the same places below B, such as a copy that "
        "`headrace pack --layout folder` made",
    )
    parser.add_argument(
        "--index-cache",
        metavar="FOLDER|off",
        help="folder of the JPEG indexes, with which a later run decodes faster from its first epoch on "
        "(default: ~/.cache/headrace/jpeg-index; off: keep none)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command. Return its exit code, or 128 + n if signal n ended it."""
    for source, copy in args.data_map:
        output.log(_mapping_line(source, copy))
    with scratch_folder("run") as folder:
        settings = Settings(
            threads=args.threads, check=args.check, explain=args.explain, folder=folder, index_cache=args.index_cache
        )
        off = Settings.read().off
        finished = spawn(
            args.command, hooks=() if off else (HOOK,), env={**settings.variables(), **data_map.variables(args.data_map)}
        )
        loaders, outcome = _loaders(folder), _outcome(folder)
    code = finished.exit_code
    seconds = finished.ended_s - finished.started_s
    document = {
        "command": redact_words(args.command),
        "exit_code": code,
        "seconds": seconds,
        "off": off,
        "loaders": loaders,
        "outcome": outcome,
    }
    output.emit(args, document, lambda: _log_remarks(off, loaders, outcome, failed=code != 0))
    return code


def _mapping_line(source: str, copy: str) -> str:
    """Return a line on the pixels under a pair of `--data-map`. Raises `UsageError` for no folder or an unfinished copy."""
    for folder in (source, copy):
        if not Path(folder).is_dir():
            raise UsageError(f"--data-map: {folder} is not a folder", hint="--data-map A=B needs two folders")
    words = f"headrace run: files of {source} are read from {copy}"
    try:
        with opened_record(Path(copy)) as (header, entries):
            reduced = sum(entry.kind == "reduced" for entry in entries)
    except FileNotFoundError:
        return f"{words}, which has no record of a copy: that its files are the same is not checked"
    if not header["complete"]:
        raise UsageError(
            f"--data-map: {copy} is an unfinished copy, made by `headrace pack`",
            hint="give the same `headrace pack` command again: it continues",
        )
    return f"{words}: " + (f"{count_text(reduced, 'JPEG')} reduced, so other pixels" if reduced else "the same pixels")


def _pair(text: str) -> tuple[str, str]:
    source, separator, copy = text.partition("=")
    if not (source and separator and copy):
        raise argparse.ArgumentTypeError(f"{text!r} is not A=B, such as /data/photos=/fast/photos")
    return source, copy


def _log_remarks(off: bool, loaders: list[dict[str, object]], outcome: dict[str, Any] | None, *, failed: bool) -> None:
    """Log the rate of the run, or why no loader was taken over. Log nothing for a failed command that made no loader."""
    if outcome is not None:
        output.log(_outcome_line(outcome))
    if off:
        output.log("headrace run: HEADRACE=off, so the script ran as it is")
    elif not loaders and not failed:
        output.log("headrace run: no torch.utils.data.DataLoader was iterated in the script")
        output.log("(headrace run is for PyTorch only; headrace diagnose measures TensorFlow input too)")


def _loaders(folder: Path) -> list[dict[str, object]]:
    """Return the decisions that every process wrote about its loaders, ordered by process and then by time."""
    return [
        json.loads(line)
        for file in sorted(folder.glob("loaders-*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]


def _outcome(folder: Path) -> dict[str, Any] | None:
    """Return images, seconds and waits of the loader that rank 0 iterated longest, of those taken over; None without one."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob(WAITS.format("*")))]
    return max((one for one in found if one["rank"] in (None, "0")), key=lambda one: one["seconds"], default=None)


def _outcome_line(outcome: dict[str, Any]) -> str:
    """Return the last line of a run: rate of the input, how long the loop waited, and what was saved if that was measured."""
    rate = f"{outcome['images'] / outcome['seconds']:,.0f} img/s"
    if not outcome["images"]:
        rate = f"{outcome['batches'] / outcome['seconds']:,.1f} batches/s"
    line = (
        f"headrace run: {outcome['dataset']}: input {rate}; the loop waited {percent_text(outcome['wait_share'])} of the time"
    )
    if outcome["item_cpu_share"] is None or outcome["item_cpu_share"] >= 1:
        return line
    saved, items = percent_text(1 - outcome["item_cpu_share"]), outcome["measured_items"]
    return f"{line}; native decode saved {saved} of the items' CPU time (measured on {items} items each way)"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)
