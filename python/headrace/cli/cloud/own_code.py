"""The options of `headrace launch` for a script of the user's own, in place of `headrace train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.errors import UsageError
from headrace.launch.own_code.source import MOST_BYTES, Source

__all__ = ["add_own_code_options", "data_channel", "own_source"]

DEFAULT_ENTRY = "train.py"


def add_own_code_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the script and say how it is started."""
    group = parser.add_argument_group("a script of your own, in place of headrace train; after --: further arguments of it")
    group.add_argument("--script", type=Path, metavar="FILE", help="a script that needs no other file")
    group.add_argument(
        "--source-dir", type=Path, metavar="DIR", help="folder of the script: it travels, with its requirements.txt"
    )
    group.add_argument("--entry", metavar="FILE", help=f"the script in --source-dir (default: {DEFAULT_ENTRY})")
    group.add_argument(
        "--under",
        choices=("run", "diagnose", "plain"),
        help="start the script under headrace run or diagnose, or as it is (default: run with --source-dir, else plain)",
    )
    group.add_argument(
        "--launcher", choices=("torchrun", "none"), default="none", help="torchrun: once for each GPU (default: none)"
    )


def own_source(args: argparse.Namespace) -> Source | None:
    """Return the script that takes the place of `headrace train`; None where the options name none.

    Raises `UsageError` for options that contradict, and for a script that is not there unless `--dry-run` is given.
    """
    torchrun = args.launcher == "torchrun"
    if args.script is not None and args.source_dir is not None:
        raise UsageError("--script and --source-dir both name the code of the job", hint="leave one out")
    if args.script is None and args.source_dir is None:
        given = {"--entry": args.entry, "--under": args.under, "-- ARGUMENTS": args.arguments}
        given["--launcher"] = torchrun
        if wrong := [option for option, value in given.items() if value]:
            raise UsageError(f"{wrong[0]} is for a script of your own", hint="--source-dir DIR names its folder")
        return None
    if args.script is not None:
        if not args.dry_run and not args.script.is_file():
            raise UsageError(f"--script: there is no file {args.script}")
        return Source.of_file(args.script, args.under or "plain", args.arguments, torchrun=torchrun)
    source = Source(args.source_dir, args.entry or DEFAULT_ENTRY, args.under or "run", False, args.arguments, torchrun)
    source.check()
    if source.contents.size_bytes > MOST_BYTES:
        raise UsageError(
            f"--source-dir: {source.words()}: data do not travel with the code", hint="move them out, and name them by --data"
        )
    return source


def data_channel(source: Source | None) -> str:
    """Return the channel of `--data`: "train" for `headrace train`, "training" for other scripts, as `fit("s3://…")` has it."""
    return "train" if source is None or source.alone else "training"
