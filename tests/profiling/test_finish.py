"""`finish`: every way to watch a job ends in the same measurements, and a failing measurement costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import SessionError
from headrace.profiling import finish as finish_module
from headrace.profiling.finish import finish
from headrace.profiling.image_benchmark import measure_images
from headrace.report.pages import html
from headrace.report.sessions.session_folder import read_session_folder
from headrace.report.text.shown_diagnosis import shown
from headrace.session.model import Session
from session_factory import make_session
from traced_memory import at_most


@pytest.fixture
def images(image_folder: Callable[..., Path]) -> list[str]:
    """Paths of twelve JPEGs."""
    return sorted(map(str, image_folder().rglob("*.jpg")))


def saved_session(folder: Path, paths: list[str]) -> Session:
    """A session of a job that is short of CPU, as the hooks leave it, with the job's sample paths."""
    session = make_session(workers=1, cpu_s=0.06, compute_s=0.015)
    session = replace(session, loaders=(replace(session.loaders[0], sample_paths=tuple(paths)),))
    session.save(folder)
    return session


def fix_ids(diagnosis: Diagnosis) -> dict[str, float | None]:
    return {fix.id: fix.predicted_img_s for fix in diagnosis.fixes}


def test_the_jobs_images_are_measured_so_that_headrace_run_is_predicted(tmp_path: Path, images: list[str]) -> None:
    saved_session(tmp_path / "s", images)
    session, diagnosis = finish(tmp_path / "s", log=pytest.fail)
    assert session.facts["image_benchmark"]["images"] == len(images)
    assert fix_ids(diagnosis)["headrace_run"] is not None
    assert diagnosis.session == str(tmp_path / "s")
    assert diagnosis.report == str(tmp_path / "s/report.html")
    assert Path(diagnosis.report).read_text().startswith("<!doctype html>")
    again, written = read_session_folder(tmp_path / "s")
    assert shown(written) == diagnosis
    assert again.facts == session.facts


@pytest.mark.parametrize("part", ["resized", "cropped"])
def test_native_decode_is_measured_for_a_loader_that_is_taken_over_in_part(
    tmp_path: Path, images: list[str], part: str
) -> None:
    session = saved_session(tmp_path / "whole", images)
    assert not any(name.startswith("resized_headrace") and value for name, value in _benchmark_of(session, tmp_path).items())
    answer = replace(session.loaders[0], take_over="part", take_over_reason="decode only: a lambda", native_part=part)
    replace(session, loaders=(answer,)).save(tmp_path / "part")
    session, diagnosis = finish(tmp_path / "part", log=pytest.fail, report=False)
    measured = session.facts["image_benchmark"]
    assert 0 < measured[f"{part}_headrace_s"] < 10 * measured[f"{part}_plain_s"]
    found = next(fix for fix in diagnosis.fixes if fix.id == "headrace_run")
    assert "decode only: a lambda" in found.change and found.predicted_img_s


def _benchmark_of(session: Session, folder: Path) -> dict[str, float | None]:
    session.save(folder / "plain")
    measured: dict[str, float | None] = finish(folder / "plain", log=pytest.fail, report=False)[0].facts["image_benchmark"]
    return measured


def test_without_a_report_the_images_are_measured_all_the_same(tmp_path: Path, images: list[str]) -> None:
    saved_session(tmp_path / "s", images)
    session, diagnosis = finish(tmp_path / "s", log=pytest.fail, report=False)
    assert "image_benchmark" in session.facts and diagnosis.report is None
    assert not (tmp_path / "s/report.html").exists() and (tmp_path / "s/diagnosis.json").exists()


def test_a_job_without_steps_is_not_measured(tmp_path: Path, images: list[str]) -> None:
    session = saved_session(tmp_path / "whole", images)
    replace(session, steps=()).save(tmp_path / "s")
    found, diagnosis = finish(tmp_path / "s", log=pytest.fail, report=False)
    assert "image_benchmark" not in found.facts and diagnosis.verdict == "INSUFFICIENT_DATA"


def test_a_measurement_that_fails_is_logged_and_left_out(
    tmp_path: Path, images: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: Session, folder: Path) -> Session:
        raise RuntimeError("a decoder of its own kind")

    monkeypatch.setattr(finish_module, "with_image_benchmark", fail)
    saved_session(tmp_path / "s", images)
    lines: list[str] = []
    session, diagnosis = finish(tmp_path / "s", log=lines.append)
    assert diagnosis.verdict == "CPU_PREP" and "image_benchmark" not in session.facts
    assert lines == ["headrace: image benchmark not measured: RuntimeError: a decoder of its own kind"]


def test_no_thread_is_started_while_the_interpreter_exits(
    tmp_path: Path, images: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish_module, "with_read_sweep", lambda *_: pytest.fail("it needs threads"))
    saved_session(tmp_path / "s", images)
    session, _ = finish(tmp_path / "s", log=pytest.fail, threads_allowed=False, report=False)
    assert "image_benchmark" in session.facts


def test_a_report_that_cannot_be_written_leaves_the_diagnosis(
    tmp_path: Path, images: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SessionError("no room for the report")

    monkeypatch.setattr(html, "write", fail)
    saved_session(tmp_path / "s", images)
    lines: list[str] = []
    _, diagnosis = finish(tmp_path / "s", log=lines.append)
    assert diagnosis.verdict == "CPU_PREP" and diagnosis.report is None
    assert lines == [f"headrace: diagnosis and report are not written to {tmp_path / 's'}: no room for the report"]
    assert read_session_folder(tmp_path / "s")[1].verdict == "CPU_PREP"


JOB = """
import sys, torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
torch.set_num_threads(1)

def train():
    data = ImageFolder(sys.argv[1], T.Compose([T.RandomResizedCrop(32), T.ToTensor()]))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for images, labels in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
"""

PLAIN = "train()\n"
IN_PROCESS = "import headrace\nwith headrace.watch('session', report=False): train()\n"
AS_HEADRACE_TRAIN = """
from headrace.cli.train.run_watch import RunWatch
from headrace.training.distributed.ranks import Ranks
from headrace.training.loop import Options, TrainingStart
run = RunWatch(Options("resnet18", sys.argv[1], "."))
run.begin(TrainingStart(0, Ranks()))
train()
diagnosis = run.end()
assert diagnosis is not None and diagnosis.steps and diagnosis.report is not None
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "session"),
    [(IN_PROCESS, "session"), (AS_HEADRACE_TRAIN, "sessions/from-000000000")],
    ids=["headrace.watch()", "headrace train"],
)
def test_a_job_watched_from_inside_has_its_images_measured(
    tmp_path: Path, image_folder: Callable[..., Path], job: str, session: str
) -> None:
    pytest.importorskip("torchvision")
    (tmp_path / "train.py").write_text(JOB + job)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [sys.executable, "train.py", str(image_folder(per_class=20))]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found, diagnosis = read_session_folder(tmp_path / session)
    assert found.loaders[0].sample_paths and diagnosis.steps
    assert found.facts["image_benchmark"]["plain_s"] > 0


@pytest.mark.slow
def test_headrace_watch_measures_the_jobs_images(
    tmp_path: Path, image_folder: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchvision")
    (tmp_path / "train.py").write_text(JOB + PLAIN)
    command = [sys.executable, str(tmp_path / "train.py"), str(image_folder(per_class=20))]
    assert main(["watch", "--out", str(tmp_path / "session"), "--", *command]) == 0, capfd.readouterr().err
    found, diagnosis = read_session_folder(tmp_path / "session")
    assert found.loaders[0].sample_paths and diagnosis.steps
    assert found.facts["image_benchmark"]["plain_s"] > 0


@pytest.mark.slow
def test_a_diagnosis_that_fails_does_not_fail_the_script(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    pytest.importorskip("torchvision")
    broken = "from headrace.report.pages import html\nhtml.write = None\n"
    job = (
        "import headrace\nwith headrace.watch('session') as block: train()\nassert block.diagnosis is None\nprint('went on')\n"
    )
    (tmp_path / "train.py").write_text(JOB + broken + job)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [sys.executable, "train.py", str(image_folder(per_class=20))]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout == "went on\n", done.stderr
    assert "headrace.watch: not diagnosed: TypeError" in done.stderr


def test_zeros_behind_images_take_no_memory(image_folder: Callable[..., Path]) -> None:
    """All images of the benchmark are held at once, and a sparse end costs whoever made the dataset nothing."""
    files = sorted(image_folder(classes=1, per_class=2).rglob("*.jpg"))
    os.truncate(files[0], 512 << 20)
    with at_most(128 << 20):
        found = measure_images([str(file) for file in files])
    assert found is not None and found.images == 1
