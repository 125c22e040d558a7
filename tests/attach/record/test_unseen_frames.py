"""Tracebacks and warnings of a watched or accelerated script name the script's and its libraries' frames only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PART = """
import warnings
warnings.warn("an old module", DeprecationWarning, stacklevel=2)
def fail():
    raise RuntimeError("at import")
fail()
"""

SCRIPT = """
import traceback
try:
    import part
except RuntimeError:
    traceback.print_exc()
try:
    import absent_part
except ImportError:
    traceback.print_exc()
import torch
from torch.utils.data import DataLoader, Dataset
from PIL import Image

class Pictures(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        with Image.open("picture.jpg") as image:
            pixel = image.convert("RGB").resize((8, 8)).getpixel((0, 0))
        if index == 5:
            raise KeyError("five")
        if index == 7:
            Image.open("absent.jpg")
        return pixel[0]

def broken_collate(batch):
    raise ZeroDivisionError("in the collate function")

def pairs(workers, collate=None):
    batches = iter(DataLoader(Pictures(), 2, num_workers=workers, collate_fn=collate))
    for _ in range(4):
        try:
            print(next(batches))
        except Exception:
            traceback.print_exc()

if __name__ == "__main__":
    for workers in (0, 1):
        pairs(workers)
        pairs(workers, broken_collate)
    failing = (
        lambda: iter(DataLoader(Pictures(), 2, sampler=3)),
        lambda: iter(DataLoader(Pictures(), 2, num_workers=1, multiprocessing_context="spawn", collate_fn=lambda batch: batch)),
        lambda: torch.ones(2).item(),
        lambda: torch.ones(2).backward(),
        lambda: torch.ones(2).to("no device"),
        lambda: torch.save(1, "absent/file"),
    )
    for call in failing:
        try:
            call()
        except Exception:
            traceback.print_exc()
    import part
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the script, its module and its picture."""
    pillow = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("script")
    (root / "script.py").write_text(SCRIPT)
    (root / "part.py").write_text(PART)
    pillow.new("RGB", (32, 24), (200, 20, 3)).save(root / "picture.jpg")
    return root


def printed(folder: Path, *before: str) -> tuple[str, str]:
    command = [*before, sys.executable, "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    late = r"Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ .*\n(.*\n)*?AssertionError: can only .*\n"
    lines = re.sub(r"0x[0-9a-f]+", "0x…", re.sub(late, "", done.stderr)).splitlines()  # a forked child collected garbage
    own = re.split(r"^(?:headrace |The training raised )", done.stdout, maxsplit=1, flags=re.MULTILINE)[0]  # before the screen
    return own, "\n".join(line for line in lines if not line.startswith("headrace "))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run", "diagnose"])
def test_a_script_prints_the_tracebacks_and_warnings_that_it_prints_alone(folder: Path, verb: str, tmp_path: Path) -> None:
    options = ["--out", str(tmp_path / "session"), "--no-report"] if verb == "diagnose" else []
    plain = printed(folder)
    ours = printed(folder, sys.executable, "-m", "headrace", verb, *options, "--")
    assert "DeprecationWarning: an old module" in plain[1] and plain[1].count("Traceback") > 12
    assert ours == plain
