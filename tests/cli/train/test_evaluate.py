"""headrace evaluate gives the scores of the training's own evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace.cli.main import main
from PIL import Image
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, float]:
    """(folder of a finished run, its validation data, the top-1 accuracy that the training reported)."""
    root = tmp_path_factory.mktemp("trained")
    random_source = np.random.default_rng(0)
    for part, per_class in (("train", 16), ("val", 11)):
        for name, colour in {"blue": (90, 100, 150), "red": (140, 100, 95)}.items():
            (root / part / name).mkdir(parents=True)
            for index in range(per_class):
                pixels = np.clip(np.array(colour) + random_source.normal(0, 90, (36, 36, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{index}.jpg")
    words = ["train", "--model", "resnet20", "--data", str(root), "--out", str(root / "run"), "--epochs", "3"]
    words += ["--batch-size", "8", "--image-size", "32", "--device", "cpu", "--threads", "1"]
    assert main(words) == 0
    lines = [json.loads(line) for line in (root / "run" / "metrics.jsonl").read_text().splitlines()]
    return root / "run", root / "val", [line["evaluation"] for line in lines if "evaluation" in line][-1]["top1"]


def test_evaluate_gives_the_accuracy_of_training(trained: tuple[Path, Path, float], capsys) -> None:
    run, val, top1 = trained
    words = ["evaluate", str(run / "final.safetensors"), "--data", str(val), "--device", "cpu"]
    assert main([*words, "--json", "--batch-size", "5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["top1"] == pytest.approx(top1)
    assert (document["images"], document["top5"], document["model"]) == (22, None, "resnet20")
    assert main(words) == 0
    assert f"top-1 {100 * top1:.2f} %" in capsys.readouterr().out


def test_unfit_weights_and_data_are_refused_with_a_hint(trained: tuple[Path, Path, float], tmp_path: Path, capsys) -> None:
    run, val, _ = trained
    good = str(run / "final.safetensors")
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(1)}, foreign)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(Path(good).read_bytes()[:1000])
    for name in ("one", "two", "three"):
        (tmp_path / "other" / name).mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(tmp_path / "other" / name / "a.jpg")
    cases = [
        ([str(tmp_path / "absent"), "--data", str(val)], 1, "cannot read weights"),
        ([str(cut), "--data", str(val)], 1, "cannot read weights"),
        ([str(foreign), "--data", str(val)], 1, "not written by headrace train"),
        ([good, "--data", str(tmp_path / "other")], 1, "has classes that the training data lacks: one, three, two"),
        ([good, "--data", str(val), "--device", "sim:a100"], 2, "simulated"),
    ]
    for words, code, message in cases:
        assert main(["evaluate", *words]) == code
        printed = capsys.readouterr().err
        assert message in printed and "hint: " in printed
