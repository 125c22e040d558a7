"""Triton that is installed but does not run: torch does its steps, and one line says why."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from headrace.gpu.augmentation import augment_check
from headrace.gpu.augmentation.augment import OPERATIONS, operations_on
from headrace.gpu.preparation import triton_present

torch = pytest.importorskip("torch")

DEVICE = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    triton_present.tried_triton.cache_clear()
    yield
    triton_present.tried_triton.cache_clear()


def test_the_cpu_and_old_gpus_have_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not triton_present.runs_triton(torch.device("cpu"))
        assert not triton_present.runs_triton(DEVICE)
        assert operations_on(DEVICE) is OPERATIONS


def test_without_triton_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not triton_present.runs_triton(DEVICE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_first_kernel_that_fails_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real attempt: torch has no GPU here."""
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.warns(RuntimeWarning, match=r"Triton's kernels do not run on cuda:0 \(.+\): torch does their steps") as caught:
        assert [triton_present.runs_triton(DEVICE) for _ in range(3)] == [False] * 3
        assert operations_on(DEVICE) is OPERATIONS
    assert len(caught) == 1 and "\n" not in str(caught[0].message)


def test_any_error_of_a_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_kernel = pytest.importorskip("headrace.gpu.preparation.prepare_kernel")

    def failing(*arguments: object) -> object:
        raise FileNotFoundError("Failed to find C compiler. Please specify via CC environment variable.\nand more")

    entered = entering(monkeypatch)
    monkeypatch.setattr(prepare_kernel, "prepare_triton", failing)
    monkeypatch.setattr(torch, "arange", lambda *arguments, **options: torch.zeros(12, dtype=torch.uint8))
    monkeypatch.setattr(torch, "tensor", lambda *arguments, **options: torch.ones(1, dtype=torch.bool))
    reason = triton_present._failure(DEVICE)
    assert reason == "FileNotFoundError: Failed to find C compiler. Please specify via CC environment variable."
    assert entered == [DEVICE]


def test_a_full_gpu_leaves_it_open_whether_triton_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    is_full = [True, True, False]

    def attempt(device: object) -> None:
        if is_full.pop(0):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(triton_present, "_failure", attempt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(torch.cuda.OutOfMemoryError):  # an answer would be kept with the operations
            operations_on(DEVICE)
        assert not triton_present.runs_triton(DEVICE)
        assert triton_present.runs_triton(DEVICE) and triton_present.runs_triton(DEVICE)
    assert not is_full


def test_out_of_memory_is_no_reason_against_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_kernel = pytest.importorskip("headrace.gpu.preparation.prepare_kernel")

    def full(*arguments: object) -> object:
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    entering(monkeypatch)
    monkeypatch.setattr(prepare_kernel, "prepare_triton", full)
    monkeypatch.setattr(torch, "arange", lambda *arguments, **options: torch.zeros(12, dtype=torch.uint8))
    monkeypatch.setattr(torch, "tensor", lambda *arguments, **options: torch.ones(1, dtype=torch.bool))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        triton_present._failure(DEVICE)


def entering(patch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of the devices that are made the current one, from now on."""
    entered: list[object] = []

    def device(found: object) -> object:
        entered.append(found)
        return nullcontext()

    patch.setattr(torch.cuda, "device", device)
    return entered


def test_of_several_gpus_operations_are_tried_on_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, which is another one in the consumer's thread."""
    entered, tried = entering(monkeypatch), set()

    def differ(device: str, operations: object) -> list[str]:
        tried.add(device)
        return []

    monkeypatch.setattr(augment_check, "operations_on", lambda device: OPERATIONS)
    monkeypatch.setattr(augment_check, "different_operations", differ)
    assert augment_check.checked_operations.__wrapped__("cuda:1").refusal is None
    assert entered == [torch.device("cuda:1")] and tried == {"cuda:1"}


def test_out_of_memory_says_nothing_about_the_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(images: object, numbers: object) -> object:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        augment_check.different_operations("cpu", dict(OPERATIONS, blur=full))


def test_where_triton_runs_its_kernels_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("headrace.gpu.augmentation.augment.tried_triton", lambda device: True)
    chosen = operations_on(DEVICE)
    assert set(chosen) == set(OPERATIONS)
    assert {name for name in chosen if chosen[name] is not OPERATIONS[name]} == {"blur", "hue", "bilinear"}
