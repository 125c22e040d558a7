"""`headrace launch follow` ends with the job's diagnosis, its price beside the plain script's, and the next command."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.cost.market.prices import PriceTable
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Fix
from headrace.errors import SourceError
from headrace.launch.sagemaker.baseline import against_plain
from headrace.launch.sagemaker.follow import finished_job
from headrace.launch.sagemaker.results import fetch_results
from headrace.report.sessions.session_folder import write_diagnosis
from session_factory import make_session

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")

ROLE = "arn:aws:iam::123456789012:role/headrace-training"


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret-value")
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))
    monkeypatch.chdir(tmp_path)
    with moto.mock_aws():
        client("s3").create_bucket(Bucket="bucket")
        yield


def client(service: str = "sagemaker") -> Any:
    return boto3.client(service, region_name="us-east-1")


def job(name: str, program: str = "headrace_entry.py", **more: str) -> None:
    """A finished job of a user's own script, as an estimator of SDK 2 asks for it."""
    client().create_training_job(
        TrainingJobName=name,
        RoleArn=ROLE,
        AlgorithmSpecification={"TrainingImage": "1.dkr.ecr.us-east-1.amazonaws.com/x:1", "TrainingInputMode": "File"},
        HyperParameters={"sagemaker_program": json.dumps(program), **more},
        OutputDataConfig={"S3OutputPath": "s3://bucket/jobs/"},
        ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 3600},
    )


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """What `headrace diagnose` leaves in the output of a host whose loader is slow."""
    folder = tmp_path / "output" / "headrace-algo-1"
    found = make_session(cpu_s=0.4, workers=1)
    found.save(folder)
    diagnosis = diagnose(found)
    fix = Fix("headrace_run", "the same script with headrace's image input")
    findings = (replace(diagnosis.findings[0], fixes=(fix,)), *diagnosis.findings[1:])
    write_diagnosis(replace(diagnosis, findings=findings), folder)
    (folder / "report.html").write_text("<html>")
    return folder


def packed(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, arcname="./headrace-algo-1")
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def put(key: str, data: bytes) -> None:
    client("s3").put_object(Bucket="bucket", Key=key, Body=data)


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_first_screen_the_report_and_the_next_command_come_home(
    tmp_path: Path, session: Path, capsys: pytest.CaptureFixture[str], is_packed: bool
) -> None:
    job("slow")
    if is_packed:
        (session / "diagnosis.json").unlink()  # the screen is made anew, and no fix of this session is a run of headrace's
        put("jobs/slow/output/output.tar.gz", packed(session))
    else:
        for file in session.iterdir():
            put(f"jobs/slow/output/output/headrace-algo-1/{file.name}", file.read_bytes())
    assert main(["launch", "follow", "slow"]) == 0
    said = capsys.readouterr().out
    here = Path("headrace-sessions/slow/headrace-algo-1")
    assert "CPU_PREP" in said and "slow: Completed" in said and f"report: {here}/report.html" in said
    assert "the same script plain: not known (--baseline JOB names a job of it)" in said
    if is_packed:
        assert f"next:  headrace report {here}" in said
    else:
        assert 'next:  the same job with --under run, in a notebook under(estimator, "run")' in said
    assert (tmp_path / here / "report.html").read_text() == "<html>"
    assert (tmp_path / here).stat().st_mode & 0o777 == 0o700
    assert main(["launch", "follow", "slow", "--out", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sessions"] == ["mine/headrace-algo-1"]
    assert main(["report", "mine/headrace-algo-1"]) == 0


def test_a_packed_output_leads_nowhere_else(tmp_path: Path, session: Path) -> None:
    job("slow")
    outside, link = tarfile.TarInfo("../headrace-algo-2/a.jsonl"), tarfile.TarInfo("headrace-algo-3/a.jsonl")
    absolute, plain = tarfile.TarInfo("/headrace-algo-4/a.jsonl"), tarfile.TarInfo("headrace-plain-algo-5.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members = ((outside, b"x"), (link, b""), (absolute, b"{}"), (plain, b"train.py: no safetensors"))
    put("jobs/slow/output/output.tar.gz", packed(session, *members))
    description = client().describe_training_job(TrainingJobName="slow")
    found = fetch_results(client("s3"), description, tmp_path / "home", sleep=lambda s: None, log=lambda line: None)
    assert [folder.name for folder in found] == ["headrace-algo-1", "headrace-algo-4"]
    assert found[1] == tmp_path / "home/headrace-algo-4" and not (tmp_path / "headrace-algo-2").exists()
    assert (tmp_path / "home/headrace-plain-algo-5.txt").is_file() and not (tmp_path / "home/headrace-algo-3").exists()
    long_name = tarfile.TarInfo("headrace-a/" * 90_000 + "!")  # its folders were looked at from each of them, for hours
    put("jobs/slow/output/output.tar.gz", packed(session, (long_name, b"x")))
    began_s = time.process_time()
    with pytest.raises(SourceError, match="name of 990,001 bytes"):
        fetch_results(client("s3"), description, tmp_path / "long", sleep=lambda s: None, log=lambda line: None)
    long_name.name = "headrace-a/" * 5_000 + "!"
    put("jobs/slow/output/output.tar.gz", packed(session, (long_name, b"x")))
    fetch_results(client("s3"), description, tmp_path / "long", sleep=lambda s: None, log=lambda line: None)
    assert time.process_time() - began_s < 3
    put("jobs/slow/output/output.tar.gz", b"no archive")
    with pytest.raises(SourceError, match="is no archive that can be read"):
        fetch_results(client("s3"), description, tmp_path / "other", sleep=lambda s: None, log=lambda line: None)


@pytest.mark.parametrize("link", ["headrace-sessions", "headrace-sessions/slow", "headrace-sessions/slow/headrace-algo-1"])
def test_a_report_comes_home_through_no_link(
    link: str, tmp_path: Path, session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The current folder may be a stranger's."""
    job("slow")
    for file in session.iterdir():
        put(f"jobs/slow/output/output/headrace-algo-1/{file.name}", file.read_bytes())
    (tmp_path / "documents").mkdir()
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "documents")
    assert main(["launch", "follow", "slow"]) == 0
    said = capsys.readouterr()
    assert "slow: Completed" in said.out and "is a link, which is not followed" in said.err
    assert not list((tmp_path / "documents").iterdir())


def test_a_job_that_ran_plain_says_so_and_leaves_no_report(capsys: pytest.CaptureFixture[str]) -> None:
    job("plainly")
    put("jobs/plainly/output/output/headrace-plain-algo-1.txt", b"train.py: Python 3.10, and headrace needs 3.11")
    assert main(["launch", "follow", "plainly"]) == 0
    said = capsys.readouterr().out
    assert "ran plain: algo-1: train.py: Python 3.10, and headrace needs 3.11" in said
    assert "next:  mend what made it run plain" in said


def test_a_job_without_results_in_reach_ends_with_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    job("quick", bucket="gone")
    client("s3").delete_bucket(Bucket="bucket")
    assert main(["launch", "follow", "quick"]) == 0
    said = capsys.readouterr()
    assert "the report of the job cannot be fetched: listing s3://bucket/jobs/quick/output/: NoSuchBucket" in said.err
    assert "next:  headrace diagnose --sagemaker-job quick --region us-east-1" in said.out


def test_a_baseline_is_asked_for_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    job("fast")
    job("plain", "train.py")
    assert main(["launch", "follow", "fast", "--baseline", "plain"]) == 0
    assert "the same script plain: not known (AWS names no billed seconds)" in capsys.readouterr().out
    assert main(["launch", "follow", "fast", "--baseline", "none"]) == 1
    assert "asking for none" in capsys.readouterr().err


def test_time_and_price_are_compared_where_both_jobs_completed() -> None:
    def described(name: str, seconds: int, status: str = "Completed") -> dict[str, Any]:
        resources = {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1}
        return {
            "TrainingJobName": name, "TrainingJobStatus": status, "SecondaryStatus": status, "ResourceConfig": resources,
            "BillableTimeInSeconds": seconds, "HyperParameters": {"sagemaker_program": name},
        }  # fmt: skip

    def compared(one: dict[str, Any], other: dict[str, Any] | None) -> str:
        table = PriceTable.load()
        return against_plain(one, finished_job(one, table), other, None if other is None else finished_job(other, table))

    fast, plain = described("fast", 500), described("plain", 2000)
    price = PriceTable.load().price(PriceTable.load().instance("g5.xlarge"), "sagemaker").usd_per_hour
    assert compared(fast, plain) == (
        f"the same script plain (plain): billed 2,000 s = ${price * 2000 / 3600:,.2f}; "
        "this job took 0.25 of its billed time, 0.25 of its price"
    )
    other = {**plain, "HyperParameters": {"epochs": "2"}, "EnableManagedSpotTraining": True}
    assert compared(fast, other).endswith("; not the same job: spot, hyperparameter epochs differ")
    assert compared(fast, described("plain", 2000, "Failed")).endswith("not known (plain ended Failed)")
    assert compared(described("fast", 1, "Stopped"), plain).endswith("not known (fast ended Stopped)")
    assert "not known (--baseline JOB" in compared(fast, None)
