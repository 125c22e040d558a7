"""Run by the Python of an environment with SageMaker's SDK 2: the requests of estimators, plain and under headrace, as JSON.

Nothing is sent: the session's clients are stubs.
"""

from __future__ import annotations

import json
import logging
import sys
import tarfile
from typing import Any
from unittest.mock import MagicMock

import sagemaker
import sagemaker.telemetry.telemetry_logging as telemetry
from headrace.errors import UsageError
from headrace.launch import under
from sagemaker.inputs import TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow

logging.disable(logging.WARNING)
telemetry._requests_helper = lambda *_, **__: None
sent: list[dict[str, Any]] = []
uploads: dict[str, list[str]] = {}


def session() -> sagemaker.Session:
    boto, client = MagicMock(region_name="us-east-1"), MagicMock()
    boto.client.return_value = client
    client.create_training_job.side_effect = lambda **request: sent.append(request)

    def object_of(bucket: str, key: str) -> MagicMock:
        return MagicMock(upload_file=lambda file, ExtraArgs=None: uploads.update({key: tarfile.open(file).getnames()}))

    boto.resource.return_value.Object.side_effect = object_of
    return sagemaker.Session(boto_session=boto, sagemaker_client=client, default_bucket="bucket")


BASE: dict[str, Any] = {
    "entry_point": "train.py",
    "source_dir": "project",
    "role": "arn:aws:iam::111111111111:role/r",
    "framework_version": "2.8.0",
    "py_version": "py312",
    "instance_count": 1,
    "instance_type": "ml.g5.2xlarge",
}

WORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hyperparameters": {
        "hyperparameters": {"epochs": 2, "name": "two words", "flag": True, "none": None, "q": "a'b\"c", "ü": "ö"}
    },
    "torchrun": {"distribution": {"torch_distributed": {"enabled": True}}, "instance_count": 2},
    "mpi": {"distribution": {"mpi": {"enabled": True}}, "instance_count": 2},
    "isolation": {"enable_network_isolation": True},
    "checkpoints": {"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "/opt/ml/checkpoints"},
    "spot": {"use_spot_instances": True, "max_run": 3600, "max_wait": 7200},
    "warm pool": {"keep_alive_period_in_seconds": 600},
    "vpc": {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
    "metrics": {"metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]},
    "heterogeneous": {
        "instance_groups": [InstanceGroup("a", "ml.g5.2xlarge", 1), InstanceGroup("b", "ml.c5.xlarge", 1)],
        "instance_count": None,
        "instance_type": None,
    },
    "environment": {"environment": {"A": "b c"}},
    "tags": {"tags": [{"Key": "k", "Value": "v"}], "volume_size": 200, "output_path": "s3://b/out"},
    "folder of the entry": {"entry_point": "tools/eval.py"},
    "file alone": {"entry_point": "project/train.py", "source_dir": None},
    "shell": {"entry_point": "start.sh"},
    "2.5.1": {"framework_version": "2.5.1", "py_version": "py311"},
    "own image": {
        "image_uri": "111111111111.dkr.ecr.us-east-1.amazonaws.com/mine:1",
        "framework_version": None,
        "py_version": None,
    },
}

REFUSED: dict[str, dict[str, Any]] = {
    "smddp": {"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}, "instance_count": 2,
              "instance_type": "ml.p4d.24xlarge", "framework_version": "2.2.0", "py_version": "py310"},
    "old image": {"framework_version": "2.0.1", "py_version": "py310"},
    "archive": {"source_dir": "s3://bucket/source.tar.gz"},
    "git": {"git_config": {"repo": "https://example.com/x.git"}},
    "no folder": {"source_dir": "nowhere"},
    "no entry": {"entry_point": "nothing.py"},
    "graviton": {"instance_type": "ml.g5g.xlarge"},
}  # fmt: skip


def request(estimator: Any) -> dict[str, Any]:
    sent.clear()
    uploads.clear()
    inputs = {"training": TrainingInput("s3://b/train", input_mode="FastFile")}
    estimator.fit(inputs, wait=False, job_name="job")
    names = next((names for names in uploads.values() if any("train" in name for name in names)), [])
    return {"request": sent[-1], "files": sorted(names)}


def main() -> None:
    found: dict[str, Any] = {"works": {}, "refused": {}}
    for name, options in WORKS.items():
        estimator = PyTorch(**{**BASE, **options}, sagemaker_session=session())
        plain = request(estimator)
        changed = request(under(estimator, "run"))
        found["works"][name] = {"plain": plain, "run": changed}
        if name == "plain":
            found["works"][name]["diagnose"] = request(under(estimator, "diagnose"))
        found["works"][name]["undone"] = request(under(estimator, "plain"))
    for name, options in REFUSED.items():
        estimator = PyTorch(**{**BASE, **options}, sagemaker_session=session())
        before = dict(vars(estimator))
        try:
            under(estimator, "run")
            found["refused"][name] = None
        except UsageError as error:
            found["refused"][name] = f"{error} ({error.hint})" + ("" if vars(estimator) == before else " CHANGED")
    tensorflow = TensorFlow(**{**BASE, "framework_version": "2.14", "py_version": "py310"}, sagemaker_session=session())
    try:
        under(tensorflow, "run")
    except UsageError as error:
        found["refused"]["tensorflow"] = f"{error} ({error.hint})"
    json.dump(found, sys.stdout, default=str)


if __name__ == "__main__":
    main()
