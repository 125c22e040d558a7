"""Files that start the work elsewhere: training on Slurm, SkyPilot and over ssh, packing on AWS Batch and SageMaker Processing.

print(slurm_script(Training("imagenet", ["train.py", "--data", "/data"], count=2, gpus=8)))

The files lie in `templates`, with places for values. Each is short, to be read, changed and run. Training continues from its
checkpoints (`--resume auto`), so every file may be started again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from headrace.errors import UsageError

__all__ = [
    "Packing",
    "Training",
    "batch_script",
    "processing_script",
    "skypilot_task",
    "slurm_script",
    "ssh_script",
]

PORT = 29500
"""Port of torchrun's rendezvous between the machines: torchrun's default."""

_PLACE = re.compile(r"^§(\w+)\n|§\{(\w+)\}", re.MULTILINE)
_BREAKING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9_@.:\[\]-]+")


@dataclass(frozen=True, slots=True)
class Training:
    """A training on `count` machines with `gpus` GPUs each. words: the script (or `-m headrace train`) and its options.

    hours: time limit. instance, spot: of a cloud. hosts: to reach over ssh, the first is the master. wheel: of headrace, for
    machines of a cloud. code: absolute path of the folder with script and headrace in which the training starts (None: where
    the file is started). requirements: whether it has a requirements.txt.
    """

    name: str
    words: Sequence[str]
    count: int = 1
    gpus: int = 1
    hours: float = 24.0
    instance: str | None = None
    spot: bool = False
    hosts: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    wheel: Path | None = None
    code: Path | None = None
    requirements: bool = False


@dataclass(frozen=True, slots=True)
class Packing:
    """The packing of `source` into `target` by `units` jobs. image: container with headrace. role: AWS role of the job.

    queue, file_system: of AWS Batch, whose jobs meet in an EFS file system mounted at /packed.
    """

    name: str
    source: str
    target: str
    image: str
    role: str
    units: int = 1
    options: Sequence[str] = ()
    region: str = "us-east-1"
    instance: str = "ml.c5.9xlarge"
    hours: float = 24.0
    queue: str | None = None
    file_system: str | None = None


def slurm_script(job: Training) -> str:
    """Return a script for sbatch: torchrun on each node, SIGTERM two minutes before the time limit, and a new start after it.

    Raises `UsageError` for a name or number that Slurm would refuse.
    """
    _check(job)
    hours, minutes = divmod(max(1, round(60 * job.hours)), 60)
    return _filled(
        "slurm.sh",
        name=job.name,
        count=job.count,
        gpus_per_node=[f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else [],
        limit=f"{hours:02d}:{minutes:02d}:00",
        exports=[f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()],
        folder=[f"cd {shlex.quote(str(job.code))} || exit 1"] if job.code is not None else [],
        port=PORT,
        processes=max(1, job.gpus),
        training=shlex.join(job.words),
    )


def skypilot_task(job: Training) -> str:
    """Return a SkyPilot task (YAML). Raises `UsageError` for a bad name, number of machines or variable."""
    _check(job)
    if job.instance:
        machines = [f"  instance_type: {json.dumps(job.instance)}", "  infra: aws"]
    else:
        machines = [f"  accelerators: {{A10G: {max(1, job.gpus)}}}"]
    environment = [f"  {name}: {json.dumps(value)}" for name, value in job.environment.items()]
    wheel = "headrace" if job.wheel is None else f"/tmp/{job.wheel.name}"
    installed = [f"pip install {_bash_word(f'{wheel}[train,aws]')}"] if job.code is None else []
    if job.requirements:
        installed.append("pip install -r requirements.txt")
    return _filled(
        "skypilot.yaml",
        name=job.name,
        count=job.count,
        resources=[*machines, "  use_spot: true"] if job.spot else machines,
        mounts=[] if job.wheel is None else ["file_mounts:", f"  {json.dumps(wheel)}: {json.dumps(str(job.wheel))}"],
        folder=[] if job.code is None else [f"workdir: {json.dumps(str(job.code))}"],
        environment=["envs:", *environment] if environment else [],
        setup=["setup: |", *(f"  {line}" for line in installed)] if installed else [],
        port=PORT,
        training=" ".join(map(_bash_word, job.words)),
    )


def ssh_script(job: Training) -> str:
    """Return a shell script that starts torchrun on each host over ssh and ends all when one fails.

    Raises `UsageError` without hosts, and for a bad host, name or variable.
    """
    if not job.hosts:
        raise UsageError("launch ssh needs --hosts", hint="--hosts node1 node2, the first is the master")
    for host in job.hosts:
        if _HOST.fullmatch(host) is None or host.startswith("-"):
            raise UsageError(f"--hosts: {host!r} is not a host name")
    _check(job)
    exports = [f"{name}={shlex.quote(value)}" for name, value in job.environment.items()]
    return _filled(
        "ssh.sh",
        name=job.name,
        hosts=" ".join(job.hosts),
        folder='"$PWD"' if job.code is None else shlex.quote(str(job.code)),
        words=shlex.quote(" ".join([*exports, "python -m torch.distributed.run"])),
        training=shlex.quote(shlex.join(job.words)),
        processes=max(1, job.gpus),
        master=job.hosts[0].rpartition("@")[2],
        port=PORT,
    )


def batch_script(job: Packing) -> str:
    """Return a shell script that registers and submits an AWS Batch array job: each job packs a part.

    Raises `UsageError` without a queue or file system, for a bad name, and for a number of jobs that AWS does not take.
    """
    missing = [name for name, value in (("--queue", job.queue), ("--efs", job.file_system)) if not value]
    if missing:
        raise UsageError(
            f"launch batch needs {', '.join(missing)}", hint="jobs of an array meet in a folder: an EFS file system"
        )
    _check_name(job.name)
    if not 2 <= job.units <= 10_000:
        raise UsageError(f"--units {job.units}: AWS Batch takes 2 to 10,000 jobs of an array")
    words = shlex.join(["headrace", "pack", job.source, "/packed/" + job.target.strip("/"), *job.options])
    return _filled(
        "batch.sh",
        name=job.name,
        units=job.units,
        region=shlex.quote(job.region),
        limit_s=round(3600 * job.hours),
        image=_quoted_json(job.image),
        role=_quoted_json(job.role),
        command=_quoted_json(f"exec {words} --unit $AWS_BATCH_JOB_ARRAY_INDEX/{job.units}"),
        file_system=_quoted_json(job.file_system),
        queue=_quoted_json(job.queue),
    )


def processing_script(job: Packing) -> str:
    """Return a shell script with the command of a SageMaker Processing job that packs from S3 to S3.

    Raises `UsageError` for more than one instance, a bad name, and a place outside S3.

    One instance: the jobs of an array need a common folder, which Processing does not mount. Started again, it goes on.
    """
    _check_name(job.name)
    if job.units != 1:
        raise UsageError("launch processing packs on one instance", hint="headrace launch batch packs on many")
    for name, uri in (("--data", job.source), ("--packed", job.target)):
        if not uri.startswith("s3://"):
            raise UsageError(f"{name} {uri}: launch processing reads from S3 and writes to S3", hint="s3://bucket/prefix")
    return _filled(
        "processing.sh",
        name=job.name,
        region=shlex.quote(job.region),
        role=_quoted_json(job.role),
        image=_quoted_json(job.image),
        entrypoint=_quoted_json(["headrace", "pack", job.source, job.target, *job.options]).replace("\n", "\n  "),
        instance=_quoted_json(job.instance),
        limit_s=round(3600 * job.hours),
    )


def _filled(template: str, **values: str | int | list[str]) -> str:
    """Return a file of `templates` with its places filled in: `§{name}` by one value, a line `§name` by a list of lines.

    Values are not looked through for places. Raises `KeyError` for a place that has no value.
    """

    def value_of(place: re.Match[str]) -> str:
        value = values[place[1] or place[2]]
        return "".join(f"{line}\n" for line in value) if isinstance(value, list) else str(value)

    text = resources.files("headrace.launch").joinpath("templates", template).read_text(encoding="utf-8")
    return _PLACE.sub(value_of, text)


def _quoted_json(value: object) -> str:
    """Return JSON for a place between single quotes of a shell."""
    return json.dumps(value, indent=1).replace("'", "'\"'\"'")


def _bash_word(word: str) -> str:
    """Quote a word for bash on one line: a line feed would end a block of YAML, and what follows would be keys of the task."""
    if not _BREAKING.search(word):
        return shlex.quote(word)
    plain = set(range(0x20, 0x7F)) - set(b"'\\")
    return "$'" + "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(word)) + "'"


def _check(job: Training) -> None:
    _check_name(job.name)
    if job.count < 1 or job.gpus < 0:
        raise UsageError(f"--count {job.count}, --gpus {job.gpus}: at least one machine is needed")
    for name in job.environment:
        if re.fullmatch(r"[A-Za-z_]\w*", name) is None:
            raise UsageError(f"--env {name}: this is not the name of a variable")


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"--name {name!r}: letters, digits, - and _ are allowed")
