"""`headrace report`: the saved diagnosis in each format, and clear errors without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.diagnosis.result.model import SHARES
from headrace.report.sessions.session_folder import diagnosis_from_json, read_session_folder
from headrace.report.text.screen import first_screen
from session_factory import example_diagnosis, example_session


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A session folder with its diagnosis, as `headrace diagnose` leaves it."""
    folder = example_session().save(tmp_path / "session")
    (folder / "diagnosis.json").write_text(json.dumps(example_diagnosis().to_json()))
    return folder


def test_diagnosis_reads_back_equal(saved: Path) -> None:
    session, diagnosis = read_session_folder(saved)
    assert diagnosis == example_diagnosis()
    assert session == example_session()


def test_session_without_diagnosis_is_diagnosed(tmp_path: Path) -> None:
    folder = example_session().save(tmp_path / "session")
    _, diagnosis = read_session_folder(folder)
    assert diagnosis.steps > 50
    assert diagnosis_from_json(json.loads(json.dumps(diagnosis.to_json()))) == replace(diagnosis)


def test_text_is_the_default(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "CPU_PREP" in out and "1,560 img/s" in out
    assert len(out.splitlines()) <= 24


def test_html_is_written_into_the_session_folder_and_named(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(saved), "--html"]) == 0
    assert capsys.readouterr().out.strip() == str(saved / "report.html")
    assert (saved / "report.html").read_text().startswith("<!doctype html>")


def test_json_is_one_document(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(saved), "--html", "--out", str(saved / "x.html"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "CPU_PREP"
    assert document["report"] == str(saved / "x.html")
    assert (saved / "x.html").is_file()


def test_damaged_diagnosis_is_an_error_with_a_hint(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "diagnosis.json").write_text('{"verdict": 3}')
    assert main(["report", str(saved)]) == 1
    assert "is not a diagnosis" in (message := capsys.readouterr().err)
    assert "hint: delete it" in message


def test_folder_without_session_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no session" in capsys.readouterr().err
    assert main(["report"]) == 2


NEWER = ("input_quota", "input_next", "script", "core_wait", "quota", "standstill")
"""Parts of the bar that the first versions had not."""


def test_a_diagnosis_from_before_the_wait_for_a_core_had_a_part_is_read_and_drawn(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an older headrace wrote it: the bar sums to 100 % of what was measured, and the part is named as not measured."""
    document = json.loads((saved / "diagnosis.json").read_text())
    shares = {name: share for name, share in document["share_of_step"].items() if name not in NEWER}
    for name in ("flame_charts", "hot_functions", "reachable_img_s", "reachable_fix", "foreign_programs", "notes"):
        del document[name]
    document["share_of_step"] = shares
    (saved / "diagnosis.json").write_text(json.dumps(document))
    _, diagnosis = read_session_folder(saved)
    assert "core_wait" not in diagnosis.share_of_step and diagnosis.share_of_step == shares
    screen = first_screen(diagnosis)
    assert sum(part.percent for part in screen.parts) == 100 and "core_wait" not in {part.key for part in screen.parts}
    assert screen.absent_parts == tuple(SHARES[name] for name in NEWER)
    for words in (["--json"], ["--html"], [], ["--openmetrics"], ["--perfetto"]):
        assert main(["report", str(saved), *words]) == 0
    assert "waiting for a core" not in (saved / "report.html").read_text()
    assert main(["compare", str(saved), str(saved)]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_notes_that_version_0_1_0_wrote_as_texts_are_read(saved: Path) -> None:
    document = json.loads((saved / "diagnosis.json").read_text())
    document["notes"] = ["the loss does not move"]
    (saved / "diagnosis.json").write_text(json.dumps(document))
    _, diagnosis = read_session_folder(saved)
    assert [note.text for note in diagnosis.notes] == ["the loss does not move"]
    assert main(["report", str(saved)]) == 0


@pytest.mark.parametrize(
    ("kind", "name"),
    [("--perfetto", "trace.json.gz"), ("--tensorboard", "tensorboard/events.out.tfevents.headrace"), ("--html", "report.html")],
)
def test_files_are_written_into_the_session_folder(saved: Path, kind: str, name: str) -> None:
    assert main(["report", str(saved), kind]) == 0
    assert (saved / name).stat().st_size > 1000


def test_openmetrics_goes_to_stdout_or_a_file(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(saved), "--openmetrics"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("# EOF\n")
    assert main(["report", str(saved), "--openmetrics", "--out", str(saved / "x.prom")]) == 0
    assert (saved / "x.prom").read_text() == printed


def test_json_in_a_file_holds_the_long_series(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(saved), "--json", "--out", str(saved / "all.json")]) == 0
    assert "heat_map" in json.loads((saved / "all.json").read_text())
    assert "heat_map" not in json.loads(capsys.readouterr().out)


def test_the_price_of_a_gpu_hour_adds_the_money_a_fix_saves(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(saved), "--usd-per-hour", "4.1"]) == 0
    assert "($239)" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["0", "1", "-5", "abc", "", "500"])
def test_whatever_columns_says_the_report_is_printed(saved: Path, columns: str) -> None:
    """With COLUMNS=0 nothing at all was printed."""
    command = [sys.executable, "-m", "headrace", "report", str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": columns}, check=True)
    assert "CPU_PREP" in done.stdout.replace("\n", "") and len(done.stdout.splitlines()) < 120


def test_an_ascii_output_gets_ascii_only(saved: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for verb in (["report", str(saved)], ["compare", str(saved), str(saved)]):
        command = [sys.executable, "-m", "headrace", *verb]
        result = subprocess.run(command, capture_output=True, env=environment, check=False)
        assert result.returncode == 0, result.stderr
        assert result.stdout.isascii() and b"img/s" in result.stdout
