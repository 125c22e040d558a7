"""A misspelt option or path is answered with the one that is meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.system.files.near_paths import near_path_hint


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train", "--modle", "resnet18"], "did you mean --model?"),
        (["train", "--num-workers", "4"], "did you mean --threads?"),
        (["train", "--model", "resnet18", "num_workers=4"], "did you mean --threads 4?"),
        (["train", "--model", "resnet18", "batch_size=8"], "did you mean --batch-size 8?"),
        (["train", "--lr=0.1"], "did you mean --learning-rate?"),
        (["pack", "a", "b", "--num_workers=3"], "did you mean --workers?"),
        (["export", "run", "--formt", "onnx"], "did you mean --format?"),
        (["diagnose", "--verfy", "--", "python", "train.py"], "did you mean --verify?"),
        (["train", "--model", "resnet18", "-b", "64"], "did you mean --batch-size?"),
        (["pack", "a", "b", "-j", "8"], "did you mean --workers?"),
        (["inspect", "a", "--xyzzy"], "headrace inspect -h shows the options and an example"),
    ],
)
def test_a_misspelt_option_names_the_one_that_is_meant(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert f"hint: {hint}\n" in printed and "unrecognized arguments" in printed


@pytest.mark.parametrize(
    ("verb", "meant"),
    [
        ("profile", "diagnose"),
        ("fit", "train"),
        ("test", "evaluate"),
        ("inference", "predict"),
        ("convert", "pack"),
        ("info", "inspect"),
    ],
)
def test_a_verb_of_another_tool_names_ours(verb: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--x"]) == 2
    assert f"hint: did you mean `headrace {meant}`?\n" in capsys.readouterr().err


def test_words_of_the_users_command_are_not_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--", "no-such-program", "--modle", "x"]) != 0
    assert "--modle" not in capsys.readouterr().err


def test_a_wrong_path_names_a_near_one(
    image_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = image_folder(name="photos")
    assert main(["inspect", str(tmp_path / "fotos")]) == 1
    assert f"hint: did you mean {root}?\n" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "nothing_like_it")]) == 1
    assert "hint: check the path" in capsys.readouterr().err


def test_a_path_is_not_suggested_in_place_of_itself(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").symlink_to("missing")
    assert near_path_hint(tmp_path / "weights.pt", "-") == "-"


def test_a_near_path_keeps_the_rest_where_it_exists(tmp_path: Path) -> None:
    (tmp_path / "ImageNet" / "train").mkdir(parents=True)
    assert near_path_hint(tmp_path / "imagenet" / "train", "-") == f"did you mean {tmp_path / 'ImageNet' / 'train'}?"
    assert near_path_hint(tmp_path / "imagenet" / "val", "-") == f"did you mean {tmp_path / 'ImageNet'}?"
    assert near_path_hint(tmp_path / "ImageNet" / "trian" / "x.jpg", "-") == f"did you mean {tmp_path / 'ImageNet' / 'train'}?"
    assert near_path_hint("", "-") == "-"
