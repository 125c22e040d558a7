"""`headrace launch`: check, price, send and follow a SageMaker training job, or run it on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headrace._native import __version__
from headrace.cli.cloud.followed import add_follow_options, follow_to_the_end, job_of_name, show_end
from headrace.cli.cloud.other_launchers import OTHER_LAUNCHERS, add_other_launcher_options, write_launcher
from headrace.cli.cloud.own_code import (
    add_own_code_options,
    data_channel,
    own_source,
    source_folder,
    source_of_request,
)
from headrace.cli.shared import output
from headrace.cli.shared.number_types import positive_number
from headrace.cli.shared.price_options import prices_of_job
from headrace.cli.shared.unnamed_folder import unnamed_folder
from headrace.datasets.open import local_copy
from headrace.datasets.sources.remote.store import is_url
from headrace.errors import HeadraceError, UsageError
from headrace.launch.job_request.request import CODE, Channel, InstanceGroup, TrainingJob, build_request
from headrace.launch.job_request.request_code import chosen_code, container_words, made_by_headrace, own_entry
from headrace.launch.job_request.validate import check_request, refuse_mistakes
from headrace.launch.local.job import GRACE_S, STORE, Interruption, LocalJob, run_local
from headrace.launch.local.store import LocalStore
from headrace.launch.own_code.source import Source
from headrace.launch.own_code.travelling import ARCHIVE, needed_glibc, write_archive
from headrace.launch.sagemaker.aws import aws_client
from headrace.launch.sagemaker.follow import prediction_tags, submit, upload_code
from headrace.launch.sagemaker.images import check_image
from headrace.launch.sagemaker.plan import ExpectedCost, Work, expected_cost
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.regular_file import read_regular
from headrace.system.text.json import parse_json
from headrace.system.text.redaction import without_url_secrets
from headrace.system.text.sizes import count_text, size_text
from headrace.training.stop_signal import StopRequest

TAKES_ARGUMENTS = True
SUMMARY = "check, price, send and follow a SageMaker training job, or run it on this machine"
INTERRUPTED = ""
EXAMPLE = """
headrace launch sagemaker --model resnet50 --data s3://bucket/train --instance ml.g5.xlarge --role ARN --bucket bucket --dry-run
headrace launch sagemaker --request job.json --dry-run       # check a request that something else wrote
headrace launch sagemaker --request job.json                 # ask, send it, and follow the job
headrace launch follow NAME                                  # come back to it; headrace launch stop NAME ends it
headrace launch local --request job.json --channel train=photos/ --out job          # run it here, as SageMaker would
headrace launch local --source-dir project --entry train.py --under run --data photos/ --hyperparameter lr=0.1 --out job
headrace launch local --model resnet18 --data photos/ --spot --interrupt 60 --out job
headrace launch slurm --model resnet50 --data /data/imagenet --count 2 --gpus 8 --out train.sh      # a file to read and run
"""

LOCAL_ROLE, LOCAL_INSTANCE = "arn:aws:iam::000000000000:role/local", "ml.m5.xlarge"
"""Placeholders in the request of a local job, which needs no role and no instance type."""

WHEEL = re.compile(r"[A-Za-z0-9_.]+-[^-]+(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl")
"""Name, version, build, Python, ABI, platform: PEP 427."""

WHEEL_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_")
"""The version of the C library in a wheel's name: PEP 600."""

WHEEL_HINT = "make wheel in a checkout of headrace writes one for --wheel"

MOST_BYTES = 1 << 20
"""Largest request that is read: with every field at its longest, one has less."""

PAIR = re.compile(r"([^=]+)=(.*)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace launch`."""
    parser.add_argument(
        "target",
        choices=("sagemaker", "local", "follow", "stop", *OTHER_LAUNCHERS),
        metavar="target",
        help="sagemaker; local: this machine; follow or stop: a job on SageMaker; slurm, skypilot, ssh: write a file that "
        "starts the training there; batch, processing: one that packs images on AWS Batch or SageMaker Processing",
    )
    parser.add_argument("job", nargs="?", metavar="job", help="name of the job to follow or stop")
    parser.add_argument("--dry-run", action="store_true", help="write the request and its cost; send nothing")
    parser.add_argument(
        "--yes", action="store_true", help="send the request without asking; local: run the code that a request names"
    )
    parser.add_argument("--no-follow", action="store_true", help="end once the request is sent")
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="file for the request; local: folder of the job; follow: of its report"
    )
    parser.add_argument("--request", type=Path, metavar="FILE", help="take the whole request from a JSON file")
    _job_arguments(parser)
    add_own_code_options(parser)
    _place_arguments(parser)
    _local_arguments(parser)
    add_follow_options(parser)
    add_other_launcher_options(parser)


def _local_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("local jobs")
    group.add_argument(
        "--fetch", action="store_true", help="copy the channels without such a place from their own addresses, once"
    )
    group.add_argument(
        "--send",
        action="store_true",
        help="write checkpoints, model and output to the request's own addresses, and continue from checkpoints that are there",
    )
    group.add_argument("--store", type=Path, metavar="FOLDER", help="folder in place of S3 (default: OUT/s3)")
    group.add_argument(
        "--interrupt",
        type=positive_number,
        action="append",
        default=[],
        metavar="SECONDS",
        help="take the machines after so much training; repeat it for the attempts that follow",
    )
    group.add_argument(
        "--grace", type=positive_number, default=GRACE_S, metavar="SECONDS", help="from SIGTERM to SIGKILL (default: 120)"
    )


def _job_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job")
    group.add_argument("--name", metavar="NAME", help="name of the job (default: headrace- and the time)")
    group.add_argument("--model", metavar="NAME", help="model of headrace train")
    group.add_argument("--data", metavar="URL", help="training data: s3://…, or fs-…:/path of a file system")
    group.add_argument("--val", metavar="URL", help="validation data")
    group.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=PLACE",
        help="a channel of the job: a folder, or the URL of an object store; with --request in place of its data; repeatable",
    )
    group.add_argument("--epochs", type=positive_number, metavar="N", help="passes over the images")
    group.add_argument("--batch-size", type=int, metavar="N", help="images per step on each GPU")
    group.add_argument(
        "--hyperparameter", action="append", default=[], metavar="KEY=VALUE", help="an option of the training; may be repeated"
    )
    group.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="environment; may be repeated")
    group.add_argument("--input-mode", choices=("File", "FastFile", "Pipe"), default="FastFile", help="default: FastFile")
    group.add_argument(
        "--distribution",
        choices=("FullyReplicated", "ShardedByS3Key"),
        default="FullyReplicated",
        help="whether each host gets all objects, or a part of them (default: FullyReplicated)",
    )
    group.add_argument("--shuffle-seed", type=int, metavar="N", help="shuffle the objects of a channel")
    group.add_argument("--record-io", action="store_true", help="Pipe mode: wrap each object as a RecordIO record")
    group.add_argument("--file-system", choices=("FSxLustre", "EFS"), help="kind of the file system of --data")
    group.add_argument("--images", type=int, metavar="N", help="images of an epoch, for the expected cost")
    group.add_argument("--bytes", type=positive_number, metavar="N", help="bytes of the dataset, for the expected cost")
    group.add_argument("--objects", type=int, metavar="N", help="the same for its objects (default: one an image)")


def _place_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the machines")
    group.add_argument("--instance", metavar="TYPE", help="instance type, such as ml.g5.xlarge")
    group.add_argument("--count", type=int, default=1, metavar="N", help="instances (default: 1)")
    group.add_argument(
        "--instance-group", action="append", default=[], metavar="NAME=TYPE:N", help="a group of instances; may be repeated"
    )
    group.add_argument("--spot", action="store_true", help="managed spot training")
    group.add_argument(
        "--max-hours", type=positive_number, default=24.0, metavar="H", help="stop training after so long (default: 24)"
    )
    group.add_argument(
        "--max-wait-hours", type=positive_number, metavar="H", help="spot: training and waiting (default: twice)"
    )
    group.add_argument("--role", metavar="ARN", help="role that the job runs as")
    group.add_argument("--bucket", metavar="NAME", help="bucket for code, checkpoints and results")
    group.add_argument("--image", metavar="URI", help="container (default: AWS's PyTorch container)")
    group.add_argument(
        "--wheel",
        type=Path,
        metavar="FILE",
        help="headrace's wheel, which the machines install: no package index has headrace yet",
    )
    group.add_argument("--region", default="us-east-1", metavar="NAME", help="default: us-east-1")
    group.add_argument("--volume-gb", type=int, metavar="N", help="size of the volume (default: 100)")
    group.add_argument("--warm-pool-minutes", type=positive_number, metavar="M", help="keep the instances for the next job")
    group.add_argument("--subnets", nargs="+", default=[], metavar="ID", help="subnets of a VPC")
    group.add_argument("--security-groups", nargs="+", default=[], metavar="ID", help="security groups of a VPC")
    group.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")


def run(args: argparse.Namespace) -> int:
    """Build or read the request and check it; then price it, send it, or run it here. Or follow, stop, write a file."""
    if args.target in ("follow", "stop"):
        return job_of_name(args)
    if args.target in OTHER_LAUNCHERS and args.job is None:
        return write_launcher(args, _hyperparameters(args), _pairs(args.env, "--env"))
    if args.job is not None:
        raise UsageError(f"launch {args.target} takes no job name, but {args.job} is given", hint="--name names a new job")
    _check_wheel(args)
    source = None if args.request else own_source(args)
    request = _read(args.request) if args.request else build_request(_job(args, source))
    refuse_mistakes(check_request(request, region=args.region), output.log)
    source = own_source(args, request) if args.request else source
    if args.request and args.target == "sagemaker" and source is None and ARCHIVE in " ".join(container_words(request)):
        hint = "add --source-dir DIR --entry FILE, as when the request was made"
        raise UsageError(f"{args.request} starts a script of yours, which does not travel with it", hint=hint)
    if args.request and source is not None:
        request["Environment"] = {**(request.get("Environment") or {}), **source.variables()}
    if args.target == "local" and not args.dry_run:
        return _run_here(args, request, source)
    if args.target == "sagemaker":
        _check_image(args, request, source)
    cost = expected_cost(request, _work(args), prices_of_job(args.region))
    if args.out:
        _write(args.out, request)
    document: dict[str, Any] = {"request": request, "expected_cost": dataclasses.asdict(cost)}
    if args.dry_run:
        output.emit(args, document, lambda: _show(request, cost, args.out))
        return 0
    _ask(args, request, cost)
    name = request["TrainingJobName"]
    client = aws_client("sagemaker", args.region)
    _upload(args, request, source)
    tagged = {**request, "Tags": [*(request.get("Tags") or []), *prediction_tags(cost)]}
    document["arn"] = submit(client, tagged, sleep=time.sleep, log=output.log)
    output.log(f"sent: {document['arn']}")
    if args.no_follow:
        words = f"sent: {name}; headrace launch follow {name} --region {args.region} shows its progress"
        output.emit(args, {**document, "job": None}, lambda: output.say(words))
        return 0
    end = follow_to_the_end(args, client, name, cost)
    output.emit(args, {**document, "job": end.document()}, lambda: show_end(end))
    return 0 if end.job.status == "Completed" else 1


def _check_image(args: argparse.Namespace, request: dict[str, Any], source: Source | None) -> None:
    """Say what travels, and raise `UsageError` where headrace cannot run in the image or on the instance."""
    image = request["AlgorithmSpecification"].get("TrainingImage") or ""
    if source is not None:
        output.log(source.words())
        resources = request["ResourceConfig"]
        instances = [one["InstanceType"] for one in resources.get("InstanceGroups") or [resources]]
        remark = check_image(image, instances, glibc=needed_glibc(), machine=platform.machine(), needs=source.under)
        if remark is not None:
            output.log(f"remark: {remark}")
    elif made_by_headrace(request):
        built = WHEEL_GLIBC.search(args.wheel.name if args.wheel else "")
        check_image(image, [], glibc=(int(built[1]), int(built[2])) if built else (0, 0), machine="")
        if args.wheel is None and args.image is None and not args.request:
            output.log(
                f"remark: the container installs headrace {__version__} by pip, and no package index has it: {WHEEL_HINT}"
            )


def _upload(args: argparse.Namespace, request: dict[str, Any], source: Source | None) -> None:
    """Upload the wheel and the code of the job."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        files = [args.wheel] if args.wheel is not None else []
        if source is not None:
            files.append(archive := Path(folder) / ARCHIVE)
            output.log(f"{ARCHIVE}: {size_text(write_archive(source, archive))} with headrace")
        upload_code(aws_client("s3", args.region), request, files, sleep=time.sleep, log=output.log)


def _check_wheel(args: argparse.Namespace) -> None:
    """Raise `UsageError` for a wheel that is not there, or that pip would refuse by its name."""
    if args.wheel is None or args.dry_run:
        return
    if not args.wheel.is_file():
        raise UsageError(f"--wheel: there is no file {args.wheel}")
    if WHEEL.fullmatch(args.wheel.name) is None:
        raise UsageError(
            f"--wheel: pip refuses the name {args.wheel.name}", hint="such as headrace-0.1.0-cp311-abi3-linux_x86_64.whl"
        )


def _ask(args: argparse.Namespace, request: dict[str, Any], cost: ExpectedCost) -> None:
    """Show plan and cost, and ask unless `--yes` is given. Raises `UsageError` where nobody can be asked, or says no."""
    for line in _plan_lines(request, cost):
        output.log(line)
    if args.request:  # somebody else may have chosen what runs with a role of the user, and where the results go
        image = request.get("AlgorithmSpecification", {}).get("TrainingImage") or "an algorithm"
        output.log(f"  {image} runs with the rights of {request['RoleArn']}")
        output.log(f"  results: {request['OutputDataConfig']['S3OutputPath']}")
    if args.yes:
        return
    if not output.is_terminal(sys.stdin):
        raise UsageError(
            "the request was not sent: there is no terminal on which to confirm it", hint="--yes sends it, --dry-run does not"
        )
    if not _agreed("send this request?"):
        raise UsageError("the request was not sent: it was not confirmed")


def _ask_for_code(args: argparse.Namespace, request: dict[str, Any], source: Source | None) -> None:
    """Show what a request from a file would run on this machine, and ask unless `--yes` is given.

    Raises `UsageError` if the answer is no, and if nobody can be asked (standard input is no terminal).
    """
    found = chosen_code(request, script=source is not None) if args.request else []
    if not found:
        return
    output.log(f"{args.request} chooses what runs on this machine, as you:")
    for line in found:
        output.log(f"  {line}")
    if args.yes:
        return
    if not output.is_terminal(sys.stdin):
        raise UsageError(f"{args.request} runs code of its author on this machine", hint="if you trust it, --yes runs it")
    if not _agreed("run it on this machine?"):
        raise UsageError("the request was not run: it was not confirmed")


def _agreed(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _run_here(args: argparse.Namespace, request: dict[str, Any], source: Source | None) -> int:
    """Run the job on this machine; return 0 if it completed."""
    if args.interrupt and not request.get("EnableManagedSpotTraining"):
        raise UsageError("--interrupt is for spot jobs: a job on demand keeps its machines", hint="add --spot")
    if args.send and args.store:
        raise UsageError("--send writes to S3, and --store puts a folder in its place", hint="leave out --store")
    if args.send and not (args.request or args.bucket):
        raise UsageError("--send needs a bucket, and the request names none of yours", hint="--bucket NAME, or --request FILE")
    resources = request.get("ResourceConfig") or {}
    if "AlgorithmSpecification" not in request or not (resources.get("InstanceGroups") or resources.get("InstanceType")):
        raise UsageError("a local job needs AlgorithmSpecification, and InstanceType or InstanceGroups in ResourceConfig")
    folder: Path = args.out or unnamed_folder(request["TrainingJobName"])
    store = LocalStore(args.store or folder / STORE, _folders(args, request, source), sends=args.send)
    _ask_for_code(args, request, source)
    source = source or source_of_request(args, request, store)
    if source is not None:
        output.log(source.words())
    with StopRequest() as stop:
        done = run_local(
            request,
            store,
            folder,
            source=source,
            interruptions=[_after(seconds) for seconds in args.interrupt],
            grace_s=args.grace,
            log=output.log,
            stopped=lambda: stop.signal is not None,
        )
    document = {
        "status": done.status,
        "description": done.description,
        "interruptions": done.interruptions,
        "killed": done.killed,
        "ran_plain": done.ran_plain,
        "folder": str(folder),
    }
    output.emit(args, document, lambda: _show_done(done, store))
    return 0 if done.status == "Completed" else 1


def _after(seconds: float) -> Interruption:
    return lambda checkpoints, passed_s: passed_s > seconds


def _folders(args: argparse.Namespace, request: dict[str, Any], source: Source | None) -> dict[str, Path]:
    """Return the folder that stands for the address of each channel that is given here."""
    given = _pairs(args.channel, "--channel")
    for name, place in _data(args, source).items():
        if not is_url(place) and name not in given:
            given[name] = place
    sources = {one["ChannelName"]: one["DataSource"].get("S3DataSource") for one in request.get("InputDataConfig") or []}
    if args.source_dir is not None and not own_entry(request):
        given.setdefault(CODE, str(source_folder(args.source_dir)))
    if args.fetch:
        brought = {CODE} if made_by_headrace(request) else set()
        own = {name: source["S3Uri"] for name, source in sources.items() if source is not None and name not in brought}
        given = {**own, **given}
    found = {}
    for name, place in given.items():
        if sources.get(name) is None:
            raise UsageError(f"the request has no channel {name} in S3", hint=f"its channels: {', '.join(sources)}")
        if is_url(place):
            output.log(f"{name}: copying {without_url_secrets(place)} to the cache, once")
        folder = local_copy(place) if is_url(place) else Path(place)
        option = "--data" if place == args.data else f"--channel {name}"
        if not folder.exists():
            raise UsageError(f"{option}: there is no folder {folder}", hint="name the folder that holds the channel's files")
        if folder.is_dir() and not any(path.is_file() for path in folder.rglob("*")):
            raise UsageError(f"{option}: {folder} holds no file", hint="name the folder that holds the channel's files")
        found[sources[name]["S3Uri"]] = folder
    return found


def _show_done(done: LocalJob, store: LocalStore) -> None:
    output.say(
        f"{done.status} after {done.description['TrainingTimeInSeconds']} s, {count_text(done.interruptions, 'interruption')}"
    )
    for line in (done.description.get("FailureReason") or "").splitlines():
        output.say(line)
    for line in done.ran_plain:
        output.say(f"ran plain: {line}")
    for name in done.killed:
        output.say(f"{name} ignored SIGTERM and was killed: on SageMaker its last steps would be lost")
    if artifacts := done.description.get("ModelArtifacts"):
        address = artifacts["S3ModelArtifacts"]
        output.say(f"model: {address if store.sends else store.path(address)}")
    elif done.status == "Stopped" and not any(path.is_file() for path in done.folder.glob("hosts/*/checkpoints/**/*")):
        output.say("nothing was saved: no file in /opt/ml/model (SM_MODEL_DIR) nor in /opt/ml/checkpoints")
    for report in sorted((done.folder / "results" / "output").glob("headrace-*/report.html")):
        output.say(f"report: {report}")
    output.say(f"logs: {done.folder / 'logs'}, description: {done.folder / 'description.json'}")


def _job(args: argparse.Namespace, source: Source | None) -> TrainingJob:
    here = args.target == "local"
    needed = {
        "--data": args.data or args.channel or (here and source is not None),
        "--role": args.role or here,
        "--bucket": args.bucket or here,
    }
    missing = [name for name, value in needed.items() if not value]
    if not args.instance and not args.instance_group and not here:
        missing.append("--instance")
    if args.model is None and source is None:
        missing.append("--model")
    if missing:
        raise UsageError(f"launch sagemaker needs {', '.join(missing)}", hint="or --request FILE with a whole request")
    groups = [_group(text) for text in args.instance_group]
    return TrainingJob(
        name=args.name or time.strftime("headrace-%Y%m%d-%H%M%S", time.gmtime()),
        instance=args.instance or (groups[0].instance if groups else LOCAL_INSTANCE),
        role=args.role or LOCAL_ROLE,
        bucket=(args.bucket or "local").removeprefix("s3://").rstrip("/"),
        channels=[_channel(args, name, uri) for name, uri in _data(args, source).items()],
        region=args.region,
        count=args.count,
        groups=groups,
        spot=args.spot,
        max_hours=args.max_hours,
        max_wait_hours=args.max_wait_hours,
        image=args.image,
        archive=ARCHIVE if source is not None else None,
        wheel=args.wheel.name if args.wheel else None,
        hyperparameters=_hyperparameters(args),
        environment={**_pairs(args.env, "--env"), **(source.variables() if source is not None else {})},
        tags=_pairs(args.tag, "--tag"),
        volume_gb=args.volume_gb,
        warm_pool_minutes=args.warm_pool_minutes,
        subnets=args.subnets,
        security_groups=args.security_groups,
    )


def _data(args: argparse.Namespace, source: Source | None) -> dict[str, str]:
    """Return the places that `--data`, `--val` and, for a request that is made here, `--channel` name, by channel."""
    named = {name: place for name, place in ((data_channel(source), args.data), ("validation", args.val)) if place}
    return named if args.request else _pairs(args.channel, "--channel") | named


def _channel(args: argparse.Namespace, name: str, uri: str) -> Channel:
    if args.target == "local" and "://" not in uri:
        uri = f"s3://local/{name}"  # the folder stands for this address
    return Channel(
        name,
        uri,
        mode=args.input_mode,
        distribution=args.distribution if name != "validation" else "FullyReplicated",
        shuffle_seed=args.shuffle_seed,
        record_io=args.record_io,
        file_system=args.file_system if uri.startswith("fs-") else None,
    )


def _hyperparameters(args: argparse.Namespace) -> dict[str, str]:
    found = {
        "model": args.model,
        "epochs": None if args.epochs is None else f"{args.epochs:g}",
        "batch-size": None if args.batch_size is None else str(args.batch_size),
    }
    given = _pairs(args.hyperparameter, "--hyperparameter")
    if args.script is None and args.source_dir is None:  # options of `headrace train`; of a script, each spelling is its own
        given = {key.replace("_", "-"): value for key, value in given.items()}
    return {**{key: value for key, value in found.items() if value is not None}, **given}


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    found = {}
    for text in texts:
        pair = PAIR.fullmatch(text)
        if pair is None:
            raise UsageError(f"{option} {text}: KEY=VALUE is expected", hint=f"such as {option} NAME=1")
        if pair[1] in found:
            raise UsageError(f"{option} {pair[1]}=… is given twice", hint="leave one out")
        found[pair[1]] = pair[2]
    return found


def _group(text: str) -> InstanceGroup:
    pair = re.fullmatch(r"([^=]+)=([^:]+):(\d+)", text)
    if pair is None:
        raise UsageError(f"--instance-group {text}: NAME=TYPE:N is expected", hint="such as gpu=ml.g5.xlarge:2")
    return InstanceGroup(pair[1], pair[2], int(pair[3]))


def _work(args: argparse.Namespace) -> Work:
    return Work(args.model, args.images, args.epochs or 1.0, args.bytes, args.objects)


def _read(path: Path) -> Any:
    try:
        return parse_json(read_regular(path, limit=MOST_BYTES))
    except (OSError, ValueError) as reason:
        words = (reason.strerror or reason) if isinstance(reason, OSError) else reason
        raise UsageError(f"cannot read a request from {path}: {words}") from None


def _write(path: Path, request: dict[str, Any]) -> None:
    try:
        atomic_write(path, json.dumps(request, indent=1) + "\n")
    except OSError as reason:
        raise HeadraceError(
            f"cannot write {path}: {reason.strerror or reason}", hint="--out FILE chooses another place"
        ) from None


def _plan_lines(request: dict[str, Any], cost: ExpectedCost) -> list[str]:
    resources = request["ResourceConfig"]
    groups = resources.get("InstanceGroups") or [resources]
    machines = " + ".join(f"{one['InstanceCount']} × {one['InstanceType']}" for one in groups)
    kind = "spot" if request.get("EnableManagedSpotTraining") else "on demand"
    limit_h = request["StoppingCondition"]["MaxRuntimeInSeconds"] / 3600
    lines = [f"{request['TrainingJobName']}: {machines}, {kind}, {limit_h:g} h at most"]
    for channel in request.get("InputDataConfig") or []:
        source = next(iter(channel["DataSource"].values()))
        place = source.get("S3Uri") or f"{source.get('FileSystemId')}:{source.get('DirectoryPath')}"
        lines.append(f"  {channel['ChannelName']}: {place} ({channel.get('InputMode', 'default mode')})")
    return [*lines, *cost.lines()]


def _show(request: dict[str, Any], cost: ExpectedCost, written: Path | None) -> None:
    for line in _plan_lines(request, cost):
        output.say(line)
    output.say("the request is valid; nothing was sent" + (f"; written to {written}" if written else " (--out FILE writes it)"))
