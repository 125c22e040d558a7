"""Arguments of the wrong type are refused when they are given, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace.cli.main import main
from headrace.errors import UsageError


@pytest.mark.parametrize("wrong", [{"seed": "a"}, {"seed": 1.5}, {"batch_size": "8"}, {"threads": True}, {"prefetch": 2.0}])
def test_loader_names_the_argument_and_an_example(image_folder: Callable[..., Path], wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"{name} must be a whole number") as caught:
        headrace.Loader(image_folder(), **{"batch_size": 2, **wrong})  # type: ignore[arg-type]
    assert f"{name}=" in (caught.value.hint or "")


@pytest.mark.parametrize("size", ["big", None, 2.5, (1, 2, 3), ("a", "b"), 0])
def test_resize_names_its_size(size: object) -> None:
    with pytest.raises(UsageError, match="Resize: size must be") as caught:
        headrace.transforms.Resize(size)  # type: ignore[arg-type]
    assert "Resize(224)" in (caught.value.hint or "")


def test_a_second_pack_says_that_nothing_was_left(
    image_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pack", str(image_folder()), str(tmp_path / "out")]
    assert main(words) == 0
    assert "already complete" not in capsys.readouterr().out
    assert main(words) == 0
    assert "already complete" in capsys.readouterr().out
