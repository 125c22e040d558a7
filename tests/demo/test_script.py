"""The plain training script trains, writes its measurements, and does not know this package."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchvision")
import headrace.demo
from PIL import Image

SCRIPT = Path(headrace.demo.__file__).with_name("script.py")


def test_the_script_is_plain_torchvision() -> None:
    text = SCRIPT.read_text()
    assert "headrace" not in text
    for word in ("ImageFolder", "RandomResizedCrop(224)", "RandomHorizontalFlip", "ToTensor", "Normalize", "resnet18"):
        assert word in text, word


@pytest.mark.slow
def test_the_script_trains_and_writes_its_measurements(tmp_path: Path) -> None:
    for index in range(8):
        (tmp_path / "data" / f"class{index % 2}").mkdir(parents=True, exist_ok=True)
        image = Image.effect_noise((260, 240), 60).convert("RGB")
        image.save(tmp_path / "data" / f"class{index % 2}" / f"{index}.jpg")
    command = [sys.executable, str(SCRIPT), "--data", str(tmp_path / "data"), "--images", "12", "--batch-size", "4"]
    command += ["--workers", "1", "--device", "sim:a100", "--log", str(tmp_path / "log.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert all(line.startswith("simulated A100: ") for line in done.stdout.splitlines())
    facts = json.loads((tmp_path / "log.json").read_text())
    assert (facts["images"], facts["steps"]) == (12, 13)
    assert facts["batches"] == [[[4, 3, 224, 224], "torch.float32", [4], "torch.int64"]]
    assert facts["losses"] and all(math.isfinite(loss) for loss in facts["losses"])
    assert 0 < facts["img_s"] < 2470
