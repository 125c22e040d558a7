"""The line on a loader with lazy images says what its items have shown, in the process of the script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.accelerate.lazy.awaited_line import AwaitedLine
from headrace.accelerate.lazy.native_work import work_words
from headrace.accelerate.lazy.trial import Trial, TrialState
from headrace.attach.record import log

WORDS = {
    "": (),
    "the decode of JPEGs that Pillow opens": ("Pillow",),
    "the decode and resize of JPEGs that Pillow opens": ("Pillow", "resize"),
    "the decode, crop and resize of JPEGs that Pillow opens": ("Pillow", "crop", "resize"),
    "the decode of JPEGs that OpenCV reads": ("OpenCV",),
    "the decode and crop of JPEGs that Pillow opens, and the decode of JPEGs that torchvision.io reads": (
        *("Pillow", "crop", "torchvision.io"),
    ),
}


@pytest.mark.parametrize("words", WORDS)
def test_the_words_claim_what_was_native(words: str) -> None:
    assert work_words(WORDS[words]) == words


def awaited(trial: Trial) -> tuple[AwaitedLine, list[tuple[str, str]]]:
    said: list[tuple[str, str]] = []
    return AwaitedLine(trial, lambda native: said.append(("native", native)), lambda why: said.append(("left", why))), said


def test_the_line_waits_until_the_items_have_told() -> None:
    trial = Trial(2)
    line, said = awaited(trial)
    assert line.look(False) and not said  # no batch yet
    trial.note(["Pillow"])
    assert line.look(False) and not said  # not decided yet
    trial.give_up(TrialState.LAZY)
    assert not line.look(False)
    assert said == [("native", "the decode of JPEGs that Pillow opens")]


def test_the_end_of_a_pass_must_do() -> None:
    trial = Trial(0)
    line, said = awaited(trial)
    assert line.look(True) and said == [("left", "its items have opened no JPEG with Pillow, OpenCV or torchvision.io")]
    trial.note(["OpenCV"])
    assert line.look(True) and said[1:] == [("native", "the decode of JPEGs that OpenCV reads")]


@pytest.mark.parametrize(("state", "words"), [(TrialState.NO_JPEG, "open no JPEG"), (TrialState.NOT_FASTER, "CPU time here")])
def test_nothing_is_claimed_where_nothing_is_native(state: TrialState, words: str) -> None:
    trial = Trial(1)
    trial.note(["Pillow", "resize"])
    trial.give_up(state)
    line, said = awaited(trial)
    assert not line.look(False)
    assert [kind for kind, _ in said] == ["left"] and words in said[0][1]


def test_the_script_prints_the_lines_of_its_workers(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    trial = Trial(1)
    child = os.fork()
    if not child:
        log.print_by(trial.hand_over)
        log.log_line("headrace run: an image came out different")
        log.log_line("x" * 5000)
        os._exit(0)
    os.waitpid(child, 0)
    assert capfd.readouterr() == ("", "")
    line, _ = awaited(trial)
    line.look(False)
    first, second = capfd.readouterr().err.splitlines()
    assert first == "headrace run: an image came out different" and set(second) == {"x"}
    line.look(False)
    assert capfd.readouterr() == ("", "")


SCRIPT = """
import glob, sys
import numpy as np, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

class Own(Dataset):
    def __init__(self):
        self.paths = sorted(glob.glob(sys.argv[1] + "/*/*.jpg")) * 4
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        if sys.argv[2] == "none":
            return torch.rand(3)
        image = Image.open(self.paths[index]).convert("RGB")
        if sys.argv[2] == "resize":
            image = image.resize((64, 64))
        return torch.from_numpy(np.array(image)[:32, :32].copy())

for _ in range(2):
    for batch in DataLoader(Own(), 8, num_workers=int(sys.argv[3])):
        pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("none", "not taken over"),
        ("array", "in part: the decode of JPEGs that Pillow opens is native"),
        ("resize", "in part: the decode and resize of JPEGs that Pillow opens are native"),
    ],
)
def test_one_line_a_loader_claims_what_its_items_did(tmp_path: Path, folder: Path, how: str, words: str, workers: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "headrace", "run", "--", sys.executable, "script.py", str(folder), how, workers]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    lines = [line for line in done.stderr.splitlines() if "loader over" in line]
    assert done.returncode == 0 and len(lines) == 1, done.stderr
    assert words in lines[0] or "CPU time here (measured: " in lines[0]  # small images may not gain
