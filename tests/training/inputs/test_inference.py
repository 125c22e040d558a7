"""predict, evaluate and export with trained weights."""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace import pack
from headrace.cli.main import main
from headrace.cli.train.evaluate import _counted, _per_class
from headrace.errors import HeadraceError, StateError
from headrace.training.loop import Options, train
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.weights.evaluation import model_scores
from headrace.training.weights.export import FORMATS, export
from headrace.training.weights.trained_weights import load_model
from PIL import Image
from torch import nn

COLOURS = {"blue": (30, 40, 220), "green": (30, 220, 40), "red": (220, 40, 30)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that tells three colours apart; its data beside it."""
    root, random_source = tmp_path_factory.mktemp("inference"), np.random.default_rng(0)
    for part, count in (("train", 16), ("val", 5)):
        for name, colour in COLOURS.items():
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = np.clip(np.array(colour) + random_source.normal(0, 20, (36, 36, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{index}.png")
    optimization = OptimizationOptions(learning_rate=2.0, flip_test=True, test_scale=1.25, blurpool=True, average=0.9)
    options = Options("resnet20", str(root), str(root / "run"), epochs=6, batch_size=8, image_size=16, device="cpu", threads=1)
    torch.set_num_threads(1)
    assert train(replace(options, optimization=optimization)).scores.top1 > 0.9  # type: ignore[union-attr]
    return root


def test_predict_lists_a_broken_image_as_an_error_and_classifies_the_rest(trained: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in COLOURS:
        image = Image.open(trained / "val" / name / "0.png")
        image.save(tmp_path / "deep" / "er" / f"{name}.png")
    (tmp_path / "deep" / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "deep" / "notes.txt").write_text("no image either")
    words = ["predict", str(trained / "run"), str(tmp_path), "--top", "2", "--device", "cpu", "--batch-size", "3"]
    assert main([*words, "--json", "--write", str(tmp_path / "answers.csv")]) == 1
    document = json.loads(capsys.readouterr().out)
    found = {Path(one["image"]).stem: one for one in document["answers"]}
    assert (document["images"], document["failed"]) == (4, 1)
    assert found["broken"]["top"] == [] and found["broken"]["error"]
    for name in COLOURS:
        assert [found[name]["top"][0]["class"], len(found[name]["top"])] == [name, 2]
        assert 0.5 < found[name]["top"][0]["probability"] <= 1
    rows = list(csv.DictReader((tmp_path / "answers.csv").read_text().splitlines()))
    assert len(rows) == 7 and {row["rank"] for row in rows} == {"", "1", "2"}
    assert main([*words, "--write", str(tmp_path / "answers.jsonl")]) == 1
    message = capsys.readouterr().out
    assert f"images in {tmp_path}/deep/" in message
    assert re.search(r"^ *er/blue\.png +blue ", message, re.MULTILINE)
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 4


def test_predict_says_what_it_left_out(trained: Path, tmp_path: Path, capsys) -> None:
    Image.open(trained / "val" / "red" / "0.png").save(tmp_path / "red.png")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()  # is no image, and is searched
    (tmp_path / "folder.jpg" / "gone\x1b.png").symlink_to("nowhere")
    (tmp_path / "other.txt").symlink_to("nowhere")
    words = ["predict", str(trained / "run"), str(tmp_path), "--device", "cpu", "--json"]
    assert main(words) == 0
    written = capsys.readouterr()
    document = json.loads(written.out)
    assert [Path(one["image"]).name for one in document["answers"]] == ["red.png"]
    assert [(Path(one["image"]).name, one["reason"]) for one in document["left_out"]] == [
        ("gone\x1b.png", "a link to a file that does not exist"),
        ("pipe.jpg", "a named pipe, not a file"),
    ]
    assert any(line.startswith("2 paths left out: ") for line in document["warnings"])
    said = " ".join(written.err.split())
    assert "2 paths left out: " in said and "pipe.jpg (a named pipe, not a file)" in said and "\x1b.png" not in said
    for number in range(6):
        os.mkfifo(tmp_path / f"{number}.jpg")
    assert main(words) == 0
    assert "8 paths left out" in (said := " ".join(capsys.readouterr().err.split())) and "; 3 more" in said
    assert main([*words[:2], str(tmp_path / "pipe.jpg"), "--device", "cpu"]) == 1
    assert "a named pipe, not a file" in capsys.readouterr().err


def test_predict_warns_of_images_unlike_the_training_data_in_size(trained: Path, tmp_path: Path, capsys) -> None:
    """The model was trained on images of 36 pixels."""
    (folder,) = (trained / "run" / "checkpoints").iterdir()
    for side, words in ((10, "3.6 times smaller than the training images"), (144, "4.0 times larger"), (60, None)):
        (tmp_path / str(side)).mkdir()
        Image.new("RGB", (side, side + 5)).save(tmp_path / str(side) / "a.png")
        for weights in (trained / "run", folder):
            assert main(["predict", str(weights), str(tmp_path / str(side)), "--device", "cpu", "--json"]) == 0
            printed = capsys.readouterr()
            found = json.loads(printed.out)["warnings"]
            assert len(found) == (words is not None)
            assert words is None or (words in found[0] and f"warning: {found[0]}" in printed.err)


def test_predict_takes_packed_data_and_the_averaged_weights_of_a_checkpoint(trained: Path, tmp_path: Path, capsys) -> None:
    pack(trained / "val", tmp_path / "packed")
    (folder,) = (trained / "run" / "checkpoints").iterdir()
    words = ["predict", str(folder), str(tmp_path / "packed"), "--device", "cpu", "--json"]
    assert main(words) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert len(answers) == 15
    assert sum(one["top"][0]["class"] in one["image"] for one in answers) >= 13
    one, other = load_model(folder)[0].state_dict(), load_model(trained / "run")[0].state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)  # both are the averaged weights


def test_flip_averages_scores_with_those_of_the_mirror_image() -> None:
    class Left(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images[:, :2, 0, 0]

    images = torch.arange(24.0).reshape(1, 3, 2, 4)
    assert model_scores(Left(), images, flip=False).tolist() == [[0.0, 8.0]]
    assert model_scores(Left(), images, flip=True).tolist() == [[1.5, 9.5]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing/here"], "no such file"),
        (["--top", "0", "x.jpg"], "--top must be at least 1"),
        (["--write", "answers.xml", "x.jpg"], "ends in .jsonl or .csv"),
        (["--device", "sim:a100", "x.jpg"], "simulated"),
    ],
)
def test_predict_refuses_wrong_arguments(trained: Path, words: list[str], message: str, capsys) -> None:
    assert main(["predict", str(trained / "run"), *words]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.jit.load, in the test
@pytest.mark.parametrize("format", FORMATS)
def test_each_export_format_gives_the_models_scores(trained: Path, tmp_path: Path, format: str, capsys) -> None:
    if format == "onnx":
        pytest.importorskip("onnxscript")
    path = tmp_path / "sub" / "exported.bin"
    assert main(["export", str(trained / "run"), "--format", format, "--out", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["size_bytes"] == path.stat().st_size and document["difference"] < 1e-4
    assert [one.name for one in path.parent.iterdir()] == ["exported.bin"]
    if format == "torchscript":
        facts = {"headrace": ""}
        images = torch.randn(5, 3, 20, 20)
        torch.testing.assert_close(
            torch.jit.load(str(path), _extra_files=facts)(images), load_model(trained / "run")[0](images)
        )
        assert json.loads(facts["headrace"])["classes"] == list(COLOURS)


def test_onnx_export_without_its_packages_names_them(trained: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    assert main(["export", str(trained / "run"), "--format", "onnx", "--out", str(tmp_path / "a.onnx")]) == 1
    assert ".[export]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_export_with_different_scores_is_not_written(trained: Path, tmp_path: Path, monkeypatch) -> None:
    model, weights = load_model(trained / "run")

    def wrong(model: nn.Module, weights: object, path: Path, images: torch.Tensor, facts: object) -> object:
        path.write_bytes(b"exported")
        return lambda batch: model(batch) * 1.01

    monkeypatch.setitem(FORMATS, "torchscript", wrong)
    with pytest.raises(HeadraceError, match="differ from the model's by"):
        export(model, weights, tmp_path / "a.pt", "torchscript")
    assert not list(tmp_path.iterdir())
    out = str(trained / "run" / "final.safetensors")
    assert main(["export", str(trained / "run"), "--format", "safetensors", "--out", out]) == 2  # the file that is read


def test_evaluate_reports_classes_and_confusion(trained: Path, tmp_path: Path, capsys) -> None:
    words = ["evaluate", str(trained / "run"), "--data", str(trained / "val"), "--device", "cpu"]
    assert main([*words, "--json", "--confusion", str(tmp_path / "c.csv"), "--no-flip"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["class"] for one in document["per_class"]] == list(COLOURS)
    assert sum(one["images"] * one["top1"] for one in document["per_class"]) == pytest.approx(15 * document["top1"])
    rows = list(csv.reader((tmp_path / "c.csv").read_text().splitlines()))
    assert rows[0] == ["class", *COLOURS] and sum(int(count) for row in rows[1:] for count in row[1:]) == 15
    assert main([*words, "--per-class"]) == 0
    assert "mistaken for" in capsys.readouterr().out


def test_the_confusion_of_many_classes_takes_memory_for_the_images_only(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix of 100,000 classes has 80 GB: weights and data of one stranger ask for as many."""
    pairs = torch.tensor([[99_999, 3], [99_999, 3], [99_999, 2], [5, 5]])
    found = _per_class(tuple(map(str, range(100_000))), _counted(pairs))
    assert found[99_999] == {"class": "99999", "images": 3, "top1": 0.0, "mistaken_for": "3"}
    assert found[5] == {"class": "5", "images": 1, "top1": 1.0, "mistaken_for": None}
    assert found[6] == {"class": "6", "images": 0, "top1": None, "mistaken_for": None}
    monkeypatch.setattr("headrace.cli.train.evaluate.MOST_CLASSES", 2)
    words = ["evaluate", str(trained / "run"), "--data", str(trained / "val"), "--device", "cpu"]
    assert main([*words, "--confusion", str(tmp_path / "c.csv")]) == 2


def test_loading_a_folder_without_weights_raises(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no whole checkpoint"):
        load_model(tmp_path)
    assert replace(OptimizationOptions(), test_scale=2.0).test_size(16) == 32
