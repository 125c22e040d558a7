"""What a training process tells of settings that cost time: read from real models and optimizers."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from headrace.attach.training import model_settings, slow_settings  # noqa: E402 -- needs PyTorch
from torch.optim import optimizer as optimizers  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


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


def test_operators_of_a_tensor_with_a_class_of_its_own_are_not_called() -> None:
    called = []

    class Sharded(torch.Tensor):  # as torch.distributed's DTensor, whose operators wait for the other ranks
        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(function)
            with torch._C._DisableTorchDispatch():
                return function(*args, **kwargs or {})

    plain = torch.nn.Parameter(torch.full((64,), 1e-39))
    sharded = torch.Tensor._make_subclass(Sharded, torch.full((4096,), 1e-39), True)
    optimizer = torch.optim.SGD([sharded, plain], lr=1e-3)
    plain.grad = torch.Tensor._make_subclass(Sharded, torch.zeros(64))
    called.clear()
    assert slow_settings.slow_settings(optimizer)["denormals"].keys() == {"weights", "slower"}
    assert called == []


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.results: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        self.results.append(result)
        return result


class Called(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.results: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.results.append(function)
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("kind", [Dispatched, Called])
def test_no_mode_of_the_script_sees_the_reading(kind: Any) -> None:
    optimizer = stepped(scale=1e-38)
    with kind() as mode:
        found = slow_settings.slow_settings(optimizer)
    assert mode.results == []
    assert found["learning_rate"] == 1e-3


def test_denormals_are_tried_in_float32_on_the_cpu_whatever_the_default_is() -> None:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), Dispatched() as mode, torch._C.DisableTorchFunction():
            slow_settings._slower()
    finally:
        torch.set_default_dtype(default)
    assert {(result.dtype, result.device.type) for result in mode.results} == {(torch.float32, "cpu")}


@pytest.mark.parametrize(
    "values",
    [
        torch.arange(8.0 * 3 * 5 * 5).reshape(8, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.arange(600.0).reshape(20, 30).T,
        torch.tensor(3.0),
        torch.zeros(0, 3),
    ],
    ids=["channels_last", "transposed", "one", "none"],
)
def test_a_dense_tensor_is_read_without_a_copy(values: Any) -> None:
    some = slow_settings._some_of(values)
    assert some.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
    assert sorted(some.tolist()) == sorted(values.flatten().tolist())


def test_what_was_patched_is_restored_although_the_reading_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    enter, forward = torch.amp.autocast_mode.autocast.__enter__, torch.nn.DataParallel.forward
    monkeypatch.setattr(model_settings, "slow_settings", lambda optimizer: 1 / 0)
    monkeypatch.setattr(model_settings.load_hooks, "disable", lambda name: None)
    monkeypatch.setattr(model_settings, "AFTER_STEPS", 1)
    reader = model_settings._SettingsReader(None)  # type: ignore[arg-type]
    monkeypatch.setattr(optimizers, "register_optimizer_step_post_hook", lambda hook: None)
    reader.begin()
    assert torch.amp.autocast_mode.autocast.__enter__ is not enter
    reader._after_step(stepped())
    assert torch.amp.autocast_mode.autocast.__enter__ is enter
    assert torch.nn.DataParallel.forward is forward
