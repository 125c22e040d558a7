"""Presets and the options they set: each option's effect, its source, and exact resume with all of them."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace.errors import MissingDependencyError, StateError, UsageError
from headrace.training.loop import train
from headrace.training.models import factory
from headrace.training.models.blurpool import add_blurpool
from headrace.training.models.pretrained import classifier, load_pretrained
from headrace.training.settings.optimization import OPTIMIZERS, OptimizationOptions, learning_rate, make_optimizer
from headrace.training.settings.options import Options
from headrace.training.settings.presets import PRESETS
from headrace.training.settings.resolve_options import resolve_options, with_global_batch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

CLASSIC, FAST = PRESETS["classic"].optimization, PRESETS["fast"].optimization


def test_the_step_schedule_is_that_of_goyal_et_al() -> None:
    at = {
        epoch: learning_rate(epoch, peak=0.1, warmup_steps=5, total_steps=90, schedule="step") for epoch in (29, 30, 59, 60, 80)
    }
    assert at == pytest.approx({29: 0.1, 30: 0.01, 59: 0.01, 60: 0.001, 80: 0.0001})
    assert CLASSIC.schedule == "step" and CLASSIC.peak_rate(8192) == pytest.approx(3.2)  # the paper's kn = 8k


def test_the_linear_schedule_ends_at_zero() -> None:
    rates = [learning_rate(step, peak=1.7, warmup_steps=2, total_steps=12, schedule="linear") for step in (2, 7, 12)]
    assert rates == pytest.approx([1.7, 0.85, 0.0])
    assert FAST.peak_rate(4096) == pytest.approx(1.7)  # FFCV's


def test_each_optimizer_has_its_default_rate_and_growth() -> None:
    assert OptimizationOptions(optimizer="adamw").peak_rate(4096) == pytest.approx(4e-3)  # ConvNeXt
    assert OptimizationOptions(optimizer="lamb").peak_rate(2048) == pytest.approx(5e-3)  # ResNet strikes back, A1
    assert OptimizationOptions(optimizer="lars").peak_rate(3200) == pytest.approx(11)
    assert OptimizationOptions(optimizer="adamw", learning_rate=1.0).learning_rate == 1.0
    given = {"model": "m", "data": "d", "recipe": "classic", "optimizer": "adamw"}
    assert resolve_options(given).options.optimization.learning_rate == pytest.approx(1e-3)  # not the 0.1 of the recipe's SGD


def test_image_sizes_grow_as_in_ffcv() -> None:
    # rn50_16_epochs.yaml: 160 until epoch 11, 192 from 13 on, multiples of 32 between
    assert [FAST.train_size(192, epoch / 16) for epoch in (0, 11, 13, 15)] == [160, 160, 192, 192]
    assert {FAST.train_size(192, epoch / 88) for epoch in range(88)} == {160, 192}
    assert FAST.test_size(192) == 256
    assert [OptimizationOptions(start_scale=0.5).train_size(32, share) for share in (0, 0.75, 0.9)] == [16, 24, 32]
    assert OptimizationOptions().train_size(225, 0.0) == 225 and OptimizationOptions().test_size(225) == 225


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_updates_weights_without_decay_of_norms(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    try:
        optimizer = make_optimizer(model, OptimizationOptions(optimizer=name), fused=False)  # type: ignore[arg-type]
    except MissingDependencyError as error:
        assert name in ("lamb", "lars") and "timm" in str(error)
        pytest.skip("timm is not installed")
    for group in optimizer.param_groups:
        group["lr"] = 0.1
        assert (group["weight_decay"] == 0) == all(one.ndim == 1 for one in group["params"])
    before = [one.detach().clone() for one in model.parameters()]
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    assert not any(torch.equal(old, new) for old, new in zip(before[::4], list(model.parameters())[::4], strict=True))
    assert len(make_optimizer(model, OptimizationOptions(decay_norms=True), fused=False).param_groups) == 1


def test_body_rate_scales_all_layers_but_the_last() -> None:
    model = factory.build_model("resnet20", classes=3, image_size=32)
    groups = make_optimizer(model, OptimizationOptions(body_rate=0.1), fused=False).param_groups
    slow = sum(one.numel() for group in groups if group["scale"] == 0.1 for one in group["params"])
    fast = sum(one.numel() for group in groups if group["scale"] == 1 for one in group["params"])
    assert fast == 64 * 3 + 3 and slow + fast == sum(one.numel() for one in model.parameters())


def test_blurpool_filters_and_keeps_the_names_of_weights() -> None:
    plain = factory.build_model("resnet18", classes=5, image_size=96).eval()
    filtered = copy.deepcopy(plain)
    assert add_blurpool(filtered) == 7  # max pooling; a convolution and a projection in each of three stages
    assert list(filtered.state_dict()) == list(plain.state_dict())
    pool = filtered.maxpool
    images = torch.randn(1, 64, 12, 12)
    kernel = torch.outer(torch.tensor([1.0, 2, 1]), torch.tensor([1.0, 2, 1])) / 16
    peaks = torch.nn.functional.max_pool2d(images, 3, 1, 1)
    expected = torch.nn.functional.conv2d(peaks, kernel.expand(64, 1, 3, 3), stride=2, padding=1, groups=64)
    torch.testing.assert_close(pool(images), expected)
    pictures = torch.randn(2, 3, 96, 96)
    assert filtered(pictures).shape == (2, 5) and not torch.allclose(filtered(pictures), plain(pictures))
    torch.testing.assert_close(copy.deepcopy(filtered)(pictures), filtered(pictures))
    with pytest.raises(UsageError, match="no strided convolution"):
        factory.build_model("tiny_flat:make", classes=3, image_size=32, blurpool=True)


def test_pretrained_weights_load_with_another_number_of_classes(tmp_path: Path) -> None:
    taught = factory.build_model("resnet20", classes=7, image_size=32)
    save_file(taught.state_dict(), tmp_path / "w.safetensors")
    torch.save({"state_dict": {f"module.{key}": value for key, value in taught.state_dict().items()}}, tmp_path / "w.pth")
    for file in ("w.safetensors", "w.pth"):
        model = factory.build_model("resnet20", classes=3, image_size=32)
        message = load_pretrained(model, str(tmp_path / file), name="resnet20")
        assert torch.equal(model[0].weight, taught[0].weight)
        assert f"last layer, {classifier(model)}, stays random" in message
    with pytest.raises(StateError, match=r"does not fit resnet32: 121 tensors differ, the first is 6.conv1.weight"):
        load_pretrained(factory.build_model("resnet32", classes=7, image_size=32), str(tmp_path / "w.pth"), name="resnet32")
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    with pytest.raises(StateError, match="holds no weights"):
        load_pretrained(taught, str(tmp_path / "bad.pth"), name="resnet20")
    with pytest.raises(UsageError, match="cannot read"):
        load_pretrained(taught, str(tmp_path / "absent.pth"), name="resnet20")


def test_pretrained_files_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"state_dict": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(StateError, match="safely"):
        load_pretrained(nn.Linear(2, 2), str(tmp_path / "evil.pth"), name="linear")
    assert not (tmp_path / "ran").exists()


def test_a_global_batch_sets_accumulate_or_raises() -> None:
    options = Options(model="m", data="d", out="o", batch_size=64)
    assert with_global_batch(options, 1024, 4).optimization.accumulate == 4
    with pytest.raises(UsageError, match=r"--global-batch 1000 is not a multiple") as caught:
        with_global_batch(options, 1000, 4)
    assert "--global-batch 1024" in str(caught.value.hint)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, random_source = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 4)):
        for name in ("a", "b"):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = random_source.integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{index}.png")
    return root


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_a_run_with_all_options_resumes_to_the_same_bits(pictures: Path, tmp_path: Path, optimizer: str) -> None:
    if optimizer == "lamb":
        pytest.importorskip("timm")
    optimization = replace(
        FAST, optimizer=optimizer, learning_rate=0.01, start_scale=0.5, blurpool=False, augment="trivialaugment"
    )
    optimization = replace(optimization, erase=0.5, mixup=0.2, clip_norm=1.0, warmup_epochs=1, resize_begin=0.2, resize_end=0.7)
    whole = Options(model="tiny:make", data=str(pictures), out=str(tmp_path / "whole"), epochs=4, batch_size=4, image_size=32,
                    device="cpu", deterministic=True, threads=1, optimization=optimization)  # fmt: skip
    assert train(whole).steps == 24
    for stop in (12, 15):  # at an epoch's end, where the size changes, and within one
        parts = replace(whole, out=str(tmp_path / f"parts{stop}"), keep=99, checkpoint_steps=stop)
        train(parts)
        for later in (Path(parts.out) / "checkpoints").iterdir():
            if later.name != f"step-{stop:09d}":
                for file in later.iterdir():
                    file.unlink()
                later.rmdir()
        (Path(parts.out) / "final.safetensors").unlink()
        result = train(replace(parts, resume="auto"))
        assert result.resumed_from_step == stop
        one, two = (load_file(Path(options.out) / "final.safetensors") for options in (whole, parts))
        assert all(torch.equal(one[name], two[name]) for name in one)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line["image_size"] for line in lines if "loss" in line] == [16, 32, 32]  # steps 1, 20 and 24
    sizes = [optimization.train_size(32, epoch / 4) for epoch in range(4)]
    assert sizes == [16, 16, 24, 32]


def test_presets_name_their_source_and_can_be_overridden() -> None:
    for name, preset in PRESETS.items():
        assert len(preset.source) > 40
        chosen = resolve_options({"model": "resnet50", "data": "d", "recipe": name, "pretrained": "auto", "momentum": 0.5})
        assert asdict(chosen.options.optimization) == {**asdict(preset.optimization), "momentum": 0.5}
        assert (chosen.options.epochs, chosen.options.image_size) == (preset.epochs, preset.image_size)
    with pytest.raises(UsageError, match="starts from trained weights"):
        resolve_options({"model": "resnet50", "data": "d", "recipe": "finetune"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "adam"},
        {"schedule": "square"},
        {"start_scale": 0.0},
        {"erase": 1.5},
        {"test_scale": 9.0},
        {"resize_begin": 0.9, "resize_end": 0.1},
        {"body_rate": -1.0},
        {"warmup_epochs": float("inf")},
    ],
)
def test_optimization_options_out_of_range_raise(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        OptimizationOptions(**wrong)  # type: ignore[arg-type]
