"""Every command of docs/guides/spot-job.md works as it stands: against moto, and on this machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.cloud import followed, launch
from headrace.cli.main import main

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "spot-job.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("headrace ")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_folder: Callable[..., Path]) -> Path:
    image_folder(classes=2, per_class=8, name="photos")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    return tmp_path


def words_of(line: str) -> list[str]:
    return shlex.split(line)[1:]


def test_the_page_has_the_whole_way() -> None:
    verbs = [" ".join(words_of(line)[:2]) for line in COMMANDS]
    assert [verb for verb in verbs if verb.startswith("launch")] == [
        "launch local", "launch local", "launch sagemaker", "launch sagemaker", "launch follow", "launch stop",
    ]  # fmt: skip


def test_the_commands_for_aws_work(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stopped: list[str] = []
    make = launch.aws_client

    def client(service: str, region: str) -> Any:
        found = make(service, region)
        if service == "sagemaker":  # moto has no StopTrainingJob
            found.stop_training_job = lambda TrainingJobName: stopped.append(TrainingJobName)
        return found

    for module in (launch, followed):
        monkeypatch.setattr(module, "aws_client", client)
    with moto.mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="my-bucket")
        for line in COMMANDS:
            words = words_of(line)
            if words[0] == "cost" or words[:2] in (["launch", "sagemaker"], ["launch", "follow"], ["launch", "stop"]):
                asks = words[:2] == ["launch", "sagemaker"] and "--dry-run" not in words
                assert main([*words, *(["--yes"] if asks else [])]) == 0, line
    printed = capsys.readouterr().out
    assert "the request is valid; nothing was sent; written to job.json" in printed
    assert printed.count("flowers-1: Completed") == 2 and stopped == ["flowers-1"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_for_this_machine_work(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    for line in COMMANDS:
        words = words_of(line)
        if words[0] in ("inspect", "pack") or words[:2] == ["launch", "local"]:
            assert main(words) == 0, line
    assert capsys.readouterr().out.count("Completed after") == 2
