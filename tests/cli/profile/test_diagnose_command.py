"""`headrace diagnose` as a command: its JSON document, exit codes, report and session."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from headrace.profiling.command import default_session_folder
from silence import longest_silence_s

TRAIN = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 400
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.zeros(8)
if __name__ == "__main__":
    print("the script's own output")
    for batch in DataLoader(Data(), batch_size=4, num_workers=1):
        time.sleep(0.001)
"""


def headrace(*words: str, cwd: Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    program = "import sys; from headrace.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", program, *words], cwd=cwd, capture_output=True, text=True, timeout=timeout)


def test_a_slow_loader_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAIN)
    done = headrace(
        "diagnose", "--json", "--out", "s", "--fail-if", "input_share>0.5", "--", sys.executable, "train.py", cwd=tmp_path
    )
    document: dict[str, Any] = json.loads(done.stdout)
    assert "the script's own output" in done.stderr
    assert sum(document["share_of_step"].values()) == pytest.approx(1)
    assert document["verdict"] in ("STORAGE_LATENCY", "EXTERNAL_CPU")
    assert any(finding["kind"] == "STORAGE_LATENCY" for finding in document["findings"])
    assert document["img_s"] > 0
    input_share = sum(share for part, share in document["share_of_step"].items() if part.startswith("input_"))
    assert done.returncode == int(input_share > 0.5)
    assert Path(document["report"]).read_text().startswith("<!")
    assert Path(document["session"]).is_dir()
    again = headrace("diagnose", "--out", "s", "--", sys.executable, "-c", "1", cwd=tmp_path)
    assert again.returncode == 2
    assert "already holds a session" in again.stderr


def test_a_command_that_fails_is_diagnosed_all_the_same(tmp_path: Path) -> None:
    done = headrace("diagnose", "--json", "--out", "s", "--", sys.executable, "-c", "import sys; sys.exit(3)", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert done.returncode == 3
    assert document["verdict"] == "INSUFFICIENT_DATA"
    assert "exit code 3" in done.stderr
    assert "no step was timed: the command failed with exit code 3" in done.stdout and "does not use one" not in done.stdout
    assert Path(document["report"]).exists()


@pytest.mark.parametrize(("ending", "code"), [("os.kill(os.getpid(), 9)", 137), ("sys.exit(2)", 2)])
def test_the_exit_code_is_the_commands_own(tmp_path: Path, ending: str, code: int) -> None:
    words = (
        "diagnose",
        "--no-report",
        "--fail-if",
        "steps<1",
        "--out",
        "s",
        "--",
        sys.executable,
        "-c",
        f"import os, sys; {ending}",
    )
    done = headrace(*words, cwd=tmp_path)
    assert done.returncode == code
    assert "--fail-if steps<1 is true" in done.stderr


def test_a_command_without_a_loader_succeeds(tmp_path: Path) -> None:
    done = headrace("diagnose", "--no-report", "--out", "s", "--", sys.executable, "-c", "print('x')", cwd=tmp_path)
    assert done.returncode == 0
    assert "No PyTorch DataLoader was seen" in " ".join(done.stdout.split())
    assert not (tmp_path / "s/report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("diagnose",), "no command to run is given"),
        (("diagnose", "--fail-if", "nonsense", "--", "true"), "nonsense"),
        (("diagnose", "--", "no-such-program"), "was not found"),
        (("diagnose", "--", "train.py", "--epochs", "3"), "-- python train.py --epochs 3"),
        (("diagnose", "--", "/"), "is a folder"),
        (("diagnose", "--", __file__), "is not executable"),
        (("run", "--explain", "python", "train.py", "--epochs", "3"), "headrace run --explain -- python train.py --epochs 3"),
        (("run", "--epochs", "--", "python", "train.py"), "unrecognized arguments: --epochs"),
        (("run", "--check", "python", "train.py"), "headrace run --check -- python train.py"),
    ],
)
def test_a_wrong_call_is_explained(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = headrace(*words, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_cannot_be_started_leaves_no_session(tmp_path: Path) -> None:
    for _ in range(2):
        done = headrace("diagnose", "--", "no-such-program", cwd=tmp_path)
        assert done.returncode == 1 and "was not found" in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.name != "headrace-sessions"]


@pytest.mark.slow
def test_a_full_disk_costs_the_session_and_not_the_job(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the rows of the steps do not fit, nor does the report."""
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        TRAIN.replace("return 400", "return 3000").replace("0.004", "0.0005") + "    raise SystemExit(5)\n"
    )
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))\n"
    program += "from headrace.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["diagnose", "--out", "s", "--json", "--", sys.executable, "train.py"]
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("nothing more of this job is recorded") == 1
    assert "diagnosis and report are not written" in done.stderr
    document = json.loads(done.stdout)
    assert document["report"] is None and document["verdict"]


def test_sessions_of_one_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "2026-11-20-141205")
    for name in ("2026-11-20-141205", "2026-11-20-141205-2", "2026-11-20-141205-3"):
        folder = default_session_folder()
        assert folder == Path("headrace-sessions") / name
        folder.mkdir(parents=True)


def test_diagnose_of_a_silent_command_speaks_every_three_seconds_and_stops_it_in_time(tmp_path: Path) -> None:
    program = "import sys; from headrace.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["diagnose", "--json", "--out", "s", "--seconds", "7", "--", sys.executable, "-c", "import time; time.sleep(60)"]
    began_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        silence_s = longest_silence_s(child)
    assert silence_s < 3.5
    assert time.monotonic() - began_s < 7 + 33  # the sampler and the report come after the command, which would take 60 s


@pytest.mark.slow
def test_the_best_fix_is_measured_in_the_time_that_seconds_leaves(tmp_path: Path) -> None:
    """A job without an end; on a busy machine eight seconds may not be enough for its first steps."""
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAIN.replace("return 400", "return 10**6"))
    for seconds in (8, 16, 35, 60):
        words = ["--out", f"s{seconds}", "--verify", "--seconds", str(seconds), "--no-report", "--json"]
        done = headrace("diagnose", *words, "--", sys.executable, "train.py", cwd=tmp_path, timeout=300)
        fixes = [fix for finding in json.loads(done.stdout)["findings"] for fix in finding["fixes"]]
        if any(fix["verified_img_s"] is not None for fix in fixes):
            break
    best = next(fix for fix in fixes if fix["id"].startswith("num_workers="))
    assert best["verified_change"] > 1.2, done.stderr
    assert "--verify: measuring" in done.stderr


@pytest.mark.parametrize("verb", ["diagnose", "watch"])
def test_a_session_folder_that_cannot_be_made_is_named_with_the_option(tmp_path: Path, verb: str) -> None:
    (tmp_path / "file").touch()
    done = headrace(verb, "--out", "file/session", "--", sys.executable, "-c", "1", cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "cannot write the session" in done.stderr and "give another folder with --out" in done.stderr
