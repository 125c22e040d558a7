"""`headrace launch slurm|skypilot|ssh|batch|processing`: write a file that starts the work elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from headrace.cli.shared import output
from headrace.errors import HeadraceError, UsageError
from headrace.launch.other_launchers import (
    Packing,
    Training,
    batch_script,
    processing_script,
    skypilot_task,
    slurm_script,
    ssh_script,
)
from headrace.system.files.atomic_write import atomic_write

__all__ = ["OTHER_LAUNCHERS", "add_other_launcher_options", "write_launcher"]

TRAINING = {"slurm": slurm_script, "skypilot": skypilot_task, "ssh": ssh_script}
PACKING = {"batch": batch_script, "processing": processing_script}
OTHER_LAUNCHERS = (*TRAINING, *PACKING)


def add_other_launcher_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only the written files need."""
    group = parser.add_argument_group("files for other launchers")
    group.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of each machine (default: 1)")
    group.add_argument("--hosts", nargs="+", default=[], metavar="HOST", help="ssh: machines; the first is the master")
    group.add_argument("--packed", metavar="PLACE", help="batch, processing: where the packed dataset goes")
    group.add_argument("--units", type=int, default=1, metavar="N", help="batch: jobs of the array")
    group.add_argument("--queue", metavar="NAME", help="batch: job queue")
    group.add_argument(
        "--efs", metavar="ID", help="batch: EFS file system in which the jobs meet, such as fs-0123456789abcdef0"
    )


def write_launcher(args: argparse.Namespace, options: Mapping[str, str], environment: Mapping[str, str]) -> int:
    """Write the script or task of another launcher to `--out`, or print it. options: of the training or packing, by name."""
    name = args.name or f"headrace-{'train' if args.target in TRAINING else 'pack'}"
    if args.target in TRAINING:
        text = TRAINING[args.target](_training(args, name, options, environment))
    else:
        text = PACKING[args.target](_packing(args, name, options))
    if args.out:
        _write(args.out, text)
    document = {"target": args.target, "name": name, "text": text, "file": str(args.out) if args.out else None}
    output.emit(args, document, lambda: _show(text, args.out))
    return 0


def _show(text: str, path: Path | None) -> None:
    for line in [f"written to {path}"] if path else text.splitlines():
        output.say(line)


def _training(args: argparse.Namespace, name: str, options: Mapping[str, str], environment: Mapping[str, str]) -> Training:
    if args.under not in (None, "plain") or args.launcher != "none" or args.entry:
        raise UsageError(f"launch {args.target} starts a script by torchrun, as it is", hint="leave out --under and --launcher")
    if args.source_dir is not None:
        raise UsageError(
            f"launch {args.target} takes no --source-dir: every machine sees the script's folder", hint="--script FILE names it"
        )
    if args.script is None and not (args.model and args.data):
        raise UsageError(f"launch {args.target} needs --model and --data", hint="or --script FILE")
    if args.script is not None:
        words = [str(args.script), *args.arguments]
        given = {**({"data": args.data} if args.data else {}), **options}
    else:
        words = ["-m", "headrace", "train"]
        places = {"data": args.data, **({"val": args.val} if args.val else {}), "out": f"results/{name}", "resume": "auto"}
        given = {**places, **options}
    for key, value in given.items():
        words += [f"--{key}", value] if value else [f"--{key}"]
    wheel = args.wheel.absolute() if args.wheel is not None else None
    if args.target == "skypilot" and wheel is None:
        output.log("remark: the machines install headrace by pip, and no package index has it: --wheel FILE brings one")
    return Training(
        name, words, args.count, args.gpus, args.max_hours, args.instance, args.spot, args.hosts, environment, wheel
    )


def _packing(args: argparse.Namespace, name: str, options: Mapping[str, str]) -> Packing:
    needed = {"--data": args.data, "--packed": args.packed, "--image": args.image, "--role": args.role}
    if missing := [option for option, value in needed.items() if not value]:
        raise UsageError(f"launch {args.target} needs {', '.join(missing)}", hint="the Dockerfile of headrace makes an image")
    words = [word for key, value in options.items() for word in ([f"--{key}", value] if value else [f"--{key}"])]
    more = {"instance": args.instance} if args.instance else {}
    return Packing(
        name,
        args.data,
        args.packed,
        args.image,
        args.role,
        units=args.units,
        options=words,
        region=args.region,
        hours=args.max_hours,
        queue=args.queue,
        file_system=args.efs,
        **more,
    )


def _write(path: Path, text: str) -> None:
    try:
        atomic_write(path, text)
    except OSError as reason:
        raise HeadraceError(
            f"cannot write {path}: {reason.strerror or reason}", hint="--out FILE names another place"
        ) from None
