"""Secrets on the command line of a watched job reach no file of the session, no report and no output of headrace."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.datasets.sources.remote.store import Bucket, RetryPolicy
from headrace.system.text.redaction import redact_text
from headrace.training.settings import options_file
from headrace.training.settings.options import Options

SECRETS = {
    "--token=plantedA1x": "plantedA1x",
    "--api-key plantedB2x": "plantedB2x",
    "--password plantedC3x": "plantedC3x",
    "logger.api_key=plantedD4x": "plantedD4x",
    "https://user:plantedE5x@host/data": "plantedE5x",
    "https://b.s3.amazonaws.com/k?X-Amz-Signature=plantedF6x&X-Amz-Expires=60": "plantedF6x",
    "hf_plantedG7xplantedG7xplantedG7x": "plantedG7x",
    "ghp_plantedH8xplantedH8xplantedH8x": "plantedH8x",
    "--pin plantedI0x": "plantedI0x",
    "--signature plantedJ0x": "plantedJ0x",
    "--wandb_login plantedK1x": "plantedK1x",
    "--wandb-key=plantedL2x": "plantedL2x",
    "--hub_token plantedM3x": "plantedM3x",
    "--neptune_api_token=plantedN4x": "plantedN4x",
    "COMET_API_KEY=plantedO5x": "plantedO5x",
    "redis://:plantedP6x@cache:6379": "plantedP6x",
    "-k Ab3plantedQ7x": "plantedQ7x",
    '{"logger":{"secret_key":"plantedR8x"}}': "plantedR8x",
    "--header=Authorization:plantedS9x": "plantedS9x",
    "--db-pass plantedT1x": "plantedT1x",
    "--password correct plantedU2x": "plantedU2x",
    "password plantedV3x": "plantedV3x",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiplantedW4xAB": "plantedW4x",
}

TRAIN = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(8)
if __name__ == "__main__":
    for batch in DataLoader(Data(), batch_size=4, num_workers=1):
        time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A session of a job with planted secrets, and what `headrace diagnose --verify` printed."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "train.py").write_text(TRAIN)
    words = [word for option in SECRETS for word in option.split(" ")]
    command = ["diagnose", "--verify", "--json", "--out", "s", "--", sys.executable, "train.py", *words]
    program = "import sys; from headrace.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, *command], cwd=folder, capture_output=True, text=True, timeout=110)
    return folder / "s", done


@pytest.mark.slow
def test_no_secret_reaches_a_file_or_the_output(watched: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    session, done = watched
    document = json.loads(done.stdout)
    assert "***" in json.dumps(document) and len(SECRETS) >= 20
    files = [path for path in session.rglob("*") if path.is_file()]
    assert {"report.html", "diagnosis.json", "launch.jsonl"} <= {path.name for path in files}
    for secret in SECRETS.values():
        assert secret not in done.stdout + done.stderr
        for path in files:
            assert secret.encode() not in path.read_bytes(), f"{secret} in {path}"


def test_verify_runs_the_real_command(watched: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The script would not notice masked options; that every run could time its steps shows that it ran."""
    session, done = watched
    assert "verify" in done.stderr
    assert any(path.name.startswith("verify-") or path.name == "replay" for path in session.iterdir())


def test_only_the_owner_may_read_a_session(watched: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    session, _ = watched
    assert stat.S_IMODE(session.stat().st_mode) == 0o700
    for path in session.rglob("*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_shared_report_names_no_folder_and_no_host(
    watched: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session, _ = watched
    launch = json.loads((session / "launch.jsonl").read_text().splitlines()[0])
    host = next(
        json.loads(line)["hostname"]
        for path in session.glob("*.jsonl")
        for line in path.read_text().splitlines()
        if '"kind":"host"' in line
    )
    page = tmp_path / "shared.html"
    assert main(["report", str(session), "--html", "--share", "--out", str(page)]) == 0
    text = page.read_text()
    assert "train.py" in text
    assert launch["cwd"] not in text and str(session.parent) not in text and str(Path(sys.executable).parent) not in text
    assert host not in text
    assert stat.S_IMODE(page.stat().st_mode) & 0o044, "a page to be shared may be read by others"
    capsys.readouterr()
    assert main(["report", str(session), "--share", "--json"]) == 0
    assert launch["cwd"] not in capsys.readouterr().out


WORDS = [word for option in SECRETS for word in option.split(" ")]
URL = "https://me:plantedI9x@127.0.0.1:1/data"


def test_the_document_of_run_masks_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "--", sys.executable, "-c", "pass", *WORDS]) == 0
    output = capfd.readouterr()
    assert json.loads(output.out)["command"][-1] == "***"
    assert not [secret for secret in SECRETS.values() if secret in output.out + output.err]


@pytest.mark.parametrize("json_too", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "--token=plantedI9x", "--", "python"],
        ["run", "--explain", "python", "train.py", "--token", "plantedI9x"],
        ["run", "--", "nosuch.py", "--password", "plantedI9x"],
        ["diagnose", "--", "nosuch", "--api-key=plantedI9x"],
        ["train", "--api-key=plantedI9x"],
        ["--token=plantedI9x"],
        ["predict", "nosuch", URL],
        ["report", URL],
        ["cost", "--session", URL],
        ["train", "--data", URL.replace("https", "nosuch"), "--model", "resnet20", "--device", "cpu"],
    ],
)
def test_errors_mask_secrets(
    words: list[str], json_too: bool, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [*words[:1], "--json", *words[1:]] if json_too else words
    assert main(given) in (1, 2)
    output = capfd.readouterr()
    assert "error: " in output.err and "plantedI9x" not in output.err + output.out


def test_files_of_options_mask_urls_and_say_so_when_they_are_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = Options("resnet20", URL, str(tmp_path / "out"), val=URL + "-val")
    options_file.write(options, tmp_path / "config.toml")
    assert "plantedI9x" not in (tmp_path / "config.toml").read_text() and "plantedI9x" not in str(options_file.shown(options))
    assert main(["train", "--config", str(tmp_path / "config.toml")]) == 2
    assert "masked" in (words := capfd.readouterr().err) and "give --data" in words
    options_file.write(options, tmp_path / "own.toml", secrets=True)
    assert "plantedI9x" in (tmp_path / "own.toml").read_text()


def test_the_hint_for_a_store_that_refuses_holds_nothing_that_is_taken_for_a_secret() -> None:
    bucket = Bucket("s3://bucket/train", None, None, RetryPolicy())
    hint = bucket._exhausted(OSError("refused"), "read").hint or ""
    assert "credentials" in hint and "AWS_ACCESS_KEY_ID" in hint and redact_text(hint) == hint
