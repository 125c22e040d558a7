"""Run by the Python of an environment with SageMaker's SDK 3: the requests of `ModelTrainer`, plain and under headrace.

Nothing is sent: the session's clients are stubs.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import sagemaker.core.telemetry.telemetry_logging as telemetry
import sagemaker.train.defaults as defaults
from headrace.errors import UsageError
from headrace.launch import under
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.training.configs import CheckpointConfig, Compute, InputData, Networking, SourceCode, StoppingCondition
from sagemaker.train.distributed import MPI, Torchrun
from sagemaker.train.model_trainer import ModelTrainer

logging.disable(logging.ERROR)
warnings.simplefilter("ignore")
telemetry._requests_helper = lambda *_, **__: None
defaults.resolve_and_validate_role = lambda role=None, *_, **options: options.get("provided_role", role)
uploads: dict[str, list[str]] = {}
scripts: dict[str, str] = {}


def session() -> Session:
    boto = MagicMock(region_name="us-east-1")
    found = Session(boto_session=boto, sagemaker_client=MagicMock(), default_bucket="bucket")

    def upload(path: str, bucket: str | None = None, key_prefix: str = "", **_: Any) -> str:
        files = [file for file in Path(path).rglob("*") if file.is_file()]
        uploads[key_prefix] = sorted(file.relative_to(path).as_posix() for file in files)
        scripts.update({file.name: file.read_text() for file in files if file.name in ("sm_train.sh", "sourcecode.json")})
        return f"s3://{bucket}/{key_prefix}"

    found.upload_data = upload
    return found


IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:{}"
CODE = {"source_dir": "project", "entry_script": "train.py"}

WORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "requirements": {"source_code": SourceCode(**CODE, requirements="requirements.txt")},
    "torchrun": {
        "distributed": Torchrun(process_count_per_node=4),
        "compute": Compute(instance_type="ml.g5.12xlarge", instance_count=2),
    },
    "mpi": {"distributed": MPI(process_count_per_node=1), "compute": Compute(instance_type="ml.g5.12xlarge", instance_count=2)},
    "command": {"source_code": SourceCode(source_dir="project", command="python train.py --epochs 2 'a b'")},
    "shell": {"source_code": SourceCode(source_dir="project", entry_script="start.sh")},
    "vpc": {"networking": Networking(subnets=["subnet-1"], security_group_ids=["sg-1"], enable_network_isolation=True)},
    "checkpoints": {"checkpoint_config": CheckpointConfig(s3_uri="s3://b/c")},
    "limits": {"stopping_condition": StoppingCondition(max_runtime_in_seconds=3600)},
    "environment": {"environment": {"A": "b c"}},
    "own image": {"training_image": "111111111111.dkr.ecr.us-east-1.amazonaws.com/mine:1"},
}

REFUSED: dict[str, dict[str, Any]] = {
    "old image": {"training_image": IMAGE.format("2.1.0-gpu-py310-cu121-ubuntu20.04-sagemaker")},
    "archive": {"source_code": SourceCode(source_dir="s3://bucket/source.tar.gz", entry_script="train.py")},
    "no code": {"source_code": None},
    "graviton": {"compute": Compute(instance_type="ml.g5g.xlarge", instance_count=1)},
}


def trainer(options: dict[str, Any]) -> ModelTrainer:
    given = {
        "training_image": IMAGE.format("2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker"),
        "source_code": SourceCode(**CODE),
        "compute": Compute(instance_type="ml.g5.2xlarge", instance_count=1),
        "role": "arn:aws:iam::111111111111:role/r",
        "base_job_name": "job",
        "hyperparameters": {"epochs": 2, "name": "two words", "flag": True, "none": None, "q": "a'b\"c", "ü": "ö"},
    }
    return ModelTrainer(**{**given, **options}, sagemaker_session=session())


def request(found: ModelTrainer) -> dict[str, Any]:
    uploads.clear()
    scripts.clear()
    inputs = [InputData(channel_name="training", data_source="s3://b/train")]
    arguments = found._create_training_job_args(input_data_config=inputs, boto3=True)
    names = next((names for key, names in uploads.items() if key.endswith("code")), [])
    started = [line for line in scripts.get("sm_train.sh", "").splitlines() if "headrace" in line or "train.py" in line]
    request = json.loads(json.dumps(arguments, default=str).replace(arguments["TrainingJobName"], "job"))  # it has the time
    return {"request": request, "files": names, "started": started, "source": scripts.get("sourcecode.json", "")}


def main() -> None:
    found: dict[str, Any] = {"works": {}, "refused": {}}
    for name, options in WORKS.items():
        one = trainer(options)
        plain, changed = request(one), request(under(one, "run"))
        found["works"][name] = {"plain": plain, "run": changed, "undone": request(under(one, "plain"))}
    for name, options in REFUSED.items():
        one = trainer(options)
        before = one.source_code
        try:
            under(one, "run")
            found["refused"][name] = None
        except UsageError as error:
            found["refused"][name] = f"{error} ({error.hint})" + ("" if one.source_code is before else " CHANGED")
    print(json.dumps(found, default=str), file=sys.stdout)


if __name__ == "__main__":
    main()
