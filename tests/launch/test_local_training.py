"""Small models train to the end in local jobs: sharded hosts, Pipe mode, instance groups, spot interruptions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.launch.job_request.request import Channel, InstanceGroup, TrainingJob, build_request
from headrace.launch.local.job import Interruption, LocalJob, run_local
from headrace.launch.local.store import LocalStore
from headrace.launch.own_code.source import Source
from headrace.packing import pack

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HELPERS = str(Path(__file__).parents[1] / "helpers")
OPTIONS = {"model": "slow_tiny:make", "batch-size": "4", "image-size": "32", "device": "cpu", "threads": "1", "seed": "3",
           "checkpoint-steps": "1", "keep": "100"}  # fmt: skip


@pytest.fixture
def images(image_folder: Callable[..., Path]) -> Path:
    return image_folder(classes=2, per_class=12)


@pytest.fixture(autouse=True)
def helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS)


def train(
    folder: Path, data: Path, *, script: Path | None = None, interruptions: Sequence[Interruption] = (),
    channel: dict[str, Any] | None = None, hyperparameters: dict[str, str] | None = None, **options: Any,
) -> LocalJob:  # fmt: skip
    channels = [Channel("train", "s3://bucket/train", **{"mode": "File", **(channel or {})})]
    job = TrainingJob("job", "ml.m5.xlarge", "arn:aws:iam::000000000000:role/x", "bucket", channels,
                      hyperparameters=OPTIONS if hyperparameters is None else hyperparameters, **options)  # fmt: skip
    store = LocalStore(folder / "s3", {"s3://bucket/train/": data})
    return run_local(
        build_request(job),
        store,
        folder / "job",
        source=Source.of_file(script) if script else None,
        interruptions=interruptions,
        grace_s=120.0,
    )


def logs(job: LocalJob) -> str:
    return "\n".join(file.read_text() for file in sorted((job.folder / "logs").iterdir()))


def weights(folder: Path) -> bytes:
    (found,) = (folder / "s3/bucket/headrace/job/output").rglob("final.safetensors")
    return found.read_bytes()


def test_three_interruptions_leave_the_weights_of_an_undisturbed_run(tmp_path: Path, images: Path) -> None:
    options = {**OPTIONS, "epochs": "4"}  # 24 steps
    calm = train(tmp_path / "calm", images, hyperparameters=options, spot=True)
    assert calm.status == "Completed", logs(calm)

    def after(step: int) -> Interruption:
        def taken(checkpoints: Path, passed_s: float) -> bool:
            steps = [
                int(path.name.removeprefix("step-")) for path in checkpoints.rglob("step-*") if (path / "state.json").exists()
            ]
            return bool(steps) and max(steps) >= step

        return taken

    taken = [after(3), after(8), after(14)]
    disturbed = train(tmp_path / "spot", images, hyperparameters=options, spot=True, interruptions=taken)
    assert (disturbed.status, disturbed.interruptions, disturbed.killed) == ("Completed", 3, []), logs(disturbed)
    assert weights(tmp_path / "spot") == weights(tmp_path / "calm")


SHARDED = """
import json, os
import headrace, torch, torch.distributed as dist
dist.init_process_group("gloo")
data = headrace.open(os.environ["SM_CHANNEL_TRAIN"], part=True)
loader = headrace.Loader(data, 3, headrace.transforms.imagenet_train(32), parts="agree", threads=1, dtype="float32",
                         drop_last=False)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3 * 32 * 32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
steps = 0
for images, labels in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images.contiguous().flatten(1)), labels).backward()
    optimizer.step()
    steps += 1
sums = [torch.zeros(1) for _ in range(2)]
dist.all_gather(sums, model.module.weight.sum().reshape(1).detach())
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"{os.environ['SM_CURRENT_HOST']}.json"), "w") as file:
    json.dump({"keys": list(data.table.keys), "steps": steps, "sums": [float(one) for one in sums]}, file)
dist.destroy_process_group()  # without it Gloo's threads can meet an interpreter that is ending, and abort
"""


def test_two_hosts_train_on_their_shards(tmp_path: Path, images: Path) -> None:
    pack(images, tmp_path / "packed", shard_size=1 << 16)
    assert len(list((tmp_path / "packed").glob("*.tar"))) >= 2
    (tmp_path / "train.py").write_text(SHARDED)
    job = train(
        tmp_path, tmp_path / "packed", script=tmp_path / "train.py", channel={"distribution": "ShardedByS3Key"},
        hyperparameters={}, count=2, environment={"HEADRACE_TORCHRUN": "1"},
    )  # fmt: skip
    assert job.status == "Completed", logs(job)
    found = [json.loads(path.read_text()) for path in (tmp_path / "s3/bucket/headrace/job/output").rglob("algo-*.json")]
    assert len(found) == 2
    assert all(one["keys"] for one in found)
    keys = [key.partition("/")[2] for one in found for key in one["keys"]]  # a part names its shards
    assert sorted(keys) == sorted(headrace.open(tmp_path / "packed").table.keys)
    assert len({one["steps"] for one in found}) == 1
    assert found[0]["sums"][0] == found[0]["sums"][1] == found[1]["sums"][0]


def test_headrace_train_on_two_hosts_reads_each_shard_once(tmp_path: Path, images: Path) -> None:
    """The hosts' parts hold neither the same classes' names nor the manifest; all ranks make equally many steps."""
    pack(images, tmp_path / "packed", shard_size=1 << 16)
    options = {**OPTIONS, "epochs": "2", "batch-size": "3"}
    job = train(tmp_path, tmp_path / "packed", channel={"distribution": "ShardedByS3Key"}, hyperparameters=options, count=2)
    assert job.status == "Completed", logs(job)
    hosts = [json.loads((host / "input/config/inputdataconfig.json").read_text()) for host in (job.folder / "hosts").iterdir()]
    assert len(hosts) == 2 and {one["train"]["S3DistributionType"] for one in hosts} == {"ShardedByS3Key"}
    shards = [len(list((host / "input/data/train").glob("*.tar"))) for host in (job.folder / "hosts").iterdir()]
    assert all(shards) and sum(shards) == len(list((tmp_path / "packed").glob("*.tar")))
    lines = [json.loads(line) for line in next((tmp_path / "s3").rglob("metrics.jsonl")).read_text().splitlines()]
    assert lines[0]["images"] == 24 and lines[0]["classes"] == 2 and lines[0]["world_size"] == 2
    smallest = min(_records(host / "input/data/train") for host in (job.folder / "hosts").iterdir())
    assert lines[0]["total_steps"] == 2 * (smallest // 3)
    left_out = 24 - 6 * (smallest // 3)
    assert (f"leaves out {left_out} of 24 images" in logs(job)) is (left_out > 0)
    assert weights(tmp_path)


def test_a_validation_channel_in_shards_counts_every_image_once(tmp_path: Path, images: Path) -> None:
    """The same training, with the validation images whole on both hosts and divided: the same scores of the same images."""
    pack(images, tmp_path / "packed", shard_size=1 << 16)
    found = {}
    for distribution in ("FullyReplicated", "ShardedByS3Key"):
        place = tmp_path / distribution
        channels = [
            Channel("train", "s3://bucket/train", mode="File"),
            Channel("validation", "s3://bucket/validation", mode="File", distribution=distribution),
        ]
        job = TrainingJob("job", "ml.m5.xlarge", "arn:aws:iam::000000000000:role/x", "bucket", channels,
                          hyperparameters={**OPTIONS, "epochs": "1", "batch-size": "3"}, count=2)  # fmt: skip
        store = LocalStore(place / "s3", {f"s3://bucket/{name}/": tmp_path / "packed" for name in ("train", "validation")})
        done = run_local(build_request(job), store, place / "job", grace_s=120.0)
        assert done.status == "Completed", logs(done)
        parts = [len(list((host / "input/data/validation").glob("*.tar"))) for host in (done.folder / "hosts").iterdir()]
        whole = len(list((tmp_path / "packed").glob("*.tar")))
        assert sum(parts) == (whole if distribution == "ShardedByS3Key" else 2 * whole) and all(parts)
        lines = [json.loads(line) for line in next((place / "s3").rglob("metrics.jsonl")).read_text().splitlines()]
        (found[distribution],) = [line["evaluation"] for line in lines if "evaluation" in line]
    whole_set, divided = found["FullyReplicated"], found["ShardedByS3Key"]
    assert divided["images"] == whole_set["images"] == 24
    assert divided["top1"] == whole_set["top1"]
    assert divided["loss"] == pytest.approx(whole_set["loss"], rel=1e-5)


def _records(folder: Path) -> int:
    return len(headrace.open(folder, part=True))


def test_a_model_trains_from_a_pipe(tmp_path: Path, images: Path) -> None:
    pack(images, tmp_path / "packed")
    job = train(tmp_path, tmp_path / "packed", channel={"mode": "Pipe"}, hyperparameters={**OPTIONS, "epochs": "1"})
    assert job.status == "Completed", logs(job)
    assert weights(tmp_path)


def test_two_instance_groups_train_together(tmp_path: Path, images: Path) -> None:
    groups = [InstanceGroup("large", "ml.m5.4xlarge", 1), InstanceGroup("small", "ml.m5.xlarge", 1)]
    job = train(tmp_path, images, groups=groups, hyperparameters={**OPTIONS, "epochs": "1"})
    assert job.status == "Completed", logs(job)
    assert weights(tmp_path)
    assert "24/24 img" in logs(job)
