"""Where the CUDA decoder cannot be used, it says why in one line; where memory is short, it takes less."""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from cuda_on_host import HostLauncher
from headrace.errors import HeadraceError, MissingDependencyError, UsageError
from headrace.gpu.decoder import CudaJpegDecoder, available, batch_decoder, driver
from headrace.gpu.decoder.arguments import KERNELS, BatchArguments
from headrace.gpu.decoder.self_check import CHECKED_SIZE, check_pixels
from headrace.images.restart_markers import restart_markers
from sample_images import jpeg


def test_without_a_gpu_the_reason_is_one_line() -> None:
    assert available("cpu") == "device cpu is not a CUDA device"
    if not torch.cuda.is_available():
        assert available("cuda") == available("cuda:3") == "torch sees no CUDA device"
        with pytest.raises(UsageError, match="the CUDA decoder cannot be used: torch sees no CUDA device"):
            CudaJpegDecoder("cuda", (224, 224))


class FakeDriver(ModuleType):
    """The driver's functions that the launcher calls, recorded; `failing` is the name of one that fails."""

    def __init__(self, failing: str = "") -> None:
        super().__init__("cuda.bindings.driver")
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))
        self.calls: list[tuple[Any, ...]] = []
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name == self._failing:
                return (SimpleNamespace(name="CUDA_ERROR_PROVOKED"), None)
            silent = name in ("cuInit", "cuCtxPushCurrent", "cuLaunchKernel")
            value = f"{name} {(arguments or (None,))[-1]!r}"
            return (self.CUresult.CUDA_SUCCESS,) if silent else (self.CUresult.CUDA_SUCCESS, value)

        return call


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return put(monkeypatch, FakeDriver())


def put(monkeypatch: pytest.MonkeyPatch, module: FakeDriver) -> FakeDriver:
    """Make torch report two GPUs, and use `module` as the CUDA driver."""
    found = importlib.import_module
    monkeypatch.setattr(driver.importlib, "import_module", lambda name: module if name == module.__name__ else found(name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=4711))
    monkeypatch.setattr(driver, "target_for", lambda capability: f"sm_{capability[0]}{capability[1]}")
    monkeypatch.setattr(driver, "cubin_for", lambda target: target.encode())
    monkeypatch.setattr(batch_decoder, "_launchers", {})
    monkeypatch.setattr(batch_decoder, "check_pixels", lambda decoder: None)  # the fake computes nothing
    return module


def test_the_real_driver_has_the_functions_that_the_launcher_calls(fake: FakeDriver) -> None:
    bindings = pytest.importorskip("cuda.bindings.driver")
    launcher = driver.CudaLauncher(torch.device("cuda", 0))
    launcher.run(BatchArguments(), [1] * len(KERNELS))
    for name, *_ in fake.calls:
        assert callable(getattr(bindings, name)), name


def test_kernels_are_launched_in_order_on_torchs_stream_in_torchs_context(fake: FakeDriver) -> None:
    launcher = driver.CudaLauncher(torch.device("cuda", 1))
    assert ("cuDeviceGet", 1) in fake.calls and ("cuModuleLoadData", b"sm_90") in fake.calls
    fake.calls.clear()
    launcher.run(BatchArguments(), [7, 0, 3, 2, 1])
    names = [name for name, *_ in fake.calls]
    assert names == ["cuCtxPushCurrent", *["cuLaunchKernel"] * 4, "cuCtxPopCurrent"], "a kernel without work is left out"
    grids = [(call[1], call[2], call[5], call[9]) for call in fake.calls if call[0] == "cuLaunchKernel"]
    wanted = [(kernel, blocks) for kernel, blocks in zip(KERNELS, [7, 0, 3, 2, 1], strict=True) if blocks]
    expected = [(f"cuModuleGetFunction {kernel.name.encode()!r}", blocks, kernel.threads, 4711) for kernel, blocks in wanted]
    assert grids == expected


def test_the_context_is_put_back_when_a_launch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = put(monkeypatch, FakeDriver("cuLaunchKernel"))
    launcher = driver.CudaLauncher(torch.device("cuda", 0))
    with pytest.raises(HeadraceError, match="the CUDA driver's cuLaunchKernel failed: CUDA_ERROR_PROVOKED"):
        launcher.run(BatchArguments(), [1] * len(KERNELS))
    assert fake.calls[-1] == ("cuCtxPopCurrent",)


@pytest.mark.parametrize("failing", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuModuleLoadData"])
def test_a_driver_that_refuses_is_the_reason(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    put(monkeypatch, FakeDriver(failing))
    assert available("cuda") == f"the CUDA driver's {failing} failed: CUDA_ERROR_PROVOKED"


def test_a_missing_driver_library_is_the_reason(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> None:
    def missing(*arguments: Any) -> Any:
        raise RuntimeError("libcuda.so.1 is not found\nand a long explanation")

    monkeypatch.setattr(fake, "cuInit", missing, raising=False)
    assert available("cuda") == "the CUDA driver cannot be loaded: libcuda.so.1 is not found"

    def silent(*arguments: Any) -> Any:
        raise OSError

    monkeypatch.setattr(fake, "cuInit", silent, raising=False)
    assert available("cuda") == "the CUDA driver cannot be loaded: OSError", "an error without text"
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    monkeypatch.setattr(driver.importlib, "import_module", __import__)
    assert (available("cuda") or "").startswith("the CUDA driver cannot be loaded: import of cuda.bindings.driver")


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real bindings, where torch believes in a GPU: the first call that needs the driver's library fails."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a driver")
    pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    reason = available("cuda:0") or ""
    assert reason.startswith("the CUDA driver cannot be loaded: ") and "\n" not in reason


def test_a_missing_compiler_or_an_old_gpu_is_the_reason(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> None:
    def no_compiler(capability: tuple[int, int]) -> str:
        raise MissingDependencyError("NVRTC, CUDA's run-time compiler, cannot be loaded: gone", hint="pip install …")

    monkeypatch.setattr(driver, "target_for", no_compiler)
    assert available("cuda:0") == "NVRTC, CUDA's run-time compiler, cannot be loaded: gone"


def test_each_gpu_has_its_own_kernels(fake: FakeDriver) -> None:
    assert available("cuda") is None and available("cuda:1") is None and available("cuda:0") is None
    assert [call[1] for call in fake.calls if call[0] == "cuDeviceGet"] == [1, 0], (
        "the current device, then the other, once each"
    )
    assert available("cuda:2") == "there is no device cuda:2: the number of CUDA devices that torch sees is 2"


def test_a_mig_slice_is_one_device_with_its_own_number(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA shows a process one slice at most, as device 0, whatever the number of GPUs and slices of the machine."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert available("cuda") is None and available("cuda:0") is None
    assert [call[1] for call in fake.calls if call[0] == "cuDeviceGet"] == [0]
    assert available("cuda:1") == "there is no device cuda:1: the number of CUDA devices that torch sees is 1"


class Faulty(HostLauncher):
    """Kernels with a fault, as a GPU or a compiler may have it."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def run(self, arguments: BatchArguments, chunks: list[int]) -> None:
        if self.fault == "fails":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nand a long explanation")
        if self.fault == "silent":
            raise RuntimeError
        super().run(arguments, chunks)
        if self.fault == "pixel":
            ctypes.c_uint8.from_address(arguments.out + 5000).value ^= 1
        if self.fault == "status":
            ctypes.c_int32.from_address(arguments.statuses).value = 6


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("pixel", r"<0\.1 % of the CUDA decoder's values differ from the CPU kernel's on this GPU; all must be equal"),
        ("status", "the CUDA decoder reports undamaged images as damaged on this GPU"),
        ("fails", "the CUDA decoder's first batch failed: CUDA error: an illegal memory access was encountered$"),
        ("silent", "the CUDA decoder's first batch failed: RuntimeError$"),
    ],
)
def test_kernels_that_compute_wrong_are_not_used(monkeypatch: pytest.MonkeyPatch, fault: str, words: str) -> None:
    """The check that `available` makes, with a device on the host in the GPU's place."""
    check_pixels(CudaJpegDecoder("cpu", CHECKED_SIZE, launcher=HostLauncher()))
    put(monkeypatch, FakeDriver())
    checked = CudaJpegDecoder("cpu", CHECKED_SIZE, launcher=Faulty(fault))
    monkeypatch.setattr(batch_decoder, "check_pixels", lambda decoder: check_pixels(checked))
    assert re.search(words, available("cuda:0") or "")
    assert batch_decoder._launchers == {}


def files() -> list[bytes]:
    return [restart_markers(jpeg(400, 300, seed)) for seed in range(6)]


def test_a_device_short_of_memory_decodes_in_smaller_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_decoder, "LEAST_SCRATCH_BYTES", 1 << 18)
    empty = torch.empty

    def limited(count: Any, **options: Any) -> torch.Tensor:
        if options.get("dtype") == torch.int16 and count * 2 > 1_000_000:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(count, **options)

    monkeypatch.setattr(torch, "empty", limited)
    own = CudaJpegDecoder("cpu", (64, 64), launcher=HostLauncher(), scratch_bytes=8 << 20)
    batch = own.decode(files())
    assert batch.statuses().tolist() == [0] * 6 and own.scratch_bytes == 1 << 20
    expected = np.empty((6, 64, 64, 3), np.uint8)
    headrace.decode_into(files(), expected)
    np.testing.assert_array_equal(batch.images.permute(0, 2, 3, 1).numpy(), expected)


def test_no_memory_at_all_is_torchs_error_for_the_caller_who_has_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(HostLauncher):
        def run(self, arguments: BatchArguments, chunks: list[int]) -> None:
            self.launches += 1
            raise torch.OutOfMemoryError("CUDA out of memory")

    launcher = Full()
    own = CudaJpegDecoder("cpu", (64, 64), launcher=launcher)
    with pytest.raises(torch.OutOfMemoryError):
        own.decode(files())
    assert launcher.launches == 5, "512, 256, 128, 64 and 32 MiB were tried"


def test_what_it_cannot_decode_is_named_beside_what_it_does() -> None:
    own = CudaJpegDecoder("cpu", (48, 64), launcher=HostLauncher())
    inputs = [files()[0], files()[1], jpeg(500, 400), b"no image"]
    boxes = [(10, 20, 300, 200), *[(0, 0, 400, 300)] * 3]
    flips = [True, False, False, False]
    sizes = [(64, 48), (100, 75), (64, 48), (64, 48)]
    windows = [(0, 0, 64, 48), (18, 13, 64, 48), *[(0, 0, 64, 48)] * 2]
    batch = own.decode(inputs, boxes, flips, sizes=sizes, windows=windows)
    assert [bool(status) for status in batch.statuses()] == [False, False, True, True]
    expected = np.empty((2, 48, 64, 3), np.uint8)
    headrace.decode_into(inputs[:2], expected, boxes[:2], flips[:2], sizes=sizes[:2], windows=windows[:2])
    np.testing.assert_array_equal(batch.images[:2].permute(0, 2, 3, 1).numpy(), expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"boxes": [(0, 0, 1)]}, "boxes|tuple"),
        ({"boxes": [(0, 0, 8, 8)] * 7}, "one box, flip, size and window for each image"),
        ({"flips": [True]}, "one box, flip, size and window for each image"),
        ({"windows": [(0, 0, 9, 9)] * 6}, "9×9 pixels, but the batch has 64×64"),
        ({"windows": [(-1, 0, 64, 64)] * 6}, "leaves the resized image"),
        ({"boxes": ["abcd"] * 6}, "rows of ints"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        CudaJpegDecoder("cpu", (64, 64), launcher=HostLauncher()).decode(files(), **arguments)


@pytest.mark.parametrize("options", [{"size": (0, 3)}, {"threads": 0}, {"scratch_bytes": 0}, {"values": torch.zeros(3, 255)}])
def test_wrong_options_are_usage_errors(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CudaJpegDecoder("cpu", **{"size": (4, 4), "launcher": HostLauncher(), **options})
