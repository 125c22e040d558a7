"""Secrets on the command line of a watched job reach no file of the session, no report and no output of headrace."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.cli.main import main

SECRETS = {
    "--token=plantedA1x": "plantedA1x",
    "--api-key plantedB2x": "plantedB2x",
    "--password plantedC3x": "plantedC3x",
    "logger.api_key=plantedD4x": "plantedD4x",
    "https://user:plantedE5x@host/data": "plantedE5x",
    "https://b.s3.amazonaws.com/k?X-Amz-Signature=plantedF6x&X-Amz-Expires=60": "plantedF6x",
    "hf_plantedG7xplantedG7xplantedG7x": "plantedG7x",
    "ghp_plantedH8xplantedH8xplantedH8x": "plantedH8x",
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


def test_no_secret_reaches_a_file_or_the_output(watched: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    session, done = watched
    document = json.loads(done.stdout)
    assert "***" in json.dumps(document)
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
