"""`headrace launch local --request`: jobs as SageMaker's SDKs ask for them, with their source archives and commands."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.errors import SourceError
from headrace.launch.in_container import source_archive
from headrace.launch.in_container.source_archive import unpack_source
from object_store import Bucket, needs_obstore, serving

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import json, os, sys, helper
found = {"argv": sys.argv[1:], "data": sorted(os.listdir(os.environ["SM_CHANNEL_TRAINING"])), "helper": helper.NAME,
         "program": os.environ["SM_USER_ENTRY_POINT"], "hooks": os.environ.get("HEADRACE_HOOKS")}
json.dump(found, open(os.path.join(os.environ["SM_MODEL_DIR"], "found.json"), "w"))
"""
ADDRESS = "s3://bucket/job/source/sourcedir.tar.gz"
INSIDE = "/opt/ml/input/data/code/sourcedir.tar.gz"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("NAME = 'helped'")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(b"x")
    return folder


def packed(project: Path, archive: Path) -> Path:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for file in project.iterdir():
            tar.add(file, arcname=file.name)
    return archive


def channel(name: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://bucket/{name}/", "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def request(folder: Path, address: str = ADDRESS, *channels: str, **changed: Any) -> str:
    """Write the request of an SDK 2 estimator, and return its path."""
    found = {
        "TrainingJobName": "job-1",
        "RoleArn": "arn:aws:iam::111111111111:role/r",
        "AlgorithmSpecification": {
            "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-cpu-py312",
            "TrainingInputMode": "File",
        },
        "HyperParameters": {
            "sagemaker_program": '"main.py"',
            "sagemaker_submit_directory": json.dumps(address),
            "sagemaker_container_log_level": "20",
            "lr": "0.1",
        },
        "InputDataConfig": [channel(name) for name in ("training", *channels)],
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }
    (folder / "job.json").write_text(json.dumps({**found, **changed}))
    return str(folder / "job.json")


def launch(folder: Path, written: str, *words: str) -> int:
    photos = f"training={folder / 'photos'}"
    return main(["launch", "local", "--request", written, "--channel", photos, "--out", str(folder / "job"), "--yes", *words])


def log(folder: Path) -> str:
    file = folder / "job/logs/algo-1.log"
    return file.read_text() if file.exists() else ""


def found(folder: Path) -> Any:
    return json.loads((folder / "job/results/model/found.json").read_text())


EXPECTED = {"argv": ["--lr", "0.1"], "data": ["a.jpg"], "helper": "helped", "program": "main.py", "hooks": None}


def test_an_archive_in_the_folder_that_stands_for_s3_is_the_source(tmp_path: Path, project: Path) -> None:
    packed(project, tmp_path / "s3/bucket/job/source/sourcedir.tar.gz")
    assert launch(tmp_path, request(tmp_path), "--store", str(tmp_path / "s3")) == 0, log(tmp_path)
    assert found(tmp_path) == EXPECTED


def test_an_archive_in_the_channel_of_an_isolated_job_is_the_source(tmp_path: Path, project: Path) -> None:
    packed(project, tmp_path / "given/sourcedir.tar.gz")
    words = ["--channel", f"code={tmp_path / 'given'}"]
    assert launch(tmp_path, request(tmp_path, INSIDE, "code"), *words) == 0, log(tmp_path)
    assert found(tmp_path) == EXPECTED


def test_the_command_line_brings_an_archive_or_a_folder_and_starts_it_under_headrace(tmp_path: Path, project: Path) -> None:
    archive = packed(project, tmp_path / "mine.tar.gz")
    assert launch(tmp_path, request(tmp_path), "--source-dir", str(archive), "--under", "plain") == 0, log(tmp_path)
    assert found(tmp_path) == EXPECTED
    assert launch(tmp_path, request(tmp_path), "--source-dir", str(project), "--under", "run") == 0, log(tmp_path)
    assert {**found(tmp_path), "hooks": None} == EXPECTED and "headrace.accelerate.hook" in found(tmp_path)["hooks"]


@needs_obstore
def test_a_store_brings_the_archive(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = packed(project, tmp_path / "x.tar.gz").read_bytes()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    with serving(Bucket({"job/source/sourcedir.tar.gz": data, "there.tgz": data})) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        assert launch(tmp_path, request(tmp_path), "--fetch") == 0, log(tmp_path)
        assert found(tmp_path) == EXPECTED
        assert launch(tmp_path, request(tmp_path), "--source-dir", "s3://bucket/there.tgz", "--under", "plain") == 0
        assert found(tmp_path) == EXPECTED
        assert "of s3://bucket/there.tgz; main.py" in capsys.readouterr().err
        assert launch(tmp_path, request(tmp_path), "--source-dir", "s3://bucket/not.tgz") != 0
        assert "there is no source archive s3://bucket/not.tgz" in capsys.readouterr().err


@pytest.mark.parametrize("address", [ADDRESS, INSIDE, "/home/ec2-user/source", "file:///tmp/x"])
def test_an_archive_that_is_not_there_is_named_with_the_remedy(
    tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    assert launch(tmp_path, request(tmp_path, address)) != 0
    said = capsys.readouterr().err
    assert f"the script main.py is in {address}, which is not here" in said and "--source-dir brings the source" in said
    assert not (tmp_path / "job/hosts").exists()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


@pytest.mark.parametrize(
    "made, words",
    [
        (member("../out.py"), r"'\.\./out\.py' leads out of the folder"),
        (member("a/../../out.py"), "leads out of the folder"),
        (member("link", tarfile.SYMTYPE, "/etc/passwd"), "'link' is a link, a device or a pipe"),
        (member("link", tarfile.SYMTYPE, "main.py"), "is a link, a device or a pipe"),
        (member("link", tarfile.LNKTYPE, "main.py"), "is a link, a device or a pipe"),
        (member("disk", tarfile.BLKTYPE), "is a link, a device or a pipe"),
        (member("tty", tarfile.CHRTYPE), "is a link, a device or a pipe"),
        (member("pipe", tarfile.FIFOTYPE), "is a link, a device or a pipe"),
    ],
)
def test_an_archive_with_members_that_no_source_has_is_refused(tmp_path: Path, made: tarfile.TarInfo, words: str) -> None:
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        tar.addfile(made)
    with pytest.raises(SourceError, match=words):
        unpack_source(tmp_path / "x.tar.gz", tmp_path / "folder")
    assert [path for path in tmp_path.rglob("*") if path.name not in ("x.tar.gz", "folder", "a")] == []


def test_an_absolute_member_stays_inside_and_special_rights_are_dropped(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        made = member(f"{tmp_path}/out.py")
        made.mode = 0o6777
        tar.addfile(made)
    unpack_source(tmp_path / "x.tar", tmp_path / "folder")
    assert not (tmp_path / "out.py").exists()
    (file,) = [path for path in (tmp_path / "folder").rglob("*") if path.is_file()]
    assert file.stat().st_mode & 0o7022 == 0


def test_an_archive_that_is_too_large_or_damaged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for number in range(3):
            made = member(f"{number}.py")
            made.size = 40
            tar.addfile(made, io.BytesIO(b"x" * 40))
    for name, value in (("MOST_FILES", 2), ("MOST_BYTES", 100)):
        with monkeypatch.context() as patched, pytest.raises(SourceError, match=r"'2\.py' is beyond"):
            patched.setattr(source_archive, name, value)
            unpack_source(tmp_path / "x.tar", tmp_path / name)
    (tmp_path / "cut.tar.gz").write_bytes(packed_bytes := (tmp_path / "x.tar").read_bytes()[:700])
    assert packed_bytes
    with pytest.raises(SourceError, match=r"cut\.tar\.gz cannot be unpacked"):
        unpack_source(tmp_path / "cut.tar.gz", tmp_path / "folder")


START = """#!/bin/bash
set -e
SM_PYTHON_CMD=$(command -v python3 || command -v python)
cat /opt/ml/input/config/resourceconfig.json > /dev/null
cd /opt/ml/input/data/code
echo "python $SM_PYTHON_CMD, pip into $PIP_TARGET"
$SM_PYTHON_CMD main.py --lr 0.1
"""
V3_TRAIN = "/opt/ml/input/data/sm_drivers/sm_train.sh"
V3 = {"AlgorithmSpecification": {
    "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-cpu-py312",
    "TrainingInputMode": "File",
    "ContainerEntrypoint": ["/bin/bash"],
    "ContainerArguments": ["-c", f"chmod +x {V3_TRAIN} && {V3_TRAIN}"],
}, "HyperParameters": {}, "Environment": {"SM_CHANNEL_TRAINING": "/opt/ml/input/data/training", "SM_MODEL_DIR": "/opt/ml/model",
                                         "SM_USER_ENTRY_POINT": "main.py"}}  # fmt: skip


def test_the_command_of_sdk_3_runs_with_its_own_paths_and_its_pip_stays_in_the_job(
    tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "drivers").mkdir()
    (tmp_path / "drivers/sm_train.sh").write_text(START)
    written = request(tmp_path, ADDRESS, "code", "sm_drivers", **V3)
    words = ["--channel", f"sm_drivers={tmp_path / 'drivers'}", "--source-dir", str(project)]
    code = launch(tmp_path, written, *words)
    if "by SAGEMAKER_BASE_DIR" in log(tmp_path):  # the system has no mounts for users
        assert code == 1 and "/opt/ml is " in capsys.readouterr().out
        return
    assert code == 0, log(tmp_path)
    assert found(tmp_path) == EXPECTED
    assert f"pip into {tmp_path}/job/hosts/algo-1/packages" in log(tmp_path)
    (project / "main.py").write_text("import no_such_module")
    assert launch(tmp_path, written, *words) == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in capsys.readouterr().out, "the log's end is the reason"


@pytest.mark.parametrize(
    "words, said",
    [
        (["--under", "run"], 'headrace.launch.under(trainer, "run") before the request is made'),
        ([], "channel code: no objects below s3://bucket/code/"),
        (["--source-dir", "."], "channel sm_drivers: no objects below s3://bucket/sm_drivers/"),
    ],
)
def test_what_the_command_of_sdk_3_needs_is_named(
    tmp_path: Path,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(project)
    assert launch(tmp_path, request(tmp_path, ADDRESS, "code", "sm_drivers", **V3), *words) != 0
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
