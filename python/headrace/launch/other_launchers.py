"""Files that start the work elsewhere: training on Slurm, SkyPilot and over ssh, packing on AWS Batch and SageMaker Processing.

print(slurm_script(Training("imagenet", ["train.py", "--data", "/data"], count=2, gpus=8)))

Each file is short, to be read, changed and run. Training continues from its checkpoints (`--resume auto`), so every file may be
started again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
"""Port at which the machines meet; torchrun's default."""

SIGNAL_S = 120
"""Slurm tells the job so many seconds before the time limit: enough to write a checkpoint."""

_BREAKING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9_@.:\[\]-]+")


@dataclass(frozen=True, slots=True)
class Training:
    """A training on `count` machines with `gpus` GPUs each. `words`: the script, or `-m headrace train`, and its options.

    hours: time limit. image: a container. instance, spot: of a cloud. hosts: to reach over ssh, the first is the master.
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


@dataclass(frozen=True, slots=True)
class Packing:
    """A pack of `source` into `target`, cut into `units` jobs. image: container with headrace; role: that the job runs as.

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
    """Return a script for sbatch: torchrun on each node, SIGTERM before the time limit, and a new start after it.

    Raises `UsageError` for a name or number that Slurm would refuse.
    """
    _check(job)
    hours, minutes = divmod(max(1, round(60 * job.hours)), 60)
    gpus = f"#SBATCH --gpus-per-node={job.gpus}\n" if job.gpus else ""
    return f"""#!/bin/bash
#SBATCH --job-name={job.name}
#SBATCH --nodes={job.count}
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --time={hours:02d}:{minutes:02d}:00
#SBATCH --signal=B:USR1@{SIGNAL_S}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={job.name}-%j.log
# sbatch {job.name}.sh        The folders of data and results are the same on all nodes.
set -u
{_exports(job.environment)}master=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$(({PORT} + SLURM_JOB_ID % 1000))

stopped=0
srun --kill-on-bad-exit=1 bash -c 'exec python -m torch.distributed.run --nnodes="$SLURM_NNODES" \\
    --node_rank="$SLURM_NODEID" --nproc_per_node={max(1, job.gpus)} --master_addr="$0" --master_port="$1" "${{@:2}}"' \\
    "$master" "$port" {shlex.join(job.words)} &
child=$!
# Slurm tells this shell only. SIGTERM makes training write a checkpoint; srun would answer one with SIGKILL for all tasks.
trap 'stopped=1; scancel --signal=TERM "$SLURM_JOB_ID.0"' USR1
wait "$child"; code=$?
while [ "$stopped" = 1 ] && kill -0 "$child" 2>/dev/null; do wait "$child"; done
if [ "$stopped" = 1 ]; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
"""


def skypilot_task(job: Training) -> str:
    """Return a SkyPilot task (YAML). Raises `UsageError`."""
    _check(job)
    resources = (
        [f"  instance_type: {json.dumps(job.instance)}"] if job.instance else [f"  accelerators: {{A10G: {max(1, job.gpus)}}}"]
    )
    resources += ["  infra: aws"] if job.instance else []
    resources += ["  use_spot: true"] if job.spot else []
    lines = [
        f"# sky launch {job.name}.yaml      with spot: sky jobs launch {job.name}.yaml, which starts it again elsewhere",
        f"name: {json.dumps(job.name)}",
        f"num_nodes: {job.count}",
        "resources:",
        *resources,
    ]
    if job.environment:
        lines += ["envs:", *(f"  {name}: {json.dumps(value)}" for name, value in job.environment.items())]
    lines += [
        "setup: |",
        "  pip install 'headrace[train,aws]'",
        "run: |",
        '  master=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
        '  python -m torch.distributed.run --nnodes="$SKYPILOT_NUM_NODES" --node_rank="$SKYPILOT_NODE_RANK" \\',
        f'    --nproc_per_node="${{SKYPILOT_NUM_GPUS_PER_NODE:-1}}" --master_addr="$master" --master_port={PORT} \\',
        f"    {' '.join(map(_bash_word, job.words))}",
    ]
    return "\n".join(lines) + "\n"


def ssh_script(job: Training) -> str:
    """Return a shell script that starts torchrun on each host over ssh and ends all when one fails. Raises `UsageError`."""
    if not job.hosts:
        raise UsageError("launch ssh needs --hosts", hint="--hosts node1 node2, the first is the master")
    for host in job.hosts:
        if _HOST.fullmatch(host) is None or host.startswith("-"):
            raise UsageError(f"--hosts: {host!r} is no name of a host")
    _check(job)
    master = job.hosts[0].rpartition("@")[2]
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in job.environment.items())
    return f"""#!/bin/bash
# bash {job.name}.sh        Every host has headrace, the data, and this folder under the same path.
# Each ssh has a terminal (-tt), so that its end ends what it started.
set -u
hosts=({" ".join(job.hosts)})
words={shlex.quote(" ".join(filter(None, (exports, "python -m torch.distributed.run"))))}
training={shlex.quote(shlex.join(job.words))}
folder=$(printf %q "$PWD")
pids=()
end() {{ kill -TERM "${{pids[@]}}" 2>/dev/null; wait; }}
trap 'end; exit 130' INT TERM
for rank in "${{!hosts[@]}}"; do
    ssh -tt -o BatchMode=yes "${{hosts[$rank]}}" "cd $folder && exec env $words --nnodes=${{#hosts[@]}} --node_rank=$rank \\
        --nproc_per_node={max(1, job.gpus)} --master_addr={master} --master_port={PORT} $training" </dev/null &
    pids+=($!)
done
code=0
for _ in "${{pids[@]}}"; do
    wait -n || {{ code=$?; end; break; }}
done
exit "$code"
"""


def batch_script(job: Packing) -> str:
    """Return a shell script with the two commands of an AWS Batch array job. Raises `UsageError`."""
    missing = [name for name, value in (("--queue", job.queue), ("--efs", job.file_system)) if not value]
    if missing:
        raise UsageError(
            f"launch batch needs {', '.join(missing)}", hint="jobs of an array meet in a folder: an EFS file system"
        )
    _check_name(job.name)
    if not 2 <= job.units <= 10_000:
        raise UsageError(f"--units {job.units}: AWS Batch takes 2 to 10,000 jobs of an array")
    words = shlex.join(["headrace", "pack", job.source, "/packed/" + job.target.strip("/"), *job.options])
    definition = {
        "jobDefinitionName": job.name,
        "type": "container",
        "timeout": {"attemptDurationSeconds": round(3600 * job.hours)},
        "retryStrategy": {"attempts": 3},
        "containerProperties": {
            "image": job.image,
            "jobRoleArn": job.role,
            "resourceRequirements": [{"type": "VCPU", "value": "8"}, {"type": "MEMORY", "value": "16384"}],
            "command": ["/bin/sh", "-c", f"exec {words} --unit $AWS_BATCH_JOB_ARRAY_INDEX/{job.units}"],
            "volumes": [{"name": "packed", "efsVolumeConfiguration": {"fileSystemId": job.file_system}}],
            "mountPoints": [{"sourceVolume": "packed", "containerPath": "/packed"}],
        },
    }
    array = {"jobName": job.name, "jobQueue": job.queue, "jobDefinition": job.name, "arrayProperties": {"size": job.units}}
    return _aws_script(
        job,
        f"{job.units} jobs pack a part each into the file system; the one that finishes last writes index and manifest.",
        [("batch register-job-definition", definition), ("batch submit-job", array)],
    )


def processing_script(job: Packing) -> str:
    """Return a shell script with the command of a SageMaker Processing job that packs from S3 to S3. Raises `UsageError`.

    One instance: the jobs of an array need a common folder, which Processing does not mount. Started again, it goes on.
    """
    _check_name(job.name)
    if job.units != 1:
        raise UsageError("launch processing packs on one instance", hint="headrace launch batch packs on many")
    for name, uri in (("--data", job.source), ("--packed", job.target)):
        if not uri.startswith("s3://"):
            raise UsageError(f"{name} {uri}: launch processing reads from S3 and writes to S3", hint="s3://bucket/prefix")
    request: dict[str, Any] = {
        "ProcessingJobName": job.name,
        "RoleArn": job.role,
        "AppSpecification": {
            "ImageUri": job.image,
            "ContainerEntrypoint": ["headrace", "pack", job.source, job.target, *job.options],
        },
        "ProcessingResources": {"ClusterConfig": {"InstanceType": job.instance, "InstanceCount": 1, "VolumeSizeInGB": 500}},
        "StoppingCondition": {"MaxRuntimeInSeconds": round(3600 * job.hours)},
    }
    return _aws_script(job, "One instance packs from S3 to S3; given again under a new name, it goes on.", [
        ("sagemaker create-processing-job", request)
    ])  # fmt: skip


def _aws_script(job: Packing, note: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    text = f"#!/bin/bash\n# bash {job.name}.sh        {note}\nset -eu\n"
    for call, request in calls:
        text += f"aws {call} --region {shlex.quote(job.region)} --cli-input-json {shlex.quote(json.dumps(request, indent=1))}\n"
    return text


def _bash_word(word: str) -> str:
    """Quote a word for bash on one line: a line feed would end a block of YAML, and what follows would be keys of the task."""
    if not _BREAKING.search(word):
        return shlex.quote(word)
    plain = set(range(0x20, 0x7F)) - set(b"'\\")
    return "$'" + "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(word)) + "'"


def _exports(environment: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())


def _check(job: Training) -> None:
    _check_name(job.name)
    if job.count < 1 or job.gpus < 0:
        raise UsageError(f"--count {job.count}, --gpus {job.gpus}: at least one machine is needed")
    for name in job.environment:
        if re.fullmatch(r"[A-Za-z_]\w*", name) is None:
            raise UsageError(f"--env {name}: this is no name of a variable")


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"--name {name!r}: letters, digits, - and _ are allowed")
