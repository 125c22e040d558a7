"""Runs that are killed, stopped, or out of disk space resume to the bits of an undisturbed run, or report what was lost.

HEADRACE_KILLS=10 runs ten kills and ten requests to stop (about two minutes).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace.cli.main import main
from headrace.training.loop import Options, TrainingProgress, train
from PIL import Image

HELPERS = Path(__file__).parents[1] / "helpers"
KILLS = int(os.environ.get("HEADRACE_KILLS", "1"))
EPOCHS = 1 + KILLS
STEPS = 12 * EPOCHS
SEED = 7


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kills")
    random_source = np.random.default_rng(0)
    for part, per_class in (("train", 32), ("val", 8)):
        for name in ("blue", "green", "red"):
            (root / part / name).mkdir(parents=True)
            for index in range(per_class):
                Image.fromarray(random_source.integers(0, 255, (36, 36, 3), dtype=np.uint8)).save(
                    root / part / name / f"{index}.jpg"
                )
    return root


def command(data: Path, out: Path) -> list[str]:
    words = [sys.executable, "-m", "headrace", "train", "--model", "resnet20", "--data", data, "--out", out, "--json"]
    words += ["--epochs", EPOCHS, "--batch-size", 8, "--image-size", 32, "--device", "cpu", "--deterministic", "--threads", 1]
    words += ["--average", 0.9, "--mixup", 0.2, "--checkpoint-steps", 1, "--resume", "auto"]
    return [str(word) for word in words]


def newest_step(out: Path) -> int:
    return max((int(path.name.rpartition("-")[2]) for path in out.glob("checkpoints/step-*")), default=0)


def disturb(words: list[str], out: Path, environment: dict[str, str], number: int, at_step: int, delay_s: float) -> int:
    """Sends the signal once step `at_step` is saved and `delay_s` have passed; the exit code (0: it was faster)."""
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline_s = time.monotonic() + 90
        while process.poll() is None and newest_step(out) < at_step and time.monotonic() < deadline_s:
            time.sleep(0.002)
        time.sleep(delay_s)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=90)
    assert process.returncode in (-number, 128 + number, 0), stderr
    if process.returncode == 128 + signal.SIGTERM:  # else it came before there was anything to save
        document = json.loads(stdout)
        assert document["steps"] == newest_step(out)  # not one step is lost
    return process.returncode


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_and_stops_at_random_steps_do_not_change_the_final_bits(
    data: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "run"
    trained_here(command(data, undisturbed))
    random_source = random.Random(SEED)
    signals = [signal.SIGKILL] * KILLS + [signal.SIGTERM] * KILLS
    random_source.shuffle(signals)
    disturbed = 0
    for turn, number in enumerate(signals):
        at_step = max(newest_step(out), int(STEPS * (turn + random_source.random()) / (len(signals) + 1)))
        disturbed += disturb(command(data, out), out, child_environment, number, at_step, random_source.uniform(0, 0.08)) != 0
    trained_here(command(data, out))
    assert newest_step(out) == STEPS
    assert disturbed == len(signals)  # none of the signals came too late
    assert (out / "final.safetensors").read_bytes() == (undisturbed / "final.safetensors").read_bytes()
    scores = [[line["evaluation"] for line in lines(folder) if "evaluation" in line][-1] for folder in (out, undisturbed)]
    assert scores[0] == scores[1]
    assert not list(out.glob("checkpoints/.partial*"))


def trained_here(words: list[str]) -> None:
    """Trains in this process, which has torch already."""
    torch.set_num_threads(1)
    try:
        assert main(words[3:]) == 0
    finally:
        torch.use_deterministic_algorithms(False)


def lines(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


FULL_DISK = """
import json, sys, time
from dataclasses import replace
from pathlib import Path
from headrace.training import loop as trainer
from headrace.training.weights import checkpoint
from headrace.errors import HeadraceError
from headrace.training.loop import Options, train

trainer.LOG_STEPS = 1
data, disk = Path(sys.argv[1]), Path(sys.argv[2])
options = Options(model="tiny:make", data=str(data / "train"), out=str(disk / "run"), epochs=4, batch_size=8, image_size=32,
                  device="cpu", threads=1, deterministic=True, checkpoint_steps=4)
train(replace(options, out=sys.argv[3]))  # undisturbed, elsewhere
filler, remarks = disk / "filler", []

def fill(progress):
    remarks.append(progress.remark or "")
    if progress.step == 10:
        while not (disk / "run/checkpoints/step-000000008").exists():  # it is written in the background
            time.sleep(0.01)
        with open(filler, "wb", buffering=0) as file:
            try:
                while True: file.write(bytes(4096))
            except OSError: pass

try:
    train(options, on_progress=fill)
    raised = None
except HeadraceError as error:
    raised = str(error)
kept = [path.name for path in checkpoint.candidates(disk / "run/checkpoints")]
filler.unlink()
result = train(replace(options, resume="auto"))
same = (disk / "run/final.safetensors").read_bytes() == (Path(sys.argv[3]) / "final.safetensors").read_bytes()
[json.loads(line) for line in (disk / "run/metrics.jsonl").read_text().splitlines()]
print(json.dumps({"raised": raised, "kept": kept, "resumed": result.resumed_from_step, "same": same, "remarks": remarks}))
"""


@pytest.mark.slow
def test_a_run_on_a_full_disk_resumes_from_its_last_whole_checkpoint(
    data: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"']
    if shutil.which("unshare") is None or subprocess.run([*mount, disk, "true"], capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    words = [sys.executable, "-c", FULL_DISK, str(data), str(disk), str(tmp_path / "undisturbed")]
    done = subprocess.run([*mount, str(disk), *words], env=child_environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "step-000000048: No space left on device; the newest one kept is step-000000008" in document["raised"]
    assert document["kept"] == ["step-000000008", "step-000000004"]
    assert any("warning: cannot write checkpoint" in remark and "step-000000012" in remark for remark in document["remarks"])
    assert any("a line of" in remark and "is missing" in remark for remark in document["remarks"])
    assert (document["resumed"], document["same"]) == (8, True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_changing_the_number_of_ranks_keeps_the_samples_of_each_step(
    data: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """Each step's images, over all ranks, are those of a run that was never disturbed."""
    undisturbed = recorded(data, tmp_path / "undisturbed", child_environment, ranks=1, stop_at=None)
    assert len(undisturbed) == 24 and all(len(images) == 8 for images in undisturbed)
    out = tmp_path / "run"
    seen = recorded(data, out, child_environment, ranks=2, stop_at=4)
    seen += recorded(data, out, child_environment, ranks=1, stop_at=len(seen) + 4)
    seen += recorded(data, out, child_environment, ranks=2, stop_at=None)
    assert seen == undisturbed
    begun = [line["resumed_from_step"] for line in lines(out) if "resumed_from_step" in line]
    assert begun[0] is None and 4 <= begun[1] < begun[2] < 24  # both were stopped on the way


def recorded(data: Path, out: Path, environment: dict[str, str], *, ranks: int, stop_at: int | None) -> list[list[str]]:
    """Trains, up to SIGTERM at `stop_at`; the images of each step, sorted."""
    record = out.with_name(f"{out.name}-{ranks}-{stop_at}")
    record.mkdir()
    words = [*command(data / "train", out), "--model", "recording:make", "--average", "0", "--mixup", "0", "--epochs", "2"]
    words += ["--batch-size", str(8 // ranks), "--processes", str(ranks)]
    variables = environment | {"HEADRACE_TEST_RECORD": str(record)}
    if stop_at is None and ranks == 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_TEST_RECORD", str(record))
            patch.syspath_prepend(str(HELPERS))
            trained_here(words)
    elif stop_at is None:
        subprocess.run(words, env=variables, check=True, capture_output=True, timeout=110)
    else:
        assert disturb(words, out, variables, signal.SIGTERM, stop_at, 0) == 143
    parts = [[line.split() for line in path.read_text().splitlines()] for path in sorted(record.iterdir())]
    assert len(parts) == ranks
    return [sorted(itertools.chain(*step)) for step in zip(*parts, strict=True)]


def test_the_last_step_is_reported_right_after_a_request_to_stop(data: Path, tmp_path: Path) -> None:
    reported: list[int] = []

    def stop(progress: TrainingProgress) -> None:
        reported.append(progress.step)
        if progress.step == 20:
            os.kill(os.getpid(), signal.SIGINT)

    options = Options(
        "resnet20", str(data), str(tmp_path / "run"), epochs=8, batch_size=8, image_size=32, device="cpu", threads=1
    )
    result = train(options, on_progress=stop)
    assert result.exit_code == 128 + signal.SIGINT and 20 <= result.steps < 40
    assert reported[-1] == result.steps
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["interrupted_by"] == "SIGINT" and lines[-1]["step"] == result.steps
    assert any("loss" in line and line["step"] == result.steps for line in lines)
