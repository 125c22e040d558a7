"""Every file of examples/ runs, in small. Those with frameworks run where these are installed: `make test-frameworks`."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace
import pytest
from PIL import Image
from real_stores import missing, running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--epochs", "2", "--batch-size", "4", "--image-size", "32"]
TESTS = Path(__file__).resolve().parent.parent
LIMIT_S = 280  # importing a framework takes most of it on a busy machine
pytestmark = pytest.mark.timeout(300)


def absent(*names: str) -> bool:
    """Whether a package is not installed. (Not importorskip: tests/accelerate passes for the bare name `accelerate`.)"""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(name) is not None:
                continue
        return True
    return False


def needs(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(absent(*names), reason=f"not installed: {', '.join(names)}; make test-frameworks has it")


@pytest.fixture
def photos(image_folder: Callable[..., Path]) -> Path:
    return image_folder(classes=3, per_class=4, name="photos")  # three batches of four an epoch


def run(name: str, *words: object, launcher: list[str] | None = None, **environment: str) -> str:
    """Run an example as a user would, and return what it printed."""
    command = [sys.executable, *(launcher or []), str(EXAMPLES / name), *map(str, words)]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg"} | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=settings, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_list_of_examples_is_complete() -> None:
    listed = re.findall(r"^\| \[([\w.]+)\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert all(name == target for name, target in listed)
    assert sorted(name for name, _ in listed) == sorted(
        path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb", ".Dockerfile")
    )
    tested = "".join(file.read_text(encoding="utf-8") for file in (Path(__file__), TESTS / "launch/test_entry.py"))
    assert all(f'"{name}"' in tested for name, _ in listed)


@pytest.mark.slow
def test_own_loop_continues_after_a_stop(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    words = ["--data", photos, "--checkpoint", tmp_path / "last.pt", "--checkpoint-steps", 1, *SMALL]
    first = run("own_loop.py", *words)
    assert "epoch 2 of 2 done" in first and "6 batches" in first and "continues" not in first
    words[words.index("2")] = "3"
    second = run("own_loop.py", *words)
    assert "continues at step 6, epoch 2" in second and "epoch 3 of 3 done" in second and "3 batches" in second


@pytest.mark.slow
def test_ddp_shares_the_records_between_ranks(photos: Path) -> None:
    pytest.importorskip("torchvision")
    launcher = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    printed = run("ddp.py", "--data", photos, "--epochs", 1, "--batch-size", 3, "--image-size", 32, launcher=launcher)
    assert "epoch 0: 12 images on 2 ranks" in printed


@needs("lightning", "torchvision")
def test_lightning(photos: Path, tmp_path: Path) -> None:
    assert "6 steps" in run("lightning_fit.py", "--data", photos, *SMALL)


@needs("accelerate.utils", "torchvision")
def test_accelerate(photos: Path) -> None:
    assert "epoch 1: loss" in run("accelerate_loop.py", "--data", photos, *SMALL, ACCELERATE_USE_CPU="true")


@needs("transformers", "accelerate.utils")
def test_hugging_face_trainer(photos: Path, tmp_path: Path) -> None:
    assert "6 steps" in run("huggingface_trainer.py", "--data", photos, "--out", tmp_path / "out", "--layers", 1, *SMALL)


@needs("tensorflow", "keras")
def test_keras(photos: Path) -> None:
    printed = run("keras_tfdata.py", "--data", photos, *SMALL, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="2")
    assert "2 epochs" in printed and "6 batches" in printed


def test_segmentation_trains_on_masks(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    pytest.importorskip("matplotlib")
    for path in sorted(photos.rglob("*.jpg")):
        target = tmp_path / "masks" / path.relative_to(photos).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.convert("L").point([value // 86 for value in range(256)]).save(target)  # three classes by brightness
    picture = tmp_path / "batch.png"
    words = ["--masks", tmp_path / "masks", "--classes", 3, "--picture", picture]
    printed = run("segmentation.py", "--data", photos, *words, *SMALL[:-1], 64)
    right = re.search(r"epoch 1: loss [\d.]+, ([\d.]+) % of the pixels right", printed)
    assert right and 0 < float(right[1]) <= 100
    with Image.open(picture) as drawn:
        assert drawn.width > drawn.height > 100


@pytest.mark.slow
def test_object_store_packs_and_streams(photos: Path, tmp_path: Path) -> None:
    if reason := missing("moto"):
        pytest.skip(reason)
    pytest.importorskip("torch")
    with running("moto") as store:
        store.upload("bucket", "", [])
        words = ["--url", "s3://bucket/photos", "--cache", tmp_path / "cache", *SMALL]
        printed = run("object_store.py", "--folder", photos, *words, **store.environment())
        assert "packed 12 records" in printed and printed.count("12 images of 12") == 2 and "blocks:" in printed
        again = run("object_store.py", *words, **store.environment())
        assert "packed" not in again.partition("\n")[0] and again.count("12 images of 12") == 2


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Jupyter kernel of this Python. Jupyter keeps all of its files below tmp_path."""
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    for name in ("JUPYTER_PATH", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0)):
        yield
        return
    pytest.skip("no loopback network, which Jupyter's kernels need")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Jupyter's packages warn of their own dependencies
@needs("nbclient", "ipykernel", "matplotlib", "torchvision")
def test_the_notebook_runs_and_shows_pictures(photos: Path, kernel: None) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    source = "\n".join(cell.source for cell in notebook.cells).replace("batch_size=16", "batch_size=4")
    assert "batch_size=4" in source
    for cell in notebook.cells:
        cell.source = cell.source.replace("batch_size=16", "batch_size=4").replace("count=8", "count=4")
    NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(photos.parent)}}).execute()
    shown: list[dict[str, Any]] = [
        output["data"] for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs if "data" in output
    ]
    html = [data["text/html"] for data in shown if "text/html" in data]
    assert len(html) == 1 and html[0].count("<img ") == 8 and "3: &#x27;class_0&#x27;" in html[0]
    figures = [data for data in shown if "<Figure" in data.get("text/plain", "")]
    assert len(figures) == 1 and "image/png" in figures[0]  # once, not twice
    assert any(data["text/plain"].startswith("3 batches, 12 images") for data in shown)


@pytest.mark.slow
@pytest.mark.timeout(900)  # eight processes import torch
@pytest.mark.filterwarnings("ignore")
@needs("nbclient", "ipykernel", "torchvision", "botocore")
def test_the_notebook_of_an_estimator_runs_its_script_plain_and_under_headrace(
    tmp_path: Path, kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("SAGEMAKER_ROLE", raising=False)
    notebook = nbformat.read(EXAMPLES / "sagemaker.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("COUNT, SIZE = 240, (1024, 768)", "COUNT, SIZE = 24, (320, 240)")
    assert "COUNT, SIZE = 24" in "\n".join(cell.source for cell in notebook.cells)
    work = tmp_path / "work"
    work.mkdir()
    NotebookClient(notebook, timeout=800, resources={"metadata": {"path": str(work)}}).execute()
    printed = "\n".join(
        output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    )
    assert printed.count("epoch 2: ") == 2 and "taken over: decode, RandomResizedCrop" in printed
    losses = re.search(r"the last loss: ([\d.]+) plain, ([\d.]+) under headrace run", printed)
    assert losses and losses[1] == losses[2]
    assert "the request is valid; nothing was sent" in printed


def test_the_notebook_of_an_estimator_holds_what_it_printed_and_no_place_of_its_machine() -> None:
    text = (EXAMPLES / "sagemaker.ipynb").read_text(encoding="utf-8")
    assert "taken over: decode" in text and "under headrace run (measured here)" in text
    assert not re.search(r"/(?:root|home|tmp|work|Users)/", text)


def test_the_notebook_in_the_repository_holds_the_picture_of_a_batch() -> None:
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert (EXAMPLES / "notebook.ipynb").stat().st_size < 400_000
    assert headrace.show_batch.__name__ in str(notebook["cells"])
