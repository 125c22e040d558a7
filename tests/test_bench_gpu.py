"""`make bench-gpu` on the CPU: a dry run starts, goes on after a kill, renders its page, and leaves results/data alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchvision")

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
DATA = BENCHMARKS / "results" / "data"


def command(out: Path, images: Path, *more: str) -> list[str]:
    script = str(BENCHMARKS / "gpu" / "run.py")
    return [sys.executable, script, "--dry-run", "--out", str(out), "--images", str(images), "--write", *more]


def names() -> list[str]:
    return re.findall(r'Measurement\(\s*"(\w+)"', (BENCHMARKS / "gpu" / "measurements.py").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_killed_dry_run_goes_on_and_renders(tmp_path: Path, image_folder: object) -> None:
    images = image_folder(classes=2, per_class=8)  # type: ignore[operator]
    out, before = tmp_path / "out", {path: path.read_bytes() for path in DATA.iterdir()}
    chosen = ["--only", "correctness", "decoders", "placement", "stage", "augmentation", "transfers"]
    first = subprocess.Popen(command(out, images, *chosen), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    done = out / "correctness.json"
    end = time.monotonic() + 300
    while not done.exists():
        assert first.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    finished = {path.name for path in out.glob("*.json")}
    stamp = done.stat().st_mtime_ns
    again = subprocess.run(command(out, images, *chosen, "--resume"), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert done.stat().st_mtime_ns == stamp, "what was measured is not measured again"
    assert "correctness:" not in again.stderr and "transfers:" in again.stderr
    page = (out / "awaits_gpu.md").read_text(encoding="utf-8")
    assert finished <= {path.name for path in out.glob("*.json")}
    for name in names():
        assert f"| {name} |" in page, "all that awaits a GPU still does"
    assert not list(out.glob(".work-*")), "photographs of the killed run are removed"
    assert "## stage:" in page and "dry run" in page
    for file in (done, out / "augmentation.json"):
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        assert rows and all(row["different"] == 0 for row in rows)
    assert {"blur", "bilinear", "equalize"} <= {row["what"] for row in rows}
    assert before == {path: path.read_bytes() for path in DATA.iterdir()}


def test_without_time_left_nothing_is_begun_and_that_is_said(tmp_path: Path, image_folder: object) -> None:
    images = image_folder(classes=1, per_class=8)  # type: ignore[operator]
    run = subprocess.run(command(tmp_path / "out", images, "--minutes", "0.1"), capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.count("no time left; --resume goes on") == len(names())


@pytest.mark.slow
def test_a_measurement_that_fails_or_hangs_gives_a_reason(tmp_path: Path) -> None:
    program = f"""
import argparse
from pathlib import Path
from gpu.measurements import Measurement
from gpu.run import _run_one
args, folder = argparse.Namespace(device="cpu", tiny=True), Path({str(tmp_path)!r})
for limit_s in (100, 0.1):
    print(_run_one(Measurement("decoders", "", "", 60), args, folder / "decoders.json", folder, limit_s))
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    failed, late = run.stdout.splitlines()
    assert "ZeroDivisionError" in failed, "there is no image in the folder"
    assert late.startswith("took longer than")


@pytest.mark.slow
def test_rows_of_a_measurement_that_runs_out_of_time_are_kept_and_rendered(tmp_path: Path) -> None:
    program = f"""
import argparse
from pathlib import Path
import record
from gpu import run
from gpu.measurements import Measurement
from gpu.setting import Run
from pages import awaits_gpu
args, folder = argparse.Namespace(device="cuda", tiny=False, minutes=1.0), Path({str(tmp_path)!r})
left = [[{{"model": "resnet18", "gain": 2.5}}, {{"model": "resnet50", "gain": 1.25}}], [{{"model": "resnet18", "gain": 3.5}}]]
def late(one, args, file, images, limit_s):
    Run("cuda", False, folder, partial=run._partial(file)).note(left.pop(0))
    return "took longer than 120 s"
run._run_one = late
for _ in range(2):  # the second, shorter run replaces nothing
    assert not run._run_all([Measurement("compute", "the gain", "", 60)], args, folder, folder)
print(awaits_gpu.render(run._document(folder, argparse.Namespace(dry_run=False))))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| resnet50 | 1.25 |" in done.stdout and "3.5" not in done.stdout
    assert "Ended early (took longer than 120 s)" in done.stdout
    assert "| compute |" in done.stdout, "it still awaits a GPU"


PEERS = """
import sys
import numpy as np, torch
sys.modules["torchcodec"] = None
from gpu import peer_decoders
from gpu.measures import _peer
from gpu.setting import Run
from headrace.images.decode import decode_into
from pathlib import Path
from sample_images import jpeg
files, boxes = [jpeg(213, 160, seed) for seed in range(40)], [(11 + at, 7, 101 + at, 90 - at) for at in range(40)]
flips = [bool(at % 2) for at in range(40)]
crops = [crop for crop in peer_decoders.peer("nvJPEG through torchvision", "cpu")(files, boxes)]
found = peer_decoders.resized(crops, flips, (40, 56)).permute(0, 2, 3, 1).numpy()
wanted = np.empty((40, 40, 56, 3), np.uint8)
decode_into(files, wanted, boxes, flips)
print(np.abs(found.astype(int) - wanted).max(), _peer(Run("cuda", True, Path()), "nvJPEG through torchcodec", 8, boxes, flips))
"""


@pytest.mark.slow
def test_crops_of_the_peers_decoders_are_those_of_the_cpu_up_to_rounding() -> None:
    """torchvision decodes on the CPU here, by libjpeg-turbo; torchcodec is not there."""
    paths = os.pathsep.join([str(BENCHMARKS), str(Path(__file__).parent / "helpers"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", PEERS], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": paths}
    )
    difference, _, reason = run.stdout.strip().partition(" ")
    assert int(difference) <= 1 and "torchcodec" in reason


@pytest.mark.slow
def test_every_declared_measurement_exists() -> None:
    program = "import gpu.measures, gpu.feed, gpu.job_measures, gpu.measurements as m\n" + (
        "have = {n for module in (gpu.measures, gpu.feed, gpu.job_measures) for n in module.__all__}\n"
        "print(sorted({one.name for one in m.MEASUREMENTS} - have), len(m.MEASUREMENTS))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=BENCHMARKS, capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert run.stdout.split("] ")[0] == "["
    assert len(names()) == int(run.stdout.split()[-1])


def test_without_a_gpu_the_command_says_what_works() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    script = str(BENCHMARKS / "gpu" / "run.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "--dry-run" in run.stderr


STUB = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from gpu import job_measures, run
from gpu.setting import Run
from pages import gpu_trials
row = {"loader": "headrace", "model": "resnet18", "load": 1, "mode": "corrected", "error": None, "data": "folder"}
row |= {"img_s": 90.0, "compute_img_s": 100.0, "ingest_img_s": 300.0}
lost = row | {"img_s": None, "error": job_measures.DROPPED}
part, whole = [row, lost, lost], [row, row | {"load": 4}, row | {"load": 8}]
calls = iter([part, whole, part])  # the third on a new machine
def answer(command, **options):
    rows = next(calls)
    document = {"title": "T", "simulate": None, "elapsed_s": 5.0, "notes": ["N"], "rows": rows}
    document["sentences"] = ["Target, x: holds. y."]
    return SimpleNamespace(stdout=json.dumps(document), stderr="", returncode=0)
job_measures.subprocess = SimpleNamespace(run=answer)
folder = Path(sys.argv[1])
job = Run("cuda", False, folder, partial=folder / "trials.partial", kept=folder, limit_s=530.0)
target = folder / "gpu-trials.json"
for _ in range(3):
    try:
        found = job_measures.trials(job)
    except SystemExit as error:
        found = str(error)
    run._replace(target, json.loads((folder / "document-gpu-trials.json").read_text()))
    print(json.dumps([found, json.loads(target.read_text())["settings"]]))
print(gpu_trials.render(json.loads(target.read_text())))
"""


@pytest.mark.slow
def test_the_matrix_on_a_gpu_goes_on_where_its_time_ended(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", STUB, str(tmp_path)], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    first, second, third, *page = run.stdout.splitlines()
    found, settings = json.loads(first)
    assert found.startswith("2 cells have no result yet (they did not fit into the time)") and settings == {"dropped": 2}
    rows, settings = json.loads(second)
    assert [row["load"] for row in rows] == [1, 4, 8] and settings == {"dropped": 0}
    assert json.loads(third)[1] == {"dropped": 0}, "a whole matrix is not replaced by a part of one"
    assert "| headrace |" in "\n".join(page) and "2 cells" not in "\n".join(page)
    assert len(json.loads((tmp_path / "trials.partial").read_text(encoding="utf-8"))) == 1


@pytest.mark.slow
def test_a_dry_run_of_trials_renders_its_page_and_keeps_its_cells(tmp_path: Path, image_folder: object) -> None:
    images = image_folder(classes=1, per_class=8)  # type: ignore[operator]
    for _ in range(2):
        run = subprocess.run(
            command(tmp_path / "out", images, "--only", "trials", "--resume"), capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
    cells = list((tmp_path / "out" / "trials-dali" / "cells").glob("*headrace*.json"))
    document = json.loads((tmp_path / "out" / "document-gpu-trials.json").read_text(encoding="utf-8"))
    assert len(cells) == 1 and [row["loader"] for row in document["experiments"]["dali"]["rows"]] == ["headrace"]
    assert "- dali" not in (tmp_path / "out" / "awaits_gpu.md").read_text(encoding="utf-8")
