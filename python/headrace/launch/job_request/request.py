"""The CreateTrainingJob request of a training job.

job = TrainingJob(name="flowers", data="s3://bucket/flowers", instance="ml.g5.xlarge", role=ROLE, bucket="bucket", …)
request = build_request(job)
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace._native import __version__
from headrace.launch.sagemaker.metrics import metric_definitions

__all__ = ["CODE", "Channel", "Distribution", "InputMode", "InstanceGroup", "TrainingJob", "build_request", "training_image"]

InputMode = Literal["File", "FastFile", "Pipe"]
Distribution = Literal["FullyReplicated", "ShardedByS3Key"]

CONTAINER_ACCOUNT = "763104351884"
"""AWS's account of the deep-learning containers in most regions."""

IMAGE_TAG = {"gpu": "2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker", "cpu": "2.8.0-cpu-py312-ubuntu22.04-sagemaker"}
"""Tags of AWS's PyTorch container: the newest that the SageMaker SDK (2.257, August 2026) lists."""

CODE = "code"
"""The channel that brings headrace's wheel and the script."""

CODE_FOLDER = "/opt/ml/code"
"""Where a container has its script."""

CHECKPOINTS = "/opt/ml/checkpoints"


@dataclass(frozen=True, slots=True)
class Channel:
    """One input channel: an S3 prefix, or a path on a file system (`fs-…:/path`; file_system: "FSxLustre" or "EFS")."""

    name: str
    uri: str
    mode: InputMode = "FastFile"
    distribution: Distribution = "FullyReplicated"
    shuffle_seed: int | None = None
    record_io: bool = False
    file_system: str | None = None
    groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """One group of equal instances, in a cluster with several instance types."""

    name: str
    instance: str
    count: int


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A training job as a user describes it. `headrace train` runs, or `script` if it is given (a file of the code channel).

    bucket: name of the bucket for code, checkpoints and results. max_hours, max_wait_hours: of training, and of training with
    the waits of a spot job (default: twice `max_hours`). wheel: name of headrace's wheel in the code channel; None installs
    the released version. archive: a file of the code channel with the script's folder and headrace, in place of script and
    wheel (`headrace.launch.own_code`). image: default AWS's PyTorch container.
    """

    name: str
    instance: str
    role: str
    bucket: str
    channels: Sequence[Channel] = ()
    region: str = "us-east-1"
    count: int = 1
    groups: Sequence[InstanceGroup] = ()
    spot: bool = False
    max_hours: float = 24.0
    max_wait_hours: float | None = None
    image: str | None = None
    script: str | None = None
    archive: str | None = None
    wheel: str | None = None
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    volume_gb: int | None = None
    warm_pool_minutes: float | None = None
    subnets: Sequence[str] = ()
    security_groups: Sequence[str] = ()


def build_request(job: TrainingJob) -> dict[str, Any]:
    """Return the CreateTrainingJob request of a job. Nothing is checked (`headrace.launch.job_request.validate`) or sent."""
    prefix = f"s3://{job.bucket}/headrace/{job.name}"
    limit_s = round(3600 * job.max_hours)
    request: dict[str, Any] = {
        "TrainingJobName": job.name,
        "RoleArn": job.role,
        "AlgorithmSpecification": {
            "TrainingImage": job.image or training_image(job.region, job.instance),
            "TrainingInputMode": job.channels[0].mode if job.channels else "File",
            "ContainerEntrypoint": ["/bin/bash", "-c", _start_words(job)],
            "MetricDefinitions": metric_definitions(),
        },
        "HyperParameters": dict(job.hyperparameters),
        "InputDataConfig": [_channel(one) for one in (*job.channels, _code(prefix))],
        "OutputDataConfig": {"S3OutputPath": f"{prefix}/output", "CompressionType": "NONE"},
        "CheckpointConfig": {"S3Uri": f"{prefix}/checkpoints", "LocalPath": CHECKPOINTS},
        "ResourceConfig": _resources(job),
        "StoppingCondition": {"MaxRuntimeInSeconds": limit_s},
        "EnableManagedSpotTraining": job.spot,
        "Environment": _environment(job),
        "Tags": [{"Key": key, "Value": value} for key, value in {"headrace": __version__, **job.tags}.items()],
    }
    if job.spot:
        wait_s = 2 * limit_s if job.max_wait_hours is None else round(3600 * job.max_wait_hours)
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = wait_s
    if job.subnets or job.security_groups:
        request["VpcConfig"] = {"Subnets": list(job.subnets), "SecurityGroupIds": list(job.security_groups)}
    return request


def training_image(region: str, instance: str) -> str:
    """Return the URI of AWS's PyTorch container image for a region and instance type, with CUDA for types with GPUs."""
    family = instance.removeprefix("ml.").partition(".")[0]
    kind = "gpu" if family[:1] in ("g", "p") else "cpu"
    suffix = ".cn" if region.startswith("cn-") else ""
    return f"{CONTAINER_ACCOUNT}.dkr.ecr.{region}.amazonaws.com{suffix}/pytorch-training:{IMAGE_TAG[kind]}"


def _start_words(job: TrainingJob) -> str:
    """Return the command of the container. `exec` makes the entry the first process, which receives the signals."""
    if job.archive is not None:
        program = f"import sys; sys.path.insert(0, {f'{CODE_FOLDER}/.headrace'!r}); from headrace.launch.entry import main; "
        unpack = f"tar -xzf /opt/ml/input/data/{CODE}/{job.archive} -C {CODE_FOLDER} --no-same-owner"
        return f"mkdir -p {CODE_FOLDER} && {unpack} && exec python -P -c {shlex.quote(f'{program}sys.exit(main())')}"
    what = f"/opt/ml/input/data/{CODE}/{job.wheel}" if job.wheel else f"headrace[train,aws]=={__version__}"
    return f"python -m pip install --quiet {shlex.quote(what)} && exec python -m headrace.launch.entry"


def _code(prefix: str) -> Channel:
    return Channel(CODE, f"{prefix}/code", mode="File")


def _channel(channel: Channel) -> dict[str, Any]:
    found: dict[str, Any] = {"ChannelName": channel.name, "InputMode": channel.mode}
    if channel.file_system is not None:
        identifier, _, path = channel.uri.partition(":")
        source: dict[str, Any] = {
            "FileSystemDataSource": {
                "FileSystemId": identifier,
                "FileSystemType": channel.file_system,
                "FileSystemAccessMode": "ro",
                "DirectoryPath": path,
            }
        }
    else:
        source = {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                # A prefix without the slash would also match `train-old/`, and FastFile refuses a part of a folder's name.
                "S3Uri": channel.uri.rstrip("/") + "/",
                "S3DataDistributionType": channel.distribution,
                **({"InstanceGroupNames": list(channel.groups)} if channel.groups else {}),
            }
        }
    found["DataSource"] = source
    if channel.record_io:
        found["RecordWrapperType"] = "RecordIO"
    if channel.shuffle_seed is not None:
        found["ShuffleConfig"] = {"Seed": channel.shuffle_seed}
    return found


def _resources(job: TrainingJob) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if job.groups:
        found["InstanceGroups"] = [
            {"InstanceGroupName": one.name, "InstanceType": one.instance, "InstanceCount": one.count} for one in job.groups
        ]
    else:
        found |= {"InstanceType": job.instance, "InstanceCount": job.count}
    found["VolumeSizeInGB"] = 100 if job.volume_gb is None else job.volume_gb
    if job.warm_pool_minutes is not None:
        found["KeepAlivePeriodInSeconds"] = round(60 * job.warm_pool_minutes)
    return found


def _environment(job: TrainingJob) -> dict[str, str]:
    found = dict(job.environment)
    if job.script is not None:
        found["HEADRACE_SCRIPT"] = job.script
    return found
