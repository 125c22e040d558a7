"""`headrace trials` as a user runs it: small, resumed, with a loader that is not there."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace.cli.cloud import trials
from headrace.cli.main import main
from headrace.errors import HeadraceError, UsageError
from headrace.trials.experiment.cells import Experiment
from headrace.trials.experiment.pixels import compare_pixels
from headrace.trials.measuring import runner
from headrace.trials.measuring.runner import only_run
from headrace.trials.results import outputs
from headrace.trials.results.row import Row

pytest.importorskip("torch")
pytest.importorskip("skimage")
pytest.importorskip("sklearn")

ARGUMENTS = ("trials", "dali", "--simulate", "v100", "--models", "resnet18", "--loads", "1", "--mode", "corrected",
             "--loaders", "headrace,torchvision-gpu", "--scale", "0.003", "--seconds", "0.2", "--json")  # fmt: skip


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **environment},
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
    assert any("recorded training, whose rate is" in note and "(median of 1 cell)" in note for note in document["notes"])
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
        (("dali", "--simulate", "h100"), "GPUs with published rates in fp32: v100, a100"),
        (("amp", "--simulate", "v100"), "cannot be simulated"),
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


@pytest.mark.parametrize("text", ["[]", "3", "[" * 100_000, "{", '{"experiment": 1e400}'])
def test_settings_that_no_run_wrote_are_an_error_in_words(text: str, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(text)
    done = run(*ARGUMENTS, "--out", str(tmp_path))
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "document",
    [
        *(
            [],
            3,
            {},
            {"result": 3, "verdicts": {}},
            {"result": {}, "verdicts": []},
            {"result": {}, "verdicts": {"a": 3}},
        ),
        *({"result": {}, "verdicts": {"a": {"kind": 3}}}, {"result": {}, "verdicts": {}, "taken_s": "x"}),
    ],
)
def test_results_that_no_run_wrote_are_measured_again(document: Any, tmp_path: Path) -> None:
    (tmp_path / "cell.json").write_text(json.dumps(document))
    assert runner._read(tmp_path / "cell.json") is None


@pytest.mark.parametrize("result", [{}, {"models": {"resnet18": 3}, "ingest": {}}, {"models": [], "ingest": 3}], ids=repr)
def test_results_that_no_run_wrote_are_an_error_in_words(
    result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of results may come from anybody, and lie under the name that a run looks for in the current folder."""

    def kept(experiment: Experiment, settings: runner.Settings, **_: Any) -> runner.Run:
        groups = tuple(runner.Group(cells, result=result, verdicts={}) for cells in runner._groups(experiment))
        return runner.Run(experiment, settings, groups, {}, 1.0, 1.0)

    monkeypatch.setattr(trials, "run_groups", kept)
    assert main([*ARGUMENTS[:-1], "--out", str(tmp_path)]) == 1
    assert "cannot be shown: its values contradict each other" in capsys.readouterr().err


def test_a_result_that_no_run_wrote_is_no_formula_in_the_table(tmp_path: Path) -> None:
    outputs.write_files(tmp_path, [Row("run", "resnet18", 1, 32, "corrected", error="=1+1")], {}, "")
    with open(tmp_path / "rows.csv", newline="") as stream:
        assert [row["error"] for row in csv.DictReader(stream)] == ["'=1+1"]


def test_pixels_that_no_run_wrote_are_an_error_in_words(tmp_path: Path) -> None:
    good, other = tmp_path / "good.npy", tmp_path / "other.npy"
    np.save(good, np.zeros((1, 3, 2, 2), np.uint8))
    shape = b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(127) + b"\n"
    for data in (b"", b"x" * 99, shape, pickle.dumps(3)):
        other.write_bytes(data)
        with pytest.raises(HeadraceError, match=r"other\.npy holds no pixels"):
            compare_pixels(good, other)
    np.save(other, np.zeros(3, np.complex128))
    with pytest.raises(HeadraceError, match="numbers of type complex128"):
        compare_pixels(good, other)
    os.truncate(other, 1 << 40)
    with pytest.raises(HeadraceError, match="cannot read"):
        compare_pixels(good, other)
    assert compare_pixels(good, good)["equal"]


FEW_CELLS = """
title = "Loaders, briefly"
question = "Which loader is faster?"
accelerator = "v100"
compare = "loader"

[[cells]]
loader = ["headrace", "pytorch", "headrace-packed"]
model = "resnet18"
load = 1
mode = "corrected"
transform = "imagenet"
batch_size = 32
workers = 1
"""
DESCRIPTION = ("loader", "model", "load", "mode", "batch_size", "workers", "error")


def of_folder(folder: Path) -> list[str]:
    """Return the command lines of running processes that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in words:
                found.append(words)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_five_times_ends_with_every_row_and_keeps_what_was_measured(tmp_path: Path) -> None:
    experiment, out = tmp_path / "few.toml", tmp_path / "out"
    experiment.write_text(FEW_CELLS)
    command = ("trials", str(experiment), "--scale", "0.003", "--seconds", "0.2", "--json", "--out", str(out))
    rng = random.Random(7)
    for _ in range(5):
        kept = {file: file.stat().st_mtime_ns for file in out.glob("cells/*.json")}
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(2, 14))
        process.kill()
        process.wait()
        limit = time.monotonic() + 60
        while of_folder(out) and time.monotonic() < limit:
            time.sleep(0.1)
        assert not of_folder(out), "a process of the killed run goes on measuring"
        assert all(file.stat().st_mtime_ns == at for file, at in kept.items())
    done = run(*command)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    loaders = ["headrace", "pytorch", "headrace-packed"]
    assert [tuple(row[name] for name in DESCRIPTION) for row in rows] == [
        (loader, "resnet18", 1, "corrected", 32, 1, None) for loader in loaders
    ]
    assert all(row["img_s"] > 0 for row in rows)
    assert not list(out.glob("data/**/*.partial-*"))
    assert json.loads(run(*command).stdout)["rows"] == rows


#: Imported by each Python of the run: PyTorch's DataLoader kills the process that iterates it.
CRASH = """
import sys
if "headrace.trials.measuring.measure_input" in sys.orig_argv:
    import os, signal, torch.utils.data
    torch.utils.data.DataLoader.__iter__ = lambda self: os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_loader_that_crashes_is_a_row_with_its_error_and_the_others_are_measured(tmp_path: Path) -> None:
    experiment, site = tmp_path / "few.toml", tmp_path / "site"
    experiment.write_text(FEW_CELLS)
    site.mkdir()
    (site / "sitecustomize.py").write_text(CRASH)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    command = ("trials", str(experiment), "--scale", "0.003", "--seconds", "0.2", "--json", "--out", str(tmp_path / "out"))
    done = run(*command, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    rows = {row["loader"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["pytorch"]["error"] == "the process of pytorch failed (signal 11): no message"
    assert rows["pytorch"]["img_s"] is None
    assert all(rows[name]["error"] is None and rows[name]["img_s"] > 0 for name in ("headrace", "headrace-packed"))
    again = run(*command)  # without the fault: only the row with the error is measured
    assert again.returncode == 0, again.stderr
    second = {row["loader"]: row for row in json.loads(again.stdout)["rows"]}
    assert second["pytorch"]["error"] is None and second["pytorch"]["img_s"] > 0
    assert all(second[name] == rows[name] for name in ("headrace", "headrace-packed"))


def test_only_one_run_works_in_a_folder(tmp_path: Path) -> None:
    with only_run(tmp_path), pytest.raises(UsageError, match="another run"), only_run(tmp_path):
        pass


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_full_disk_is_said_and_nothing_measured_is_lost(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("untested: tmpfs cannot be mounted here")
    try:
        done = run(*ARGUMENTS, "--out", str(disk / "out"))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "No space left on device" in done.stderr + done.stdout and "continues there" in done.stderr + done.stdout
    finally:
        subprocess.run(["umount", str(disk)], check=False)
