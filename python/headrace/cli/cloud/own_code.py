"""The options of `headrace launch` for a script of the user's own, in place of `headrace train`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.datasets.open import local_copy
from headrace.datasets.sources.remote.store import is_url
from headrace.errors import SourceError, UsageError
from headrace.launch.in_container.container import CONTAINER_BASE, decoded
from headrace.launch.in_container.source_archive import REMEDY, fetch_source, is_source_archive, named_source
from headrace.launch.job_request.request_code import own_entry
from headrace.launch.local.store import LocalStore
from headrace.launch.own_code.source import MOST_BYTES, Source, Under
from headrace.launch.own_code.travelling import temporary_folder
from headrace.system.text.redaction import without_url_secrets

__all__ = ["add_own_code_options", "data_channel", "own_source", "source_folder", "source_of_request"]

DEFAULT_ENTRY = "train.py"

MOST_CHARACTERS = 512
"""Characters of a value in `Environment` of CreateTrainingJob."""

ARCHIVES = (".tar.gz", ".tgz", ".tar")
"""Endings of URLs of archives; another URL is that of a folder."""


def add_own_code_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the script and say how it is started."""
    group = parser.add_argument_group("a script of your own, in place of headrace train; after --: further arguments of it")
    group.add_argument("--script", type=Path, metavar="FILE", help="a script that needs no other file")
    group.add_argument(
        "--source-dir",
        metavar="DIR",
        help="folder of the script, which travels with its requirements.txt; or a tar.gz of one, or the URL of either",
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


def own_source(args: argparse.Namespace, request: Mapping[str, Any] | None = None) -> Source | None:
    """Return the script that takes the place of `headrace train`; None where the options name none.

    request: a valid one of `--request`, which may name the script. Raises `UsageError` for options that contradict, and for a
    script that is not there unless `--dry-run` is given; `SourceError` for an archive that is not there.
    """
    torchrun = args.launcher == "torchrun"
    if args.script is not None and args.source_dir is not None:
        raise UsageError("--script and --source-dir both name the code of the job", hint="leave one out")
    if request is not None and not own_entry(request) and args.script is None:
        _refuse_own_commands(args)
        return None
    program, address = _named(request)
    if args.script is None and args.source_dir is None:
        given = {"--entry": args.entry}
        if not (address and args.target == "local"):
            given |= {"--under": args.under, "-- ARGUMENTS": args.arguments, "--launcher": torchrun}
        if wrong := [option for option, value in given.items() if value]:
            raise UsageError(f"{wrong[0]} is for a script of your own", hint="--source-dir DIR names its folder")
        return None
    _check_values(args)
    if args.script is not None:
        if not args.dry_run and not args.script.is_file():
            raise UsageError(f"--script: there is no file {args.script}", hint="--source-dir DIR is the folder of a script")
        return Source.of_file(args.script, args.under or "plain", args.arguments, torchrun=torchrun)
    entry = args.entry or program or DEFAULT_ENTRY
    return _source(args, source_folder(args.source_dir), args.source_dir, entry, args.under or "run")


def _check_values(args: argparse.Namespace) -> None:
    """Raise `UsageError` for values that would never reach the script, or the job."""
    if args.wheel is not None and args.source_dir is not None:
        raise UsageError("--wheel: headrace travels with --source-dir, as installed here", hint="leave it out")
    for name in (pair.partition("=")[0] for pair in args.hyperparameter):
        if name.startswith("sagemaker_"):
            hint = "rename it; --launcher torchrun and --entry say how the script starts"
            raise UsageError(f"--hyperparameter {name}: names with sagemaker_ are the toolkit's and no arguments", hint=hint)
    for name in (pair.partition("=")[0] for pair in args.env):
        if name.startswith("SM_"):
            hint = "give it another name, or --hyperparameter KEY=VALUE"
            raise UsageError(f"--env {name}: SM_ variables are set by SageMaker's toolkit, to its own values", hint=hint)
    if (length := len(json.dumps(args.arguments))) > MOST_CHARACTERS:
        words = f"-- ARGUMENTS: {length} characters, and a variable of a job holds {MOST_CHARACTERS}"
        raise UsageError(words, hint="pass them as --hyperparameter KEY=VALUE, or in a file of the source")


def source_of_request(args: argparse.Namespace, request: Mapping[str, Any], store: LocalStore) -> Source | None:
    """Return the source that a request of SageMaker's SDK 2 names, unpacked; None where it names none.

    Raises `SourceError` for an archive that is not here.
    """
    program, address = _named(request)
    if not (program and address and own_entry(request)) or "HEADRACE_SCRIPT" in (request.get("Environment") or {}):
        return None
    place = _place(address, request, store)
    if not (place and Path(place).exists()):
        if not (args.fetch and is_url(address)):
            raise SourceError(f"the script {program} is in {address}, which is not here", hint=REMEDY)
        place = address
    fetch_source(place, folder := temporary_folder())
    return _source(args, folder, address, program, args.under or "plain")


def _place(address: str, request: Mapping[str, Any], store: LocalStore) -> str:
    """Return the local path that stands for the address of an archive: an object, or a file of a channel."""
    if is_url(address):
        return str(store.path(address)) if address.startswith("s3://") else ""
    for channel in request.get("InputDataConfig") or []:
        below = f"{CONTAINER_BASE}/input/data/{channel['ChannelName']}/"
        if address.startswith(below) and "S3DataSource" in channel["DataSource"]:
            prefix = channel["DataSource"]["S3DataSource"]["S3Uri"].rstrip("/")
            return str(store.path(f"{prefix}/{address.removeprefix(below)}"))
    return ""


def _named(request: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the script and the archive that a request names, or empty texts."""
    return named_source(decoded((request or {}).get("HyperParameters") or {}))


def _refuse_own_commands(args: argparse.Namespace) -> None:
    """Raise `UsageError` for options that cannot change a container that starts a command of its own."""
    given = {"--under": args.under in ("run", "diagnose"), "--entry": args.entry, "-- ARGUMENTS": args.arguments}
    given["--launcher"] = args.launcher == "torchrun"
    if wrong := [option for option, value in given.items() if value]:
        hint = 'headrace.launch.under(trainer, "run") before the request is made starts its script under headrace'
        raise UsageError(f"{wrong[0]}: the request starts a command of its own", hint=hint)


def source_folder(place: str) -> Path:
    """Return the folder with a source: that folder, or the copy of one at a URL, or what an archive holds."""
    if is_url(place) and not place.endswith(ARCHIVES):
        return local_copy(place)
    path = Path(place)
    if not place:
        raise UsageError("--source-dir is empty", hint="name the folder that holds the script, such as .")
    if not is_url(place) and not path.is_file():
        return path
    if not is_url(place) and not is_source_archive(path):
        raise UsageError(f"--source-dir: {place} is a file", hint="--script FILE is a script that needs no other file")
    fetch_source(place, folder := temporary_folder())
    return folder


def _source(args: argparse.Namespace, folder: Path, shown: str, entry: str, under: Under) -> Source:
    source = Source(
        folder, entry, under, arguments=args.arguments, torchrun=args.launcher == "torchrun", shown=without_url_secrets(shown)
    )
    source.check()
    if source.contents.size_bytes > MOST_BYTES:
        raise UsageError(
            f"--source-dir: {source.words()}: data do not travel with the code", hint="move them out, and name them by --data"
        )
    return source


def data_channel(source: Source | None) -> str:
    """Return the channel of `--data`: "train" for `headrace train`, "training" for other scripts, as `fit("s3://…")` has it."""
    return "train" if source is None or source.alone else "training"
