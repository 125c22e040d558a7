"""Every `headrace train` run is diagnosed in a folder of its own, and a failing diagnosis does not fail the training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.cli.train import run_watch
from headrace.errors import SessionError
from headrace.report.pages import html
from headrace.session.model import Session
from headrace.training.stop_signal import StopRequest
from sample_images import jpeg
from train_command import run_to_document, train_command, wait_for


def words(data: Path, out: Path, *more: str) -> list[str]:
    given = ["train", "--model", "resnet50", "--data", str(data / "train"), "--out", str(out), "--image-size", "32", "--json"]
    return [*given, "--device", "sim:100", "--batch-size", "4", "--epochs", "3", "--threads", "1", *more]


def test_the_run_has_a_verdict_and_a_report(two_colours: Path, tmp_path: Path, capsys) -> None:
    assert main(words(two_colours, tmp_path / "run", "--resume", "auto")) == 0
    document = json.loads(capsys.readouterr().out)
    saved = json.loads((Path(document["session"]) / "diagnosis.json").read_text())
    assert document["verdict"] == saved["verdict"] != "INSUFFICIENT_DATA"  # which one, a busy machine decides
    session = Session.load(Path(document["session"]))
    assert len(session.steps) >= 20 and Path(document["session"]) == tmp_path / "run/sessions/from-000000000"
    page = Path(document["report"]).read_text()
    assert document["verdict"] in page and 'href="sessions/from-000000000/report.html"' in page
    assert (tmp_path / "run/sessions/from-000000000/report.html").stat().st_size > 1000
    # nothing is left to do: the page has no diagnosis, and the command still ends well
    assert main(words(two_colours, tmp_path / "run", "--resume", "auto")) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] is None


@pytest.fixture(scope="module")
def large_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of 48 photographs of 900 × 700 pixels: one thread makes far fewer than a fast GPU takes."""
    root = tmp_path_factory.mktemp("large") / "train"
    for number in range(48):
        folder = root / f"class_{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(jpeg(900, 700, number))
    return root.parent


FAST = ("--device", "sim:20000", "--image-size", "64", "--epochs", "40", "--batch-size", "8")


@pytest.mark.slow
def test_a_run_that_waits_for_images_has_its_fixes_predicted(large_images: Path, tmp_path: Path, capsys) -> None:
    assert main(words(large_images, tmp_path / "run", *FAST)) == 0
    document = json.loads(capsys.readouterr().out)
    session = Session.load(Path(document["session"]))
    assert (
        session.loaders[0].sample_paths and session.batches and session.facts["image_benchmark"]["headrace_pre_resized_s"] > 0
    )
    saved = json.loads((Path(document["session"]) / "diagnosis.json").read_text())
    fixes = {fix["id"].partition("=")[0]: fix for found in saved["findings"] for fix in found["fixes"]}
    assert fixes["pre_resize"]["predicted_img_s"] > saved["img_s"], saved["findings"]
    assert "headrace pack --short-side 256" in fixes["pre_resize"]["command"]
    assert "headrace_run" not in fixes  # the loader is headrace's own


def test_a_run_that_is_asked_to_stop_does_not_measure_its_images(
    large_images: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    measured: list[bool] = []
    finish = run_watch.finish

    def noting(*arguments: Any, measure: bool, **more: Any) -> Any:
        measured.append(measure)
        return finish(*arguments, measure=measure, **more)

    monkeypatch.setattr(run_watch, "finish", noting)
    interrupted = StopRequest.__enter__

    def interrupt(self: StopRequest) -> StopRequest:
        entered = interrupted(self)
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        return entered

    monkeypatch.setattr(StopRequest, "__enter__", interrupt)
    assert main(words(large_images, tmp_path / "run", *FAST, "--device", "sim:100")) == 128 + signal.SIGINT
    document = json.loads(capsys.readouterr().out)
    assert measured == [False]
    assert "image_benchmark" not in Session.load(Path(document["session"])).facts


def test_a_command_that_cannot_train_leaves_nothing_behind(two_colours: Path, tmp_path: Path, capsys) -> None:
    assert main(words(two_colours, tmp_path / "run", "--model", "resnet51")) == 2
    assert not (tmp_path / "run").exists()
    assert "HEADRACE_SESSION_DIR" not in os.environ


@pytest.mark.parametrize(
    ("module", "function", "message"),
    [
        (html, "write", "diagnosis and report are not written to "),
        (run_watch, "finish", "warning: this run is not diagnosed: no room for the report"),
    ],
)
def test_a_diagnosis_that_fails_does_not_fail_the_training(
    two_colours: Path, tmp_path: Path, capsys, monkeypatch, module: ModuleType, function: str, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SessionError("no room for the report")

    monkeypatch.setattr(module, function, fail)
    assert main(words(two_colours, tmp_path / "run", "--steps", "12")) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["final"]
    assert message in output.err and "no room for the report" in output.err


@pytest.mark.parametrize("link", ["sessions", "sessions/from-000000000"])
def test_the_session_of_a_training_is_written_through_no_link(link: str, two_colours: Path, tmp_path: Path, capsys) -> None:
    """A stranger's training may bring one: folders appeared where it leads, and the one with the session's name was removed."""
    (kept := tmp_path / "elsewhere/from-000000000/kept.txt").parent.mkdir(parents=True)
    kept.write_text("mine")
    (tmp_path / "run" / link).parent.mkdir(parents=True)
    (tmp_path / "run" / link).symlink_to(tmp_path / "elsewhere")
    assert main(words(two_colours, tmp_path / "run", "--steps", "2")) == 0
    assert "this run is not diagnosed" in (said := capsys.readouterr().err) and "is a link, which is not followed" in said
    assert [*(tmp_path / "elsewhere").rglob("*.*")] == [kept]


@pytest.mark.parametrize("link", ["checkpoints", "tensorboard"])
def test_a_training_in_the_folder_of_another_writes_through_no_link(
    link: str, two_colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints appeared where it leads, and what was called as an unfinished one was removed."""
    (kept := tmp_path / "elsewhere/.partial-mine/kept.txt").parent.mkdir(parents=True)
    kept.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / link).symlink_to(tmp_path / "elsewhere")
    assert main(words(two_colours, tmp_path / "run", "--steps", "2", "--log", "tensorboard")) == 2
    assert f"{tmp_path / 'run' / link}: is a link, which is not followed" in capsys.readouterr().err
    assert [*(tmp_path / "elsewhere").rglob("*")] == [kept.parent, kept]


def test_under_diagnose_the_run_records_no_session_of_its_own(two_colours: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HEADRACE_SESSION_DIR", str(tmp_path / "outer"))
    assert main(words(two_colours, tmp_path / "run", "--steps", "2")) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] is None
    assert not (tmp_path / "run/sessions").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_rank_waits_for_a_first_rank_that_cannot_write_its_session(
    two_colours: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """The other waited for it, and took the first rank's next exchange for the end of the wait."""
    (tmp_path / "run/sessions").mkdir(parents=True)
    (tmp_path / "run/sessions/from-000000000").write_text("no folder")
    words = ["--batch-size", 4, "--processes", 2, "--device", "sim:100", "--model", "resnet18"]
    command = train_command(two_colours, tmp_path / "run", *words)
    done = subprocess.run(command, env=child_environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["session"] is None and json.loads(done.stdout)["steps"] > 0
    said = [line for line in done.stderr.splitlines() if "this run is not diagnosed" in line]
    assert len(said) == 2 and sum("the first rank of this machine cannot write" in line for line in said) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_ranks_are_in_one_session(two_colours: Path, tmp_path: Path, child_environment: dict[str, str]) -> None:
    slow = ["--batch-size", 4, "--processes", 2, "--device", "sim:100", "--model", "resnet18"]
    document = run_to_document(train_command(two_colours, tmp_path / "run", *slow), child_environment)
    session = Session.load(Path(str(document["session"])))
    assert {process.rank for process in session.processes if process.role == "main"} == {0, 1}


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_that_holds_its_pipes(
    two_colours: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """The sampler ends although nobody has waited for the killed process yet: who reads its pipes to the end is not kept."""
    command = [sys.executable, "-m", "headrace", *words(two_colours, tmp_path / "run", "--checkpoint-steps", "1")]
    with subprocess.Popen(command, env=child_environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait_for(lambda: any((tmp_path / "run").glob("sessions/*/sampler.jsonl")), process)
        process.kill()
        assert process.stderr is not None
        process.stderr.read()  # to the end, while the process is still to be waited for; pytest's time limit is the measure
    assert process.returncode == -9


@pytest.mark.slow
@pytest.mark.parametrize("at_step", [14, 15])
def test_a_stop_during_the_operator_profile_exits_with_the_signals_code(
    two_colours: Path,
    tmp_path: Path,
    child_environment: dict[str, str],
    at_step: int,
) -> None:
    """Steps 13 to 15 are profiled where they are short and the CPU computes; torch crashes when it ends within a profile."""
    driver = (
        "import os, signal, sys; from headrace.training import loop; from headrace.cli import main; loop.LOG_STEPS = 1; "
        "from headrace.cli.train import train\n"
        "def stop(options, progress, meter):\n"
        f"    if progress.step == {at_step}: os.kill(os.getpid(), signal.SIGTERM)\n"
        "train._show_progress = stop\nsys.exit(main.main(sys.argv[1:]))"
    )
    given = [
        *words(two_colours, tmp_path / "run", "--batch-size", "8", "--epochs", "9"),
        "--device",
        "cpu",
        "--model",
        "resnet20",
    ]
    done = subprocess.run(
        [sys.executable, "-c", driver, *given], env=child_environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 143, done.stderr
    assert json.loads(done.stdout)["steps"] == at_step
