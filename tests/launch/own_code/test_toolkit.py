"""SageMaker's own toolkit starts our entry file: as a plain process and under torchrun with two ranks.

`make test-frameworks` sets HEADRACE_SAGEMAKER_SDKS; scripts/sagemaker_sdk.sh makes the environment with the toolkit.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace.launch.own_code.source import Source, Under
from headrace.launch.own_code.travelling import stage

REPOSITORY = Path(__file__).parents[3]

SCRIPT = """
import argparse, json, os, sys
import torch, torchvision
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--name")
args = parser.parse_args()
torch.manual_seed(0)
steps = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
data = torchvision.datasets.ImageFolder(os.environ["SM_CHANNEL_TRAINING"], steps)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
sampler = DistributedSampler(data) if ranks > 1 else None
model = torch.nn.Linear(3 * 32 * 32, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for x, y in torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler, num_workers=1):
    loss = torch.nn.functional.cross_entropy(model(x.flatten(1)), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
loss = loss.detach()
if ranks > 1:
    torch.distributed.all_reduce(loss)
found = {"loss": loss.item(), "ranks": ranks, "argv": sys.argv[1:], "program": os.environ["SM_USER_ENTRY_POINT"],
         "module": os.environ["SM_MODULE_NAME"], "training": json.loads(os.environ["SM_TRAINING_ENV"])["user_entry_point"]}
if os.environ.get("RANK", "0") == "0":
    where = sys.modules["headrace"].__file__ if "headrace" in sys.modules else None
    json.dump([found, where], open(os.path.join(os.environ["SM_MODEL_DIR"], "found.json"), "w"))
"""


@pytest.fixture(scope="module")
def toolkit() -> Path:
    if "HEADRACE_SAGEMAKER_SDKS" not in os.environ:
        pytest.skip("untested: no environment with SageMaker's toolkit")
    script = REPOSITORY / "scripts" / "sagemaker_sdk.sh"
    python = subprocess.run([script, "toolkit"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return Path(python).with_name("train")


def tree(base: Path, source: Source, photos: Path, parameters: dict[str, Any]) -> Path:
    """Make what SageMaker makes for a container: the request's files, and the archive of the SDK."""
    if source.under == "plain":
        source.stage(base.parent / "staged")
    else:
        stage(source, base.parent / "staged")
    archive = base.parent / "sourcedir.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(base.parent / "staged", arcname="/")
    for folder in ("input/config", "input/data", "model", "output/data"):
        (base / folder).mkdir(parents=True)
    (base / "input/data/training").symlink_to(photos)
    files = {
        "hyperparameters": {
            "sagemaker_program": source.program,
            "sagemaker_submit_directory": str(archive),
            "lr": 0.01,
            "name": "two words",
            **parameters,
        },
        "resourceconfig": {"current_host": "localhost", "hosts": ["localhost"], "network_interface_name": "lo",
                           "current_instance_type": "ml.g5.12xlarge", "current_group_name": "homogeneousCluster",
                           "instance_groups": [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.g5.12xlarge",
                                                "hosts": ["localhost"]}]},
        "inputdataconfig": {"training": {"TrainingInputMode": "File"}},
    }  # fmt: skip
    files["hyperparameters"] = {name: json.dumps(value) for name, value in files["hyperparameters"].items()}
    for name, value in files.items():
        (base / f"input/config/{name}.json").write_text(json.dumps(value))
    return base


RANKS = {"sagemaker_torch_distributed_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}


@pytest.mark.timeout(1800)  # eight processes import torch
@pytest.mark.parametrize("parameters", [{}, RANKS], ids=["plain", "torchrun"])
def test_the_toolkit_starts_the_script_under_headrace_with_the_same_result(
    tmp_path: Path, toolkit: Path, image_folder: Callable[..., Path], parameters: dict[str, Any]
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").write_text(SCRIPT)
    photos = image_folder(classes=3, per_class=4)
    found, said = {}, {}
    both: tuple[Under, Under] = ("plain", "run")
    for under in both:
        (tmp_path / under).mkdir()
        source = Source(tmp_path / "project", "train.py", under)
        base = tree(tmp_path / under / "ml", source, photos, parameters)
        environment = {
            "PATH": f"{toolkit.parent}:{REPOSITORY / '.venv/bin'}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "SAGEMAKER_BASE_DIR": str(base),
            "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
            "AWS_REGION": "us-east-1",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run([toolkit], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=800)
        said[under] = done.stdout + done.stderr
        assert done.returncode == 0, said[under][-3000:]
        found[under], where = json.loads((base / "model/found.json").read_text())
        assert (where is None) == (under == "plain") and (where or "").startswith(str(base / "code/.headrace") if where else "")
    assert found["run"] == found["plain"]
    assert found["plain"]["argv"] == ["--lr", "0.01", "--name", "two words"]
    assert (found["run"]["ranks"], found["run"]["program"], found["run"]["training"]) == (
        2 if parameters else 1, "train.py", "train.py",
    )  # fmt: skip
    assert "taken over: decode, RandomResizedCrop, ToTensor" in said["run"] and "runs plain" not in said["run"]
