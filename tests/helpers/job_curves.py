"""Documents of finished jobs whose curves are functions of time, as CloudWatch or the Debugger would have kept them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.launch.finished_job.documents import JobDocuments, Series

__all__ = ["BEGIN_S", "Curve", "Machine", "bursts", "described", "job_with_curves", "noisy", "phases", "without_points"]

BEGIN_S = 1_795_000_020.0
"""Begin of the training, off the grid of minutes."""

Curve = Callable[[float], float]
"""Seconds of training → share, 0 to 1."""

Machine = tuple[str, int, int]
"""Instance type, cores, GPUs."""

PYTORCH = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker"


def described(
    training_s: float, *, status: str = "Completed", download_s: float = 20.0, image: str = PYTORCH, **more: Any
) -> dict[str, Any]:
    """Return the description of a job on ml.g5.xlarge (4 cores, 1 GPU). status: its SecondaryStatus."""
    end_s = BEGIN_S + training_s
    spans = [("Downloading", BEGIN_S - download_s, BEGIN_S), ("Training", BEGIN_S, end_s), ("Uploading", end_s, end_s + 5)]
    main = status if status in ("Completed", "Failed", "InProgress") else "Stopped"
    return {
        "TrainingJobName": "job",
        "TrainingJobStatus": main,
        "SecondaryStatus": status,
        "SecondaryStatusTransitions": [
            *({"Status": name, "StartTime": begin, "EndTime": end} for name, begin, end in spans),
            {"Status": status, "StartTime": end_s + 5},
        ],
        "AlgorithmSpecification": {"TrainingImage": image, "TrainingInputMode": "File"},
        "HyperParameters": {"sagemaker_program": '"train.py"', "epochs": "2"},
        "InputDataConfig": [
            {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/photos/"}}}
        ],
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "TrainingTimeInSeconds": round(training_s + download_s + 5),
        "BillableTimeInSeconds": round(training_s + download_s + 5),
        **({"ModelArtifacts": {"S3ModelArtifacts": "s3://b/out/model.tar.gz"}} if status == "Completed" else {}),
        **more,
    }


def job_with_curves(
    training_s: float,
    gpu: Curve,
    cpu: Curve,
    *,
    interval_s: float,
    mean: bool,
    hosts: tuple[tuple[Curve, Curve], ...] = (),
    machine: Machine = ("ml.g5.xlarge", 4, 1),
    **more: Any,
) -> JobDocuments:
    """Return the documents of a job of one host, or of `hosts` (GPU and CPU of each), all of one type.

    mean: points are means over their interval, as CloudWatch gives, in place of moments, as the Debugger samples.
    """
    all_hosts = hosts or ((gpu, cpu),)
    names = [f"algo-{place + 1}" for place in range(len(all_hosts))]
    kind, cores, gpus = machine
    resources = {"InstanceType": kind, "InstanceCount": len(all_hosts)}
    description = described(training_s, **{"ResourceConfig": resources, **more})
    drawn = {
        name: (_drawn(one, training_s, interval_s, mean), _drawn(other, training_s, interval_s, mean))
        for name, (one, other) in zip(names, all_hosts, strict=True)
    }
    if interval_s < 60:
        return JobDocuments(
            description,
            cores={name: dict.fromkeys(range(cores), series) for name, (_, series) in drawn.items()},
            gpus={name: dict.fromkeys(range(gpus), series) for name, (series, _) in drawn.items()},
        )
    metrics = {
        name: {
            "GPUUtilization": tuple((time, 100 * gpus * value) for time, value in one),
            "CPUUtilization": tuple((time, 100 * cores * value) for time, value in other),
            "MemoryUtilization": tuple((time, 12.0) for time, _ in one),
        }
        for name, (one, other) in drawn.items()
    }
    return JobDocuments(description, metrics)


def without_points(documents: JobDocuments, begin_s: float, end_s: float) -> JobDocuments:
    """Return documents whose curves have no points between two moments of the training."""

    def kept(series: Series) -> Series:
        return tuple(point for point in series if not begin_s <= point[0] - BEGIN_S < end_s)

    metrics = {host: {name: kept(one) for name, one in all_.items()} for host, all_ in documents.metrics.items()}
    cores, gpus = (
        {host: {number: kept(one) for number, one in all_.items()} for host, all_ in rows.items()}
        for rows in (documents.cores, documents.gpus)
    )
    return replace(documents, metrics=metrics, cores=cores, gpus=gpus)


def _drawn(curve: Curve, training_s: float, interval_s: float, mean: bool) -> Series:
    points = []
    for place in range(math.floor(training_s / interval_s)):
        at = place * interval_s
        parts = [at + part * interval_s / 61 for part in range(61)] if mean else [at]
        points.append((BEGIN_S + at, math.fsum(map(curve, parts)) / len(parts)))
    return tuple(points)


def bursts(busy_s: float, period_s: float, *, level: float = 1.0, start_s: float = 0.0) -> Curve:
    """A GPU at `level` for `busy_s` of each period, from `start_s` on."""
    return lambda time: level if time >= start_s and (time - start_s) % period_s < busy_s else 0.0


def phases(work: Curve, rest: Curve, work_s: float, rest_s: float) -> Curve:
    """Two curves in turn."""
    return lambda time: (work if time % (work_s + rest_s) < work_s else rest)(time)


def noisy(curve: Curve, size: float, seed: int = 0) -> Curve:
    """A curve with noise that is a function of time: a point drawn twice is equal."""

    def value(time: float) -> float:
        wave = math.sin(12.9898 * (time + 1) + 78.233 * (seed + 1)) * 43758.5453
        return min(1.0, max(0.0, curve(time) + size * (2 * (wave - math.floor(wave)) - 1)))

    return value
