"""Training jobs on local hosts under SageMaker's contract. Scripts are written for SageMaker's toolkit and run unchanged."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.errors import SourceError
from headrace.launch.job_request.request import Channel, InstanceGroup, TrainingJob, build_request
from headrace.launch.job_request.request_code import chosen_code
from headrace.launch.local import watchdog
from headrace.launch.local.checkpoints import CheckpointCopy
from headrace.launch.local.job import LocalJob, run_local
from headrace.launch.local.places import FolderPlace
from headrace.launch.local.store import LocalStore
from headrace.launch.own_code.source import Source
from object_store import Bucket, needs_obstore, serving

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import argparse, json, os
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--train", default=os.environ["SM_CHANNEL_TRAIN"])
parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
given = parser.parse_args()
names = sorted(os.path.relpath(os.path.join(folder, name), given.train)
               for folder, _, files in os.walk(given.train) for name in files)
host = os.environ["SM_CURRENT_HOST"]
with open(os.path.join(given.model_dir, f"{host}.json"), "w") as file:
    json.dump({"names": names, "epochs": given.epochs, "hosts": json.loads(os.environ["SM_HOSTS"]),
               "keys": [name for name in os.environ if "AWS" in name], "group": os.environ["SM_CURRENT_INSTANCE_GROUP"]}, file)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number in range(7):
        path = tmp_path / "data" / f"class {number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * (number + 1))
    return tmp_path / "data"


Run = Callable[..., LocalJob]


@pytest.fixture
def run(tmp_path: Path, data: Path) -> Run:
    def start(script: str, *, channel: dict[str, Any] | None = None, limit_s: int | None = None, gzip: bool = False,
              interruptions: Any = (), grace_s: float = 60.0, stopped: Any = None, **options: Any) -> LocalJob:  # fmt: skip
        file = tmp_path / "train.py"
        file.write_text(script)
        options = {"hyperparameters": {"epochs": "3"}, **options}
        channels = [Channel("train", "s3://bucket/train", **{"mode": "File", **(channel or {})})]
        job = TrainingJob("job-1", options.pop("instance", "ml.m5.xlarge"), "arn:aws:iam::000000000000:role/x", "bucket",
                          channels, **options)  # fmt: skip
        request = build_request(job)
        if limit_s is not None:
            request["StoppingCondition"]["MaxRuntimeInSeconds"] = limit_s
        if gzip:
            del request["OutputDataConfig"]["CompressionType"]
        store = LocalStore(tmp_path / "s3", {"s3://bucket/train/": data})
        more = {} if stopped is None else {"stopped": stopped}
        return run_local(
            request,
            store,
            tmp_path / "job",
            source=Source.of_file(file),
            interruptions=list(interruptions),
            grace_s=grace_s,
            **more,
        )

    return start


def logs(job: LocalJob) -> str:
    return "\n".join(file.read_text() for file in sorted((job.folder / "logs").iterdir()))


def model(tmp_path: Path, host: str = "algo-1") -> Any:
    return json.loads((tmp_path / "s3/bucket/headrace/job-1/output/job-1/output/model" / f"{host}.json").read_text())


def test_a_script_for_the_toolkit_runs_unchanged(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    job = run(SCRIPT)
    assert job.status == "Completed", logs(job)
    found = model(tmp_path)
    assert found["names"] == [f"class {number % 2}/{number}.jpg" for number in (0, 2, 4, 6, 1, 3, 5)]
    assert (found["epochs"], found["hosts"], found["keys"]) == (3, ["algo-1"], [])
    described = json.loads((job.folder / "description.json").read_text())
    statuses = [one["Status"] for one in described["SecondaryStatusTransitions"]]
    assert statuses == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert described["ModelArtifacts"]["S3ModelArtifacts"] == "s3://bucket/headrace/job-1/output/job-1/output/model/"
    assert "planted-secret" not in json.dumps(described) + logs(job)


def test_results_are_packed_where_the_request_says_nothing_else(run: Run, tmp_path: Path) -> None:
    job = run(SCRIPT, gzip=True)
    assert job.status == "Completed", logs(job)
    place = tmp_path / "s3/bucket/headrace/job-1/output/job-1/output"
    with tarfile.open(place / "model.tar.gz") as tar:
        assert "./algo-1.json" in tar.getnames()
    assert not (place / "output.tar.gz").exists()


@pytest.mark.parametrize("mode", ["File", "FastFile"])
def test_the_input_of_the_store_is_never_changed(run: Run, data: Path, mode: str) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*.jpg")}
    script = "import os, shutil; shutil.rmtree(os.environ['SM_CHANNEL_TRAIN'])"
    assert run(script, channel={"mode": mode}).status == "Completed"
    assert {path: path.read_bytes() for path in data.rglob("*.jpg")} == before


def test_sharded_hosts_get_every_object_once(run: Run, tmp_path: Path) -> None:
    job = run(SCRIPT, channel={"distribution": "ShardedByS3Key"}, count=3)
    assert job.status == "Completed", logs(job)
    shares = [set(model(tmp_path, f"algo-{number}")["names"]) for number in (1, 2, 3)]
    assert sorted(map(len, shares)) == [2, 2, 3]
    assert len(set.union(*shares)) == 7


def test_groups_get_the_channels_that_name_them(run: Run, tmp_path: Path) -> None:
    groups = [InstanceGroup("gpu", "ml.g5.xlarge", 1), InstanceGroup("cpu", "ml.m5.xlarge", 1)]
    script = "import os\nos.environ.setdefault('SM_CHANNEL_TRAIN', '/nowhere')\n" + SCRIPT
    job = run(script, channel={"groups": ["gpu"]}, groups=groups)
    assert job.status == "Completed", logs(job)
    assert (len(model(tmp_path, "algo-1")["names"]), model(tmp_path, "algo-1")["group"]) == (7, "gpu")
    assert (model(tmp_path, "algo-2")["names"], model(tmp_path, "algo-2")["group"]) == ([], "cpu")


PIPE = """
import json, os, time
found = []
for epoch in range(3):
    path = f"{os.environ['SM_CHANNEL_TRAIN']}_{epoch}"
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        found.append(list(file.read(5 if epoch == 1 else -1)))
with open(os.path.join(os.environ["SM_MODEL_DIR"], "algo-1.json"), "w") as file:
    json.dump(found, file)
"""
OBJECTS = [bytes([number]) * (number + 1) for number in (0, 2, 4, 6, 1, 3, 5)]  # in the order of their keys


def test_a_pipe_carries_all_objects_in_every_pass_even_after_an_early_close(run: Run, tmp_path: Path) -> None:
    job = run(PIPE, channel={"mode": "Pipe"}, environment={"HEADRACE_READS_PIPES": "1"})
    assert job.status == "Completed", logs(job)
    whole = list(b"".join(OBJECTS))
    assert model(tmp_path) == [whole, whole[:5], whole]


def test_a_pipe_of_records_is_shuffled_anew_in_every_pass(run: Run, tmp_path: Path) -> None:
    channel = {"mode": "Pipe", "record_io": True, "shuffle_seed": 5}
    job = run(PIPE.replace("5 if epoch == 1 else -1", "-1"), channel=channel)
    assert job.status == "Completed", logs(job)

    def records(data: bytes) -> list[bytes]:
        found = []
        while data:
            magic, size = struct.unpack("<II", data[:8])
            assert magic == 0xCED7230A
            found.append(data[8 : 8 + size])
            data = data[8 + (size + 3) // 4 * 4 :]
        return found

    passes = [records(bytes(one)) for one in model(tmp_path)]
    assert all(sorted(one) == sorted(OBJECTS) for one in passes)
    assert len({tuple(one) for one in passes}) > 1


STEPS = """
import os, signal, sys, time
state = os.path.join(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints", "step")
step = int(open(state).read()) if os.path.exists(state) else 0
print("begins at", step, flush=True)
def save(*_):
    open(state, "w").write(str(step))
    old = os.path.join(os.path.dirname(state), f"old-{step}")
    open(old, "w").write("x")
signal.signal(signal.SIGTERM, lambda *_: (save(), sys.exit(0)))
while step < LAST:
    time.sleep(0.05)
    step += 1
open(os.path.join(os.environ["SM_MODEL_DIR"], "algo-1.json"), "w").write(str(step))
"""


def test_a_spot_job_goes_on_from_its_checkpoint_after_each_interruption(run: Run, tmp_path: Path) -> None:
    seen: list[int] = []

    def taken(checkpoints: Path, passed_s: float) -> bool:
        if not logged(tmp_path, len(seen) + 1):
            return False
        time.sleep(0.2)
        seen.append(1)
        return True

    job = run(STEPS.replace("LAST", "40"), spot=True, interruptions=[taken] * 3)
    assert (job.status, job.interruptions, job.killed) == ("Completed", 3, []), logs(job)
    begins = [int(line.split()[-1]) for line in logs(job).splitlines() if line.startswith("begins at")]
    assert len(begins) == 4 and begins[0] == 0 and begins == sorted(begins) and begins[3] > 0
    assert model(tmp_path) == 40
    statuses = [one["Status"] for one in job.description["SecondaryStatusTransitions"]]
    assert statuses.count("Interrupted") == 3 and statuses[-1] == "Completed"
    assert "nothing was saved" not in json.dumps(job.description)


def logged(tmp_path: Path, times: int) -> bool:
    file = tmp_path / "job" / "logs" / "algo-1.log"
    return file.exists() and file.read_text().count("begins at") >= times


def test_a_script_that_ignores_sigterm_is_killed_and_reported(run: Run, tmp_path: Path) -> None:
    ignores = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("begins at 0", flush=True)
time.sleep(600 if not os.path.exists(os.environ["MARK"]) else 0)
"""
    mark = tmp_path / "mark"

    def taken(checkpoints: Path, passed_s: float) -> bool:
        if logged(tmp_path, 1):
            mark.write_text("")
        return mark.exists()

    job = run(ignores, spot=True, interruptions=[taken], grace_s=0.3, environment={"MARK": str(mark)})
    assert (job.status, job.killed, job.interruptions) == ("Completed", ["algo-1"], 1), logs(job)
    (taken_away,) = [one for one in job.description["SecondaryStatusTransitions"] if one["Status"] == "Interrupted"]
    assert taken_away["StatusMessage"] == "The machines were taken; nothing was saved: the next attempt begins anew"
    assert not [one for one in Path("/proc").glob("[0-9]*") if b"job-1" in environ(one)], "a process of the job is left"


def environ(place: Path) -> bytes:
    try:
        return (place / "environ").read_bytes()
    except OSError:
        return b""


def test_the_longest_time_ends_the_job(run: Run) -> None:
    job = run(STEPS.replace("LAST", "100000"), limit_s=1)
    assert (job.status, job.description["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded"), logs(job)


def test_a_failure_says_why(run: Run) -> None:
    job = run("raise ValueError('no labels in row 7')")
    assert job.status == "Failed"
    assert "ValueError: no labels in row 7" in job.description["FailureReason"]
    assert job.description["FailureReason"].startswith("AlgorithmError: algo-1: training ended with exit code 1")


def test_one_failing_host_ends_the_others(run: Run) -> None:
    script = """
import os, time
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    raise ValueError("bad disk")
time.sleep(600)
"""
    job = run(script, count=2)
    assert job.status == "Failed" and "algo-2" in job.description["FailureReason"], logs(job)


def test_a_channel_without_objects_fails_as_on_sagemaker(run: Run, data: Path) -> None:
    for path in data.rglob("*.jpg"):
        path.unlink()
    job = run(SCRIPT)
    assert job.status == "Failed"
    assert "no objects below s3://bucket/train/" in job.description["FailureReason"]


def test_the_store_matches_prefixes_as_s3_does(tmp_path: Path) -> None:
    for name in ("train/a", "train2/b", "other/c"):
        (tmp_path / "bucket" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bucket" / name).write_text("x")
    store = LocalStore(tmp_path)
    assert [name for name, _ in store.objects("s3://bucket/train/")] == ["a"]
    assert [name for name, _ in store.objects("s3://bucket/tra")] == ["train/a", "train2/b"]
    assert store.objects("s3://bucket/none/") == []


def test_the_command_runs_a_request_file(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    words = ["launch", "local", "--script", str(tmp_path / "mine.py"), "--data", str(data), "--epochs", "4", "--name", "j"]
    assert main([*words, "--dry-run", "--out", str(tmp_path / "job.json"), "--json"]) == 0
    capsys.readouterr()
    again = ["launch", "local", "--request", str(tmp_path / "job.json"), "--channel", f"train={data}"]
    again += ["--script", str(tmp_path / "mine.py"), "--out", str(tmp_path / "job"), "--input-mode", "File"]
    assert main([*again, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["interruptions"]) == ("Completed", 0)
    (result,) = (tmp_path / "job" / "s3").rglob("algo-1.json")
    assert json.loads(result.read_text())["epochs"] == 4
    assert main([*again, "--interrupt", "5"]) == 2
    assert "--interrupt is for spot jobs" in capsys.readouterr().err
    assert (
        main(["launch", "local", "--request", str(tmp_path / "job.json"), "--channel", "vale=x", "--out", str(tmp_path)]) == 2
    )
    assert "no channel vale" in capsys.readouterr().err
    (tmp_path / "mine.py").write_text("raise SystemExit(3)")
    assert main(again) == 1
    assert "exit code 3" in capsys.readouterr().out


def test_checkpoints_are_copied_while_the_host_renames_and_removes_folders(tmp_path: Path) -> None:
    folder, store = tmp_path / "host", tmp_path / "store"
    copy = CheckpointCopy(folder, FolderPlace(store))
    end_s = time.monotonic() + 2.0
    number = 0
    while time.monotonic() < end_s:
        number += 1
        partial = folder / f".partial-{number}"
        (partial / "deep").mkdir(parents=True)
        (partial / "deep" / "state.json").write_text(str(number))
        partial.rename(folder / f"step-{number}")
        if number > 3:
            shutil.rmtree(folder / f"step-{number - 3}")
        copy.copy()
    copy.close()
    kept = sorted(path.relative_to(folder) for path in folder.rglob("state.json"))
    assert sorted(path.relative_to(store) for path in store.rglob("state.json")) == kept
    assert len(kept) == 3
    again = CheckpointCopy(tmp_path / "other host", FolderPlace(store))
    again.close()
    assert sorted(path.relative_to(tmp_path / "other host") for path in (tmp_path / "other host").rglob("state.json")) == kept


def test_a_folder_of_something_else_is_never_cleared(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine" / "logs").mkdir(parents=True)
    (tmp_path / "mine" / "logs" / "precious.txt").write_text("x")
    script = tmp_path / "train.py"
    script.write_text("")
    words = ["launch", "local", "--script", str(script), "--data", str(data), "--name", "j"]
    assert main([*words, "--out", str(tmp_path / "mine")]) == 1
    assert "is not the folder of a local job" in capsys.readouterr().err
    assert (tmp_path / "mine" / "logs" / "precious.txt").exists()
    assert main([*words, "--out", str(tmp_path / "new")]) == 0
    assert main([*words, "--out", str(tmp_path / "new")]) == 0
    capsys.readouterr()
    assert main([*words[:3], str(tmp_path / "none.py"), *words[4:]]) == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize("part", [".headrace-local-job", "hosts", "logs", "results", "s3"])
def test_a_local_job_follows_no_link_in_its_folder(
    part: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repository of a stranger may hold the folder of a job, whose name the request beside it has, with links."""
    precious = tmp_path / "home" / "algo-1" / "precious.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("x")
    theirs = tmp_path / "repository" / "theirs"
    theirs.mkdir(parents=True)
    (theirs / ".headrace-local-job").touch()
    (theirs / part).unlink(missing_ok=True)
    (theirs / part).symlink_to(precious if part.startswith(".") else tmp_path / "home")
    monkeypatch.chdir(theirs.parent)
    checkpoints = {"S3Uri": "s3://algo-1", "LocalPath": "/opt/ml/checkpoints"}
    request = foreign_request(theirs.parent, HyperParameters={"model": "resnet20"}, CheckpointConfig=checkpoints)
    assert main(["launch", "local", "--request", str(request), "--channel", f"train={data}"]) == 1
    assert f"{part} is a link" in capsys.readouterr().err
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == [precious]


def test_the_folder_of_a_local_job_is_no_link_unless_the_user_names_it(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request names the folder. The results of another job of the user's were removed."""
    (kept := tmp_path / "mine/results/model.pt").parent.mkdir(parents=True)
    kept.write_text("x")
    (tmp_path / "mine/.headrace-local-job").touch()
    (repository := tmp_path / "repository").mkdir()
    (repository / "theirs").symlink_to(tmp_path / "mine")
    monkeypatch.chdir(repository)
    request = foreign_request(repository, HyperParameters={"model": "resnet20"})
    assert main(["launch", "local", "--request", str(request), "--channel", f"train={data}"]) == 2
    assert "cannot use the folder theirs here: is a link" in capsys.readouterr().err
    assert kept.read_text() == "x"


def test_a_place_of_a_store_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret.txt").write_text("x")
    file = tmp_path / "new.txt"
    file.write_text("new")
    store = tmp_path / "store"
    (store / "bucket").mkdir(parents=True)
    (store / "bucket" / "job").symlink_to(tmp_path / "home")
    place = LocalStore(store).place("s3://bucket/job/checkpoints")
    for action in (lambda: place.put(file, "secret.txt"), lambda: place.remove("secret.txt"), lambda: [*place.fetch(tmp_path)]):
        with pytest.raises(SourceError, match="is a link"):
            action()
    (store / "bucket" / "job").unlink()
    (store / "bucket" / "job").mkdir()
    (store / "bucket" / "job" / "stolen.txt").symlink_to(tmp_path / "home" / "secret.txt")
    with pytest.raises(SourceError, match="is a link"):
        list(FolderPlace(store / "bucket" / "job").fetch(tmp_path / "copies"))
    assert [path.read_text() for path in (tmp_path / "home").iterdir()] == ["x"]


def test_an_object_that_vanishes_fails_the_job(run: Run, data: Path) -> None:
    script = """
import os, pathlib, time
target = sorted(pathlib.Path(os.environ["DATA"]).rglob("*.jpg"))[-1]
target.unlink()
open(os.environ["SM_CHANNEL_TRAIN"] + "_0", "rb").read()
time.sleep(600)
"""
    environment = {"HEADRACE_READS_PIPES": "1", "DATA": str(data)}
    job = run(script, channel={"mode": "Pipe"}, environment=environment)
    assert job.status == "Failed" and "channel train" in job.description["FailureReason"], logs(job)


@needs_obstore
@pytest.mark.parametrize("way", [["--channel", "train=s3://my-bucket/photos"], ["--fetch"]])
def test_the_data_comes_from_a_store(
    way: list[str], tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From an S3-compatible endpoint, once: the second job finds the copy. The request is the one that AWS would get."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    channels = [Channel("train", "s3://my-bucket/photos", mode="File")]
    job = TrainingJob("job", "ml.m5.xlarge", "arn:aws:iam::000000000000:role/x", "my-bucket", channels,
                      hyperparameters={"epochs": "3"}, script="train.py")  # fmt: skip
    Path("job.json").write_text(json.dumps(build_request(job)))
    made = Bucket()
    made.fill(data, "photos")
    with serving(made) as endpoint:
        for name, value in {"AWS_ENDPOINT_URL": endpoint, "AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "us-east-1"}.items():
            monkeypatch.setenv(name, value)
        read = []
        for number in range(2):
            words = ["launch", "local", "--request", "job.json", "--script", "train.py", *way, "--out", f"job{number}"]
            assert main(words) == 0, capsys.readouterr().err
            read.append(sum(".jpg" in one for one in made.requests))
    assert read[0] >= 7 and read[1] == read[0]
    (result,) = Path("job1/s3").rglob("algo-1.json")
    assert len(json.loads(result.read_text())["names"]) == 7
    assert json.loads(result.read_text())["names"] == sorted(path.relative_to(data).as_posix() for path in data.rglob("*.jpg"))
    assert "copying s3://my-bucket/photos" in capsys.readouterr().err


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A client of moto's S3, with the bucket `my-bucket`; the store that jobs see is the same."""
    server = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    serving = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    serving.start()
    host, port = serving.get_host_and_port()
    values = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_REGION": "us-east-1",
              "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED00", "AWS_SECRET_ACCESS_KEY": "planted-secret",
              "HEADRACE_CACHE": str(tmp_path / "cache")}  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=values["AWS_ENDPOINT_URL"])
    client.create_bucket(Bucket="my-bucket")
    try:
        yield client
    finally:
        serving.stop()


def keys(s3: Any, prefix: str) -> dict[str, bytes]:
    """The objects below a prefix of the bucket."""
    found = s3.list_objects_v2(Bucket="my-bucket", Prefix=prefix).get("Contents", [])
    return {one["Key"].removeprefix(prefix): s3.get_object(Bucket="my-bucket", Key=one["Key"])["Body"].read() for one in found}


SAVES = """
import os, signal, sys, time
base = os.environ["SAGEMAKER_BASE_DIR"]
folder = os.path.join(base, "checkpoints")
step = max([int(name[5:]) for name in os.listdir(folder) if name.startswith("step-")], default=0)
print("begins at", step, flush=True)
for step in range(step + 1, 31):
    with open(os.path.join(folder, "part"), "w") as file:
        file.write(str(step))
    os.rename(file.name, os.path.join(folder, f"step-{step}"))
    for name in os.listdir(folder):
        if name != f"step-{step}":
            os.unlink(os.path.join(folder, name))
    time.sleep(0.2)
for part, name in (("model", "weights"), ("output/data", "curve.csv")):
    with open(os.path.join(base, part, name), "w") as file:
        file.write(str(len(os.listdir(os.environ["SM_CHANNEL_TRAIN"]))))
"""


@needs_obstore
def test_a_store_is_the_source_and_the_destination(
    s3: Any, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Input from s3://, checkpoints to s3:// and back after an interruption, model and output to s3://, and no key anywhere."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SAVES)
    for path in data.rglob("*.jpg"):
        s3.put_object(Bucket="my-bucket", Key=f"photos/{path.relative_to(data).as_posix()}", Body=path.read_bytes())
    channels = [Channel("train", "s3://my-bucket/photos", mode="File")]
    job = TrainingJob(
        "job", "ml.m5.xlarge", "arn:aws:iam::000000000000:role/x", "my-bucket", channels, spot=True, script="train.py"
    )
    Path("job.json").write_text(json.dumps(build_request(job)))
    words = ["launch", "local", "--request", "job.json", "--script", "train.py", "--fetch", "--send"]
    assert main([*words, "--interrupt", "2", "--out", "here"]) == 0, capsys.readouterr().err
    printed = capsys.readouterr()
    log = Path("here/logs/algo-1.log").read_text()
    first, second = [int(line.split()[-1]) for line in log.splitlines() if line.startswith("begins at")]
    assert first == 0 < second
    assert keys(s3, "headrace/job/checkpoints/") == {"step-30": b"30"}  # what the host removed is removed there too
    results = "headrace/job/output/job/output/"
    assert keys(s3, results) == {"model/weights": b"2", "output/curve.csv": b"2"}
    assert f"model: s3://my-bucket/{results}model/" in printed.out
    assert not list(Path("here").rglob("s3/**/step-*"))
    written = [path.read_bytes() for path in Path("here").rglob("*") if path.is_file()]
    assert not any(b"planted" in one.lower() for one in [*written, printed.out.encode(), printed.err.encode()])
    assert not any("planted" in name.lower() for name in keys(s3, ""))
    assert main([*words, "--out", "again"]) == 0  # another machine: the job goes on from the store
    assert "begins at 30" in Path("again/logs/algo-1.log").read_text()


@needs_obstore
def test_a_store_that_cannot_be_written_is_refused_before_the_training(
    s3: Any, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    words = ["launch", "local", "--script", "train.py", "--data", str(data), "--out", "here"]
    assert main([*words, "--send", "--bucket", "none-of-mine"]) == 1
    printed = capsys.readouterr().err
    assert "no bucket of that name" in printed and "Traceback" not in printed and "planted" not in printed
    assert not Path("here/hosts").exists()
    assert main([*words, "--send"]) == 2
    assert "--bucket NAME" in capsys.readouterr().err
    assert main([*words, "--send", "--bucket", "my-bucket", "--store", "folder"]) == 2


LONG = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "pids.part"), "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(file.name, os.path.join(os.environ["SM_MODEL_DIR"], "pids"))
time.sleep(600)
"""


def test_a_killed_launcher_leaves_no_process(tmp_path: Path, data: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    words = ["launch", "local", "--script", "long.py", "--data", str(data), "--input-mode", "File", "--out", "job"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    pids = tmp_path / "job" / "hosts" / "algo-1" / "model" / "pids"
    try:
        while not pids.exists():
            assert launcher.poll() is None
            time.sleep(0.05)
        places = [Path("/proc") / pid for pid in pids.read_text().split()]
        assert all(place.exists() for place in places)
    finally:
        launcher.kill()
        launcher.wait()
    end_s = time.monotonic() + 120
    while any(_lives(place) for place in places):
        assert time.monotonic() < end_s, "the hosts outlived their launcher"
        time.sleep(0.1)


def _lives(place: Path) -> bool:
    try:
        return (place / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif("HEADRACE_SAGEMAKER_TOOLKIT" not in os.environ, reason="untested: no environment with sagemaker-training")
def test_the_toolkit_starts_a_script_in_the_tree_of_a_local_host(run: Run, tmp_path: Path) -> None:
    assert run(SCRIPT).status == "Completed"
    base = tmp_path / "job" / "hosts" / "algo-1"
    (ours,) = (base / "model").glob("algo-1.json")
    expected = ours.read_text()
    ours.unlink()
    names = tmp_path / "hosts"
    names.write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 algo-1\n")
    train = Path(os.environ["HEADRACE_SAGEMAKER_TOOLKIT"])
    environment = {"PATH": f"{train.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "SAGEMAKER_BASE_DIR": str(base)}
    words = f"mount --bind {shlex.quote(str(names))} /etc/hosts && exec {shlex.quote(str(train))}"
    command = ["unshare", "-m", "-r", "bash", "-c", words]
    subprocess.run(command, env={**environment, "SAGEMAKER_PROGRAM": "train.py"}, check=True, timeout=120)
    assert json.loads(ours.read_text()) == json.loads(expected)


def foreign_request(folder: Path, **changes: Any) -> Path:
    """A request of somebody else, as a file; its data is a folder of this machine."""
    channels = [Channel("train", "s3://local/train", mode="File")]
    job = TrainingJob("theirs", "ml.m5.xlarge", "arn:aws:iam::000000000000:role/x", "bucket", channels)
    file = folder / "theirs.json"
    file.write_text(json.dumps({**build_request(job), **changes}))
    return file


PLANTED: dict[str, dict[str, Any]] = {
    "ContainerEntrypoint": {
        "AlgorithmSpecification": {
            "TrainingImage": "image", "TrainingInputMode": "File", "ContainerEntrypoint": ["sh", "-c", "touch RAN"],
        }
    },
    "ContainerArguments": {
        "AlgorithmSpecification": {
            "TrainingImage": "image", "TrainingInputMode": "File", "ContainerArguments": ["touch", "RAN"],
        }
    },
    "PYTHONSTARTUP": {"Environment": {"PYTHONSTARTUP": "/tmp/x.py"}},
    "PATH": {"Environment": {"PATH": "/tmp/evil:/usr/bin"}},
    "LD_PRELOAD": {"Environment": {"LD_PRELOAD": "/tmp/x.so"}},
    "HEADRACE_SCRIPT": {"Environment": {"HEADRACE_SCRIPT": "../../../../x.py"}},
    "net:make": {"HyperParameters": {"model": "net:make"}},
    "model=net:make": {"HyperParameters": {"model=net:make": "x"}},
    "sagemaker_program": {"HyperParameters": {"sagemaker_program": "../x.py"}},
    "out": {"HyperParameters": {"model": "resnet18", "out": "/home/victim"}},
    "data": {"HyperParameters": {"model": "resnet18", "data": "/home/victim/photos"}},
    # A value that is an option: `--tf32` takes no value, so training would read `--out=…` as its next option.
    "tf32=--out": {"HyperParameters": {"model": "resnet18", "tf32": "--out=/home/victim"}},
    "tf32=--model": {"HyperParameters": {"tf32": "--model=net:make"}},
    "compile={": {"HyperParameters": {"model": "resnet18", "compile": '{"--config": "/tmp/x.toml"}'}},
    'model="net': {"HyperParameters": {"model": '"net\\u003amake"'}},
    "20 hosts": {"ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 20, "VolumeSizeInGB": 1}},
    # A mask would hide what is agreed to.
    "masked": {
        "AlgorithmSpecification": {
            "TrainingImage": "image", "TrainingInputMode": "File", "ContainerEntrypoint": ["sh", "-c", "TOKEN='x;touch RAN'"],
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_code_of_a_foreign_request_is_shown_and_needs_yes(
    name: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[object] = []
    monkeypatch.setattr("headrace.cli.cloud.launch.run_local", lambda request, *args, **more: started.append(request) or 1 / 0)
    monkeypatch.chdir(tmp_path)
    words = ["launch", "local", "--request", str(foreign_request(tmp_path, **PLANTED[name])), "--channel", f"train={data}"]
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert name in printed or name.partition("=")[0] in printed or "touch RAN" in printed
    assert "--yes" in printed
    assert not started
    with pytest.raises(ZeroDivisionError):
        main([*words, "--yes"])
    assert started


def test_a_request_that_names_no_code_needs_no_yes(tmp_path: Path) -> None:
    options = {"model": "resnet18", "epochs": "2", "pretrained": "auto"}
    request = json.loads(foreign_request(tmp_path, HyperParameters=options).read_text())
    assert chosen_code(request, script=False) == []
    shown = chosen_code(request, script=True)  # of another script, any option may name a place or code
    assert [line.partition("=")[0] for line in shown] == ["HyperParameters: model", "HyperParameters: pretrained"]
    for name, value in {"pretrained": "/home/me/weights.pt", "pretrained=/home/me/weights.pt": "auto", "data": "auto"}.items():
        assert len(chosen_code(request | {"HyperParameters": {name: value}}, script=False)) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"OutputDataConfig": {"S3OutputPath": "s3://bucket/a/../../../x"}}, "S3OutputPath"),
        ({"OutputDataConfig": {"S3OutputPath": "s3://local/train/here"}}, "inside the data"),
        ({"OutputDataConfig": {"S3OutputPath": "s3://local//train/here"}}, "inside the data"),
        ({"CheckpointConfig": {"S3Uri": "s3://bucket/../../x", "LocalPath": "/opt/ml/checkpoints"}}, "S3Uri"),
        ({"CheckpointConfig": {"S3Uri": "s3://local/train/../x", "LocalPath": "/opt/ml/checkpoints"}}, "S3Uri"),
    ],
)
def test_results_outside_their_prefix_or_among_the_data_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(data.rglob("*"))
    file = foreign_request(tmp_path, **changes)
    out = str(tmp_path / "job")
    assert main(["launch", "local", "--request", str(file), "--channel", f"train={data}", "--out", out, "--yes"]) == 2
    assert words in capsys.readouterr().err
    assert sorted(data.rglob("*")) == before
    with pytest.raises(SourceError):
        LocalStore(tmp_path, {"s3://local/train": data}).path("s3://local/train/../../x")


def test_the_description_of_a_job_is_private_and_holds_no_secret(tmp_path: Path, data: Path) -> None:
    program = {"TrainingImage": "image", "TrainingInputMode": "File", "ContainerEntrypoint": ["true", "--token", "plantedA1"]}
    changes = {"Environment": {"SOME_NAME": "plantedB2"}, "HyperParameters": {"api_key": "plantedC3", "epochs": "2"}}
    file = foreign_request(tmp_path, AlgorithmSpecification=program, **changes)
    words = ["launch", "local", "--request", str(file), "--channel", f"train={data}", "--out", str(tmp_path / "job"), "--yes"]
    assert main(words) == 0
    description = tmp_path / "job" / "description.json"
    assert description.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o700
    found = json.loads(description.read_text())
    assert "planted" not in description.read_text()
    assert found["Environment"] == {"SOME_NAME": "***"}
    assert found["HyperParameters"] == {"api_key": "***", "epochs": "2"}


def test_variables_of_processes_of_others_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them waits for the memory of the process, which another user may let wait for ever."""
    for number, user in (("1", os.getuid() + 1), ("2", os.getuid())):
        (tmp_path / number).mkdir()
        (tmp_path / number / "status").write_text(f"Name:\tx\nUid:\t{user}\t0\t0\t0\n")
        (tmp_path / number / "environ").write_bytes(b"A=1\0HEADRACE_LOCAL_JOB=ours\0")
    killed: list[int] = []
    monkeypatch.setattr(watchdog, "PROC", tmp_path)
    monkeypatch.setattr(watchdog.os, "kill", lambda pid, number: killed.append(pid))
    assert watchdog.kill_marked("ours") == 1 and killed == [2]
