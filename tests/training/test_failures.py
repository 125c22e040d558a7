"""Failures are reported early and by name: losses that are not finite, and unfit models, data, disks and checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fragile
import numpy as np
import pytest
import torch
from headrace.cli.main import main
from headrace.errors import HeadraceError, SourceError, StateError, UsageError
from headrace.training import loop as trainer
from headrace.training import preflight
from headrace.training.loop import Options, train
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.weights import checkpoint
from noise import noise_folder
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_folder(tmp_path_factory.mktemp("bad-runs"))


@pytest.fixture
def options(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Options]:
    monkeypatch.setattr(fragile, "BAD_BATCHES", set())
    monkeypatch.setattr(fragile, "PASSES", [0])
    yield Options(
        model="fragile:bad_batches",
        data=str(data),
        out=str(tmp_path / "run"),
        epochs=3,
        batch_size=8,
        image_size=16,
        device="cpu",
        threads=1,
        optimization=OptimizationOptions(learning_rate=0.5, warmup_epochs=0),
    )


def lines(options: Options) -> list[dict[str, object]]:
    return [json.loads(line) for line in (Path(options.out) / "metrics.jsonl").read_text().splitlines()]


def test_the_first_bad_loss_ends_the_run_and_names_its_batch(options: Options, data: Path) -> None:
    fragile.BAD_BATCHES.add(7)  # the third batch of the second epoch; noticed at the end, 12 steps are fewer than LOG_STEPS
    with pytest.raises(HeadraceError, match=r"the loss is nan at step 7 \(epoch 1\); its batch: .*jpg and 5 more") as caught:
        train(options)
    assert "Nothing was saved before" in str(caught.value)
    reported = [line for line in lines(options) if "not_finite" in line]
    assert [(line["step"], line["epoch"], line["not_finite"], line["loss"]) for line in reported] == [(7, 1, "nan", None)]
    records = reported[0]["records"]
    assert isinstance(records, list) and len(set(records)) == 8
    again = trainer.prepare(replace(options, out=options.out + "-again"), lambda progress: None)
    with again.loader as loader:
        loader.set_epoch(1)
        labels = [labels.tolist() for _, labels in loader][2]
    assert again.lock is not None
    again.lock.close()
    assert [int(name[len("class")]) for name in records] == labels  # it is that batch, in its order


def test_no_checkpoint_is_saved_after_a_bad_loss(options: Options) -> None:
    fragile.BAD_BATCHES.add(6)
    with pytest.raises(HeadraceError, match=r"at step 6 .*The last good checkpoint is .*step-000000004"):
        train(replace(options, checkpoint_steps=4))
    assert [path.name for path in checkpoint.candidates(Path(options.out) / "checkpoints")] == ["step-000000004"]
    fragile.BAD_BATCHES.clear()
    assert train(replace(options, checkpoint_steps=4, resume="auto", nan_steps=1)).resumed_from_step == 4


def test_nan_steps_skips_bad_updates_and_their_statistics(options: Options) -> None:
    fragile.BAD_BATCHES.update({2, 5})
    reported: list[str] = []
    optimization = OptimizationOptions(learning_rate=0.5, warmup_epochs=0, momentum=0.9, weight_decay=0.1)
    passing = replace(options, nan_steps=2, steps=5, optimization=optimization)
    result = train(passing, on_progress=lambda seen: reported.append(seen.remark or "") or None)
    assert result.exit_code == 0 and all(np.isfinite(result.losses))
    assert [line.partition(";")[0] for line in reported if line] == [
        "warning: the loss is nan at step 2 (epoch 0)",
        "warning: the loss is nan at step 5 (epoch 1)",
    ]
    weights = load_file(Path(options.out) / "final.safetensors")
    assert all(value.isfinite().all() for value in weights.values() if value.is_floating_point())

    # the last update was left out: the weights, and the statistics of batch normalisation, are those of the step before
    fragile.PASSES[0] = 0
    before = replace(passing, out=options.out + "-before", checkpoint_steps=4)
    train(before)
    tensors = checkpoint.load(Path(before.out) / "checkpoints/step-000000004").tensors
    assert torch.equal(weights["head.weight"], tensors["model.head.weight"])
    assert torch.equal(weights["body.1.running_mean"], tensors["model.body.1.running_mean"])

    fragile.PASSES[0] = 0
    with pytest.raises(HeadraceError, match=r"at step 5 .*Skipped before: 1 bad step"):
        train(replace(passing, nan_steps=1, out=options.out + "-too-many"))


def test_nan_steps_changes_no_bits_when_all_losses_are_finite(options: Options) -> None:
    finals = []
    for allowed in (0, 5):
        out = f"{options.out}-{allowed}"
        train(replace(options, nan_steps=allowed, out=out, deterministic=True))
        finals.append((Path(out) / "final.safetensors").read_bytes())
    torch.use_deterministic_algorithms(False)
    assert finals[0] == finals[1]


def test_weights_that_are_not_finite_are_not_saved(options: Options) -> None:
    run = trainer.prepare(options, lambda progress: None)
    with torch.no_grad():
        run.learner.model.head.weight[0, 0] = float("inf")  # as an update by a gradient that is not finite does
    run.step = 1
    with run.loader, pytest.raises(HeadraceError, match=r"the weights head\.weight are not finite after step 1: .*not saved"):
        trainer.save(run)
    assert run.lock is not None
    run.lock.close()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "fragile:too_many_classes"}, UsageError, r"returns \(1, 3\) for one image, not \(1, 2\)"),
        ({"model": "fragile:wants_large_images"}, UsageError, "cannot take an image of 16 pixels: .*[Kk]ernel size"),
        ({"model": "fragile:hungry"}, HeadraceError, r"a batch of 8 does not fit into the memory of CPU at step 1"),
        ({"nan_steps": -1}, UsageError, "--nan-steps must be 0 or more"),
        ({"sync_batch_norm": True}, UsageError, "on GPUs only"),
    ],
)
def test_unfit_models_and_options_raise(options: Options, changes, error, words: str) -> None:
    with pytest.raises(error, match=words):
        train(replace(options, **changes))


def test_validation_data_without_images_raises_before_anything_is_written(options: Options, tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    with pytest.raises(SourceError, match=str(tmp_path / "val")):
        train(replace(options, val=str(tmp_path / "val")))
    for name in ("class0", "class1"):
        (tmp_path / "val" / name).mkdir()
    with pytest.raises(SourceError, match=str(tmp_path / "val")):
        train(replace(options, val=str(tmp_path / "val")))
    assert not Path(options.out).exists()


def test_too_little_disk_space_raises_before_training(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    with pytest.raises(HeadraceError, match=r"run has 0 MB free; checkpoints of 0 MB need") as caught:
        train(options)
    assert "--keep" in (caught.value.hint or "")
    assert fragile.PASSES == [0]


def test_the_space_check_estimates_the_size_of_checkpoints(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    train(replace(options, keep=1))
    (found,) = (Path(options.out) / "checkpoints").iterdir()
    size = (found / checkpoint.TENSORS).stat().st_size
    usage = namedtuple("usage", "total used free")
    for free, enough in ((3 * size, True), (size, False)):
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path, free=free: usage(10**9, 10**9, free))
        again = replace(options, keep=1, out=f"{options.out}-{free}")
        if enough:
            train(again)
        else:
            with pytest.raises(HeadraceError, match="MB free"):
                train(again)


def test_resuming_from_something_that_is_no_checkpoint_raises(options: Options, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("weights")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, words in ((text, "cannot read checkpoint"), (empty, "cannot read checkpoint")):
        with pytest.raises(StateError, match=words):
            train(replace(options, resume=str(path)))
    if os.geteuid():  # root may read everything
        saved = checkpoint.save(tmp_path / "run", 1, {"a": torch.zeros(1)}, {})
        (saved / checkpoint.STATE).chmod(0)
        with pytest.raises(StateError, match="Permission denied"):
            train(replace(options, resume="auto"))


def test_resuming_with_other_data_raises(options: Options, data: Path, tmp_path: Path) -> None:
    train(replace(options, steps=2))
    three = tmp_path / "three"
    shutil.copytree(data, three)
    shutil.copytree(data / "class0", three / "class2")
    with pytest.raises(StateError, match="its classes is 2, here it is 3"):
        train(replace(options, data=str(three), steps=2, resume="auto"))
    shutil.copytree(data, tmp_path / "fewer")
    (tmp_path / "fewer/class0/0.jpg").unlink()
    with pytest.raises(StateError, match="dataset"):
        train(replace(options, data=str(tmp_path / "fewer"), steps=2, resume="auto"))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--model", "resnet51"], 2),
        (["--device", "cuda:99"], 2),
        (["--data", "/no/such/folder"], 1),
        (["--resume", "/no/such/checkpoint"], 1),
        (["--model", "fragile:too_many_classes"], 2),
        (["--sync-batch-norm"], 2),
    ],
)
def test_wrong_options_give_exit_code_and_json_error(options: Options, words: list[str], code: int, capsys) -> None:
    given = ["--model", options.model, "--data", options.data, "--out", options.out, "--image-size", "16", "--device", "cpu"]
    assert main(["train", *given, "--batch-size", "8", "--json", *words]) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]
    assert "\nerror: " in f"\n{captured.err}" and "Traceback" not in captured.err
