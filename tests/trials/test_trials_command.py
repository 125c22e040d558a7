"""`headrace trials` as a user runs it: small, resumed, with a loader that is not there."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("skimage")
pytest.importorskip("sklearn")

ARGUMENTS = ("trials", "dali", "--simulate", "v100", "--models", "resnet18", "--loads", "1", "--mode", "corrected",
             "--loaders", "headrace,torchvision-gpu", "--scale", "0.003", "--seconds", "0.2", "--json")  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments], capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("trials") / "out"
    done = run(*ARGUMENTS, "--out", str(out), "--usd-per-hour", "3.6")
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cell_is_measured_and_a_missing_loader_is_a_row_with_its_reason(first: tuple[Path, dict[str, Any]]) -> None:
    out, document = first
    rows = {row["loader"]: row for row in document["rows"]}
    ours = rows["headrace"]
    assert ours["simulated"] is True and ours["error"] is None
    for name in ("seconds_per_epoch", "img_s", "ingest_img_s", "compute_img_s", "cpu_ms", "val_cpu_ms", "gpu_p95"):
        assert ours[name] > 0, name
    assert ours["images_per_epoch"] == 9469 + 3925
    assert ours["usd_per_epoch"] == pytest.approx(ours["seconds_per_epoch"] / 1000)
    assert ours["compute_img_s"] <= 1.02 * 367 * 4.09 / 1.82
    if rows["torchvision-gpu"]["error"] is not None:
        assert rows["torchvision-gpu"]["error"] == "needs a CUDA GPU"
    with open(out / "rows.csv", newline="") as stream:
        assert [row["loader"] for row in csv.DictReader(stream)] == [row["loader"] for row in document["rows"]]
    page = (out / "trials.html").read_text()
    assert "computing is simulated" in page and "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert list((out / "charts").glob("*.svg"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_run_reads_what_is_measured_already(first: tuple[Path, dict[str, Any]]) -> None:
    out, document = first
    again = run(*ARGUMENTS, "--out", str(out), "--usd-per-hour", "3.6")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["rows"] == document["rows"]
    other = run(*ARGUMENTS[:-1], "--out", str(out), "--scale", "0.004")
    assert other.returncode == 2 and "other settings" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dalli",), "did you mean dali?"),
        (("dali", "--loaders", "pytorc"), "did you mean pytorch?"),
        (("dali", "--simulate", "v1000"), "v100"),
        (("dali", "--loads", "a"), "--loads"),
        (("dali", "--data", "/no/such/folder"), "/no/such/folder"),
        (("dali", "--budget-minutes", "0"), "--budget-minutes"),
        (("dali", "--scale", "nan"), "--scale"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = run("trials", *arguments, "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    done = run(*ARGUMENTS, "--out", str(tmp_path))
    assert done.returncode == 2 and "holds other files" in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
