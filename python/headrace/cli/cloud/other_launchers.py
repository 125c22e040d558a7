"""`headrace launch slurm|skypilot|ssh|batch|processing`: write a file that starts the work elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headrace.cli.cloud.own_code import own_source
from headrace.cli.shared import output
from headrace.datasets.sources.remote.store import is_url
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
from headrace.launch.own_code.travelling import write_copy
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_files import check_below, check_unnamed_folder
from headrace.system.text.redaction import without_url_secrets

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
    if args.source_dir is not None or args.under in ("run", "diagnose"):
        return _own_training(args, name, options, environment)
    if args.launcher != "none" or args.entry:
        raise UsageError(f"launch {args.target} starts a script by torchrun", hint="--source-dir DIR --entry FILE names it")
    if args.script is None and not (args.model and args.data):
        raise UsageError(f"launch {args.target} needs --model and --data", hint="or --source-dir DIR --entry FILE")
    if args.script is not None:
        words = [str(args.script), *args.arguments]
        given = {**({"data": args.data} if args.data else {}), **options}
    else:
        words = ["-m", "headrace", "train"]
        places = {"data": args.data, **({"val": args.val} if args.val else {}), "out": f"results/{name}", "resume": "auto"}
        given = {**places, **options}
    wheel = args.wheel.absolute() if args.wheel is not None else None
    if args.target == "skypilot" and wheel is None:
        output.log("remark: the machines install headrace by pip, and no package index has it: --wheel FILE brings one")
    return replace(_machines(args, name, [*words, *_as_options(given)], environment), wheel=wheel)


def _own_training(args: argparse.Namespace, name: str, options: Mapping[str, str], environment: Mapping[str, str]) -> Training:
    """Copy the script's folder beside `--out`, with headrace, and return the training that starts there.

    The script finds SageMaker's variables: data in SM_CHANNEL_TRAINING, places for results in SM_MODEL_DIR and
    SM_OUTPUT_DATA_DIR, where the report lands.
    """
    if args.out is None:
        raise UsageError(f"launch {args.target} copies the script's folder beside --out", hint="--out FILE")
    if args.data is not None and is_url(args.data):
        hint = "mount it, and name the folder where the machines see it"
        raise UsageError(f"--data {without_url_secrets(args.data)}: the script of a folder reads files", hint=hint)
    source = own_source(args)
    assert source is not None  # --script or --source-dir is given, or `own_source` has said that --under needs one
    source = replace(source, torchrun=True)
    source.check()
    code = (args.out.parent / f"{name}-code").absolute()
    places = {"SM_MODEL_DIR": f"results/{name}/model", "SM_OUTPUT_DATA_DIR": f"results/{name}/output"}
    try:
        check_unnamed_folder(code)
        write_copy(source, code)
        for place in places.values():
            check_below(code, code / place)
            (code / place).mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise _unwritten(Path(reason.filename or code), reason) from None
    output.log(source.words())
    output.log(f"copied to {code}, with headrace: change the script, and run this command again")
    requirements = Path("requirements.txt") in source.contents.files
    if requirements and args.target != "skypilot":
        output.log("remark: install the packages of its requirements.txt where the machines see them")
    channel = {"SM_CHANNEL_TRAINING": str(Path(args.data).absolute())} if args.data else {}
    words = [source.program, *args.arguments, *_as_options(options)]
    job = _machines(args, name, words, {**places, **channel, **environment})
    return replace(job, code=code, requirements=requirements)


def _as_options(given: Mapping[str, str]) -> list[str]:
    return [word for key, value in given.items() for word in ([f"--{key}", value] if value else [f"--{key}"])]


def _machines(args: argparse.Namespace, name: str, words: list[str], environment: Mapping[str, str]) -> Training:
    return Training(name, words, args.count, args.gpus, args.max_hours, args.instance, args.spot, args.hosts, environment)


def _packing(args: argparse.Namespace, name: str, options: Mapping[str, str]) -> Packing:
    needed = {"--data": args.data, "--packed": args.packed, "--image": args.image, "--role": args.role}
    if missing := [option for option, value in needed.items() if not value]:
        raise UsageError(f"launch {args.target} needs {', '.join(missing)}", hint="the Dockerfile of headrace makes an image")
    more = {"instance": args.instance} if args.instance else {}
    return Packing(
        name,
        args.data,
        args.packed,
        args.image,
        args.role,
        units=args.units,
        options=_as_options(options),
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
        raise _unwritten(path, reason) from None


def _unwritten(path: Path, reason: OSError) -> HeadraceError:
    return HeadraceError(f"cannot write {path}: {reason.strerror or reason}", hint="--out FILE names another place")
