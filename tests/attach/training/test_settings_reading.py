"""What a training process tells of settings that cost time: read from real models and optimizers."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from headrace.attach.training import slow_settings  # noqa: E402 -- needs PyTorch


def stepped(scale: float = 1.0, lr: Any = 1e-3) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model(torch.ones(4, 64)).sum().backward()
    return optimizer


def test_an_ordinary_training_has_nothing_to_tell() -> None:
    found = slow_settings.slow_settings(stepped())
    assert not any(found[name] for name in ("anomaly", "deterministic", "profiler", "find_unused_parameters"))
    assert found["learning_rate"] == 1e-3
    assert found["without_gradient"] == 0
    assert found["denormals"] is None


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_modes_that_are_on_are_told() -> None:
    with torch.autograd.detect_anomaly(check_nan=False), torch.autograd.profiler.profile(use_kineto=False):
        found = slow_settings.slow_settings(stepped())
    assert found["anomaly"]
    assert found["profiler"]


def test_denormal_weights_are_counted_and_stay_as_they_are() -> None:
    optimizer = stepped(scale=1e-38)
    before = [each.clone() for group in optimizer.param_groups for each in group["params"]]
    found = slow_settings.slow_settings(optimizer)["denormals"]
    assert found["weights"] > 0.9
    assert found["slower"] > 0
    after = [each for group in optimizer.param_groups for each in group["params"]]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_learning_rate_that_is_a_tensor_is_not_waited_for() -> None:
    assert slow_settings.slow_settings(stepped(lr=torch.tensor(1e-3)))["learning_rate"] is None
