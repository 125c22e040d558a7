"""The script of `headrace launch slurm` on a real Slurm: Debian's packages, one node, no GPU."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headrace.cli.main import main
from slurm_node import Slurm, needs_slurm, slurm_node

pytest.importorskip("torch")
pytestmark = [needs_slurm, pytest.mark.slow, pytest.mark.timeout(900)]

HELPERS = str(Path(__file__).parents[1] / "helpers")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # munged wants folders that only their owner may write
    try:
        with slurm_node(folder) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def submit(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(slurm.environment, "PATH", f"{Path(sys.executable).parent}:{slurm.environment['PATH']}")

    def start(*words: str) -> str:
        assert main(["launch", "slurm", *words, "--gpus", "0", "--out", "job.sh"]) == 0
        return slurm.command("sbatch", "--parsable", "job.sh", cwd=tmp_path).strip()

    return start


def wait_for(what: Callable[[], bool], log: Path, limit_s: float = 400.0) -> None:
    end_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end_s, log.read_text() if log.exists() else "the job has no log"
        time.sleep(0.2)


def ended(slurm: Slurm, job: str) -> bool:
    return slurm.state(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def processes_of(job: str) -> list[str]:
    """The processes that Slurm started for a job."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"SLURM_JOB_ID={job}\0".encode() in (place / "environ").read_bytes():
                found.append(place.name)
    return found


def test_a_training_is_told_of_its_time_limit_requeued_and_goes_on(
    slurm: Slurm, submit: Callable[..., str], tmp_path: Path, image_folder: Callable[..., Path]
) -> None:
    """The warning that Slurm sends before the limit (USR1 to the batch shell only) is sent by hand, at a known step."""
    data = image_folder(classes=2, per_class=12, name="my photos")
    options = {"image-size": "32", "device": "cpu", "threads": "1", "checkpoint-steps": "1", "keep": "100"}
    job = submit("--name", "slow", "--model", "slow_tiny:make", "--data", str(data), "--epochs", "8", "--batch-size", "4",
                 "--env", f"PYTHONPATH={HELPERS}",
                 *[word for key, value in options.items() for word in ("--hyperparameter", f"{key}={value}")])  # fmt: skip
    log, out = tmp_path / f"slow-{job}.log", tmp_path / "results" / "slow"
    wait_for(lambda: len(list(out.glob("checkpoints/step-*"))) >= 3 or ended(slurm, job), log)
    assert slurm.state(job)["JobState"] == "RUNNING", log.read_text()
    slurm.command("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: slurm.state(job)["Restarts"] == "1", log)
    assert not (out / "final.safetensors").exists()
    saved = max(int(path.name.removeprefix("step-")) for path in out.glob("checkpoints/step-*"))
    assert 3 <= saved < 48
    wait_for(lambda: not processes_of(job), log)
    wait_for(lambda: slurm.state(job)["JobState"] == "PENDING", log)
    # Slurm lets a requeued job wait for two minutes. In the second in which it ended, slurmd would refuse a new start: it
    # compares the times of credential and revocation in whole seconds.
    time.sleep(2)
    slurm.command("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for(lambda: ended(slurm, job), log)
    state = slurm.state(job)
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), log.read_text() + slurm.logs()
    assert (out / "final.safetensors").exists()
    text = log.read_text()
    assert f"step {saved}" in text or f"step-{saved:09d}" in text, text


def test_a_script_that_fails_fails_the_job_with_its_code(slurm: Slurm, submit: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\nraise SystemExit(3)")
    job = submit("--name", "fails", "--script", "train.py", "--hyperparameter", "lr=0.1")
    log = tmp_path / f"fails-{job}.log"
    wait_for(lambda: ended(slurm, job), log)
    assert slurm.state(job)["JobState"] == "FAILED" and slurm.state(job)["ExitCode"] != "0:0"
    assert "rank 0 ['--lr', '0.1']" in log.read_text()


@pytest.mark.parametrize("under", ["run", "diagnose"])
def test_a_script_of_a_folder_runs_under_headrace(slurm: Slurm, submit: Callable[..., str], tmp_path: Path, under: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "part.py").write_text("import torch\n\nnumbers = torch.utils.data.TensorDataset(torch.zeros(40, 2))\n")
    (project / "train.py").write_text(
        "import os\nimport torch\nfrom part import numbers\n\n"
        "for batch in torch.utils.data.DataLoader(numbers, batch_size=4):\n    pass\n"
        "hooks = [name for name in os.environ if name.startswith('HEADRACE')]\n"
        "print('rank', os.environ['RANK'], os.environ['SM_CHANNEL_TRAINING'], len(hooks) > 1)\n"
    )
    job = submit("--name", f"own-{under}", "--source-dir", str(project), "--under", under, "--data", str(tmp_path))
    log = tmp_path / f"own-{under}-{job}.log"
    wait_for(lambda: ended(slurm, job), log)
    text = log.read_text()
    assert (slurm.state(job)["JobState"], slurm.state(job)["ExitCode"]) == ("COMPLETED", "0:0"), text + slurm.logs()
    assert f"rank 0 {tmp_path} True" in text and "runs plain" not in text
    reports = list((tmp_path / f"own-{under}-code/results/own-{under}/output").glob("headrace-*/report.html"))
    assert len(reports) == (under == "diagnose")
