"""Parts of a training step: mixing, weight average, accumulation, clipping."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace.errors import UsageError
from headrace.training.learning.mixing import mix
from headrace.training.loop import Options, train
from headrace.training.settings.optimization import OptimizationOptions
from headrace.training.state import TrainingProgress
from headrace.training.weights import checkpoint
from headrace.training.weights.weight_average import WeightAverage
from PIL import Image
from safetensors.torch import load_file

HELPERS = Path(__file__).parents[2] / "helpers"


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 16, 16).contiguous()
    return images, torch.arange(4)


def test_mix_without_mixup_and_cutmix_returns_its_input() -> None:
    images, labels = batch()
    mixed, partners, share = mix(images, labels, mixup=0, cutmix=0)
    assert mixed is images and partners is labels and share == 1.0


def test_mixup_is_the_weighted_mean_of_neighbours() -> None:
    torch.manual_seed(1)
    images, labels = batch()
    mixed, partners, share = mix(images, labels, mixup=0.4, cutmix=0)
    assert 0 < share < 1
    assert partners.tolist() == [3, 0, 1, 2]
    torch.testing.assert_close(mixed[2], share * images[2] + (1 - share) * images[1])


def test_cutmix_pastes_the_share_it_returns() -> None:
    shares = []
    for seed in range(50):
        torch.manual_seed(seed)
        images, labels = batch()
        mixed, partners, share = mix(images, labels, mixup=0, cutmix=1.0)
        assert partners.tolist() == [3, 0, 1, 2]
        own = (mixed[2, 0] == 2).float().mean().item()
        assert own == pytest.approx(share, abs=1e-6)
        assert set(mixed[2].unique().tolist()) <= {1.0, 2.0}
        shares.append(share)
    assert 0.1 < np.mean(shares) < 0.95 and np.std(shares) > 0.1


def test_mixing_repeats_with_the_same_seed() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(mix(*batch(), mixup=0.2, cutmix=1.0)[0])
    assert torch.equal(*results)


def test_the_decay_of_the_average_grows_with_the_updates() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.BatchNorm1d(1))
    average = WeightAverage(model, 0.9)
    start = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1)
        model[1].num_batches_tracked.add_(5)
    average.update(model, 0)  # decay (1 + 0) / (10 + 0)
    torch.testing.assert_close(average.model[0].weight, start + 0.9)
    average.update(model, 10_000)  # decay 0.9
    torch.testing.assert_close(average.model[0].weight, start + 0.91)
    assert average.model[1].num_batches_tracked.item() == 5
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


@pytest.fixture
def options(tmp_path: Path) -> Options:
    random_source = np.random.default_rng(0)
    for index in range(32):
        folder = tmp_path / "data" / f"class{index % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random_source.integers(0, 255, (36, 36, 3), dtype=np.uint8)).save(folder / f"{index}.jpg")
    optimization = OptimizationOptions(learning_rate=0.5, momentum=0.0, weight_decay=0.0, warmup_epochs=0)
    return Options(
        model="tiny:make",
        data=str(tmp_path / "data"),
        out=str(tmp_path / "run"),
        epochs=1,
        batch_size=16,
        image_size=32,
        device="cpu",
        threads=1,
        optimization=optimization,
    )


def weights(options: Options) -> dict[str, torch.Tensor]:
    return dict(load_file(Path(options.out) / "final.safetensors"))


@pytest.fixture(autouse=True)
def _tiny_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HELPERS))


def test_two_accumulated_batches_update_like_one_of_twice_the_size(options: Options) -> None:
    """Two batches of 8 move the weights as one of 16; at the schedule's half the rate of its beginning."""
    train(replace(options, steps=1))
    whole = weights(options)
    parts = replace(options, out=options.out + "-parts", batch_size=8, steps=2)
    train(replace(parts, optimization=replace(options.optimization, accumulate=2, learning_rate=1.0)))
    for name, value in weights(parts).items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-6)


def test_checkpoints_are_saved_only_after_updates(options: Options) -> None:
    train(replace(options, batch_size=4, checkpoint_steps=1, keep=9, optimization=replace(options.optimization, accumulate=3)))
    saved = sorted(path.name for path in (Path(options.out) / "checkpoints").iterdir())
    assert saved == ["step-000000003", "step-000000006", "step-000000008"]


def test_a_tiny_clip_norm_leaves_the_weights_unchanged(options: Options) -> None:
    train(replace(options, steps=1))
    free = weights(options)
    clipped = replace(
        options, out=options.out + "-clipped", steps=1, optimization=replace(options.optimization, clip_norm=1e-9)
    )
    train(clipped)
    start = replace(options, out=options.out + "-start", steps=1, optimization=replace(options.optimization, learning_rate=0.0))
    train(start)
    for name, value in weights(clipped).items():
        torch.testing.assert_close(value, weights(start)[name], rtol=0, atol=1e-8)
    assert any(not torch.equal(value, weights(start)[name]) for name, value in free.items())


def test_final_weights_are_the_average_also_after_a_resume(options: Options) -> None:
    averaging = replace(options, epochs=4, batch_size=4, optimization=replace(options.optimization, average=0.99, mixup=0.2))
    train(averaging)
    stopped = replace(averaging, out=options.out + "-stopped")

    def stop(progress: TrainingProgress) -> None:
        if progress.step > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(replace(stopped, checkpoint_steps=5), on_progress=stop)
    found, _ = checkpoint.newest(Path(stopped.out) / "checkpoints")
    assert found is not None and 0 < found.state["step"] < 32
    assert not torch.equal(found.tensors["average.4.weight"], found.tensors["model.4.weight"])
    train(replace(stopped, resume="auto"))
    for name, value in weights(stopped).items():
        assert torch.equal(value, weights(averaging)[name]), name


@pytest.mark.parametrize(
    "wrong", [{"momentum": 1.0}, {"learning_rate": -1}, {"accumulate": 0}, {"average": 1.0}, {"mixup": float("nan")}]
)
def test_optimization_values_out_of_range_raise(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        OptimizationOptions(**wrong)  # type: ignore[arg-type]
