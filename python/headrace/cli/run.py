"""`headrace run`: a training script, unmodified, with its image loading replaced where that is provably the same job."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from headrace.accelerate.settings import HOOK, Settings
from headrace.attach.launch import spawn
from headrace.cli import output

SUMMARY = "run a PyTorch script unmodified, its image loading done by headrace where that is the same job"
EXAMPLE = """
headrace run --check --explain -- python train.py --data /data/imagenet
HEADRACE=off headrace run -- python train.py   # as if headrace were not there
"""
TAKES_COMMAND = True

#: How many images `--check` compares for each loader.
CHECKED_IMAGES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headrace run`."""
    parser.add_argument(
        "--check",
        nargs="?",
        type=_count,
        const=CHECKED_IMAGES,
        default=0,
        metavar="N",
        help=f"first compare both ways of loading on N images (default {CHECKED_IMAGES}) of each loader; a loader that "
        "differs is left alone",
    )
    parser.add_argument("--explain", action="store_true", help="print what runs where for each loader taken over")
    parser.add_argument(
        "--threads", type=_count, metavar="N", help="native threads per process (default: the script's num_workers)"
    )
    parser.add_argument(
        "--index-cache",
        metavar="FOLDER|off",
        help="where indexes of JPEGs are kept, with which a later run decodes faster from its first epoch on "
        "(default: ~/.cache/headrace/jpeg-index; off: nowhere)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit code is the command's own (128 + n if signal n ended it)."""
    with tempfile.TemporaryDirectory(prefix="headrace-run-") as folder:
        settings = Settings(
            threads=args.threads, check=args.check, explain=args.explain, folder=Path(folder), index_cache=args.index_cache
        )
        off = Settings.read().off
        finished = spawn(args.command, hooks=() if off else (HOOK,), env=settings.variables())
        loaders = _loaders(Path(folder))
    code = finished.returncode if finished.returncode >= 0 else 128 - finished.returncode
    seconds = finished.ended_s - finished.started_s
    document = {"command": args.command, "exit_code": code, "seconds": seconds, "off": off, "loaders": loaders}
    output.emit(args, document, lambda: _remark(off, loaders))
    return code


def _remark(off: bool, loaders: list[dict[str, object]]) -> None:
    if off:
        output.log("headrace run: HEADRACE=off, the script ran as it is")
    elif not loaders:
        output.log("headrace run: the script iterated over no torch.utils.data.DataLoader that could be seen")
        output.log("(it is for PyTorch only; `headrace diagnose` times TensorFlow's input as well)")


def _loaders(folder: Path) -> list[dict[str, object]]:
    """What every process wrote about its loaders, in the order of process numbers and then of time."""
    return [
        json.loads(line)
        for file in sorted(folder.glob("loaders-*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return int(text)
