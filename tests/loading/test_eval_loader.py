"""Evaluation is not training: each record once, and a loader that trains on an evaluation's transform says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import headrace
import pytest
from headrace.errors import UsageError
from headrace.loading.order import evaluation_note
from headrace.transforms import CenterCrop, Compose, RandomHorizontalFlip, Resize
from sample_images import jpeg

EVALUATION = Compose([Resize(24), CenterCrop(24)])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """13 images of two classes."""
    root = tmp_path_factory.mktemp("evaluation") / "images"
    for number in range(13):
        path = root / f"class_{number % 2}" / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(40, 32, number))
    return root


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(evaluation_note, "_said", [])
    yield


def test_each_record_comes_once_in_order(root: Path) -> None:
    with headrace.eval_loader(root, 5, EVALUATION) as loader:
        labels = [label for _, batch in loader for label in batch.tolist()]
        assert labels == headrace.open(root).targets
        assert "note:" not in loader.explain()


@pytest.mark.parametrize(("output", "shape"), [("torch", "[5, 3, 24, 24], channels-last"), ("numpy", "[5, 24, 24, 3]")])
def test_explain_names_the_shape_that_a_batch_has(root: Path, output: str, shape: str) -> None:
    with headrace.eval_loader(root, 5, EVALUATION, output=output) as loader:
        assert f"batch: uint8 {shape}, " in loader.explain()
        assert str(list(next(iter(loader))[0].shape)) in shape


def test_records_that_fill_up_a_rank_are_marked(root: Path) -> None:
    seen = []
    for rank in range(4):
        with headrace.eval_loader(root, 2, EVALUATION, rank=rank, world_size=4) as loader:
            seen.append([label for _, batch in loader for label in batch.tolist()])
    assert len({len(labels) for labels in seen}) == 1
    joined = [label for labels in seen for label in labels]
    assert sorted(label for label in joined if label >= 0) == sorted(headrace.open(root).targets)
    assert joined.count(-100) == len(joined) - 13 == 3


@pytest.mark.parametrize("wrong", ["shuffle", "drop_last", "train"])
def test_what_an_evaluation_decides_by_itself_is_refused(root: Path, wrong: str) -> None:
    with pytest.raises(UsageError, match=f"eval_loader takes no argument '{wrong}'") as caught:
        headrace.eval_loader(root, 2, EVALUATION, **{wrong: False})
    assert (caught.value.hint or "").startswith("leave it out: ")


def test_a_loader_that_shuffles_or_drops_with_a_fixed_transform_says_so_once(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with headrace.Loader(root, 5, EVALUATION) as loader:
            assert "note: no transform draws at random, and the loader shuffles the records and drops the last 3 of 13" in (
                loader.explain()
            )
            list(loader)
    assert capsys.readouterr().err.count("headrace.eval_loader") == 1
    with headrace.Loader(root, 5, EVALUATION, shuffle=False) as loader:
        assert "and the loader drops the last 3 of 13 in each epoch: to evaluate" in loader.explain()


def test_a_random_transform_or_a_function_says_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for transform in (Compose([Resize((24, 24)), RandomHorizontalFlip()]), Compose([Resize((24, 24)), lambda image: image])):
        with headrace.Loader(root, 5, transform) as loader:
            assert "note:" not in loader.explain()
            list(loader)
    assert capsys.readouterr().err == ""
