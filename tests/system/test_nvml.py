"""NVML through a made-up library, and nvidia-smi through a made-up runner."""

from __future__ import annotations

import ctypes
import subprocess
from typing import Any

import pytest
from headrace.system import nvml


class FakeNvml:
    """Answers like libnvidia-ml for two H200; `failing` names functions that return an error code."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.failing = failing
        self.shut_down = False
        for name in dir(self):
            if name.startswith("answer_"):
                setattr(self, name.removeprefix("answer_"), self._function(name))

    def _function(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if name.removeprefix("answer_") in self.failing:
                return 999
            return getattr(self, name)(*arguments) or 0

        return call

    def answer_nvmlInit_v2(self) -> None: ...

    def answer_nvmlShutdown(self) -> None:
        self.shut_down = True

    def answer_nvmlErrorString(self, code: int) -> bytes:
        return b"GPU is lost" if code == 999 else b""

    def answer_nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> None:
        buffer.value = b"570.86.15"

    def answer_nvmlSystemGetCudaDriverVersion_v2(self, out: Any) -> None:
        out._obj.value = 12080

    def answer_nvmlDeviceGetCount_v2(self, out: Any) -> None:
        out._obj.value = 2

    def answer_nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, out: Any) -> None:
        out._obj.value = 100 + index.value

    def answer_nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> None:
        buffer.value = b"NVIDIA H200"

    def answer_nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> None:
        out._obj.total = 139 << 30

    def answer_nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> None:
        major._obj.value, minor._obj.value = 9, 0

    def answer_nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, out: Any) -> None:
        out._obj.value = 5

    def answer_nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, out: Any) -> None:
        out._obj.value = 16


H200 = nvml.Gpu("NVIDIA H200", 139 << 30, (9, 0), 5, 16)


def no_program(*_: Any, **__: Any) -> Any:
    raise FileNotFoundError(2, "No such file or directory", "nvidia-smi")


def no_library(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


def prints(text: str, code: int = 0) -> Any:
    return lambda *_, **__: subprocess.CompletedProcess([], code, stdout=text, stderr="")


def test_nvml_tells_all() -> None:
    library = FakeNvml()
    driver, source = nvml.find_driver(lambda name: library, no_program)
    assert driver == nvml.Driver(version="570.86.15", cuda=(12, 8), gpus=(H200, H200))
    assert source == "NVML"
    assert library.shut_down


def test_missing_link_facts_are_none_not_zero() -> None:
    library = FakeNvml(failing=("nvmlDeviceGetMaxPcieLinkGeneration",))
    driver, _ = nvml.find_driver(lambda name: library, no_program)
    assert driver is not None
    assert (driver.gpus[0].pcie_generation, driver.gpus[0].pcie_width) == (None, 16)


@pytest.mark.parametrize("failing", ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo"])
def test_a_failing_nvml_falls_back_and_says_why(failing: str) -> None:
    driver, why = nvml.find_driver(lambda name: FakeNvml(failing=(failing,)), no_program)
    assert driver is None
    assert "GPU is lost" in why and "nvidia-smi" in why


def test_nvidia_smi_is_the_second_source() -> None:
    text = "550.54, NVIDIA A100-SXM4-80GB, 81920, 8.0\n550.54, NVIDIA A100-SXM4-80GB, 81920, 8.0\n"
    driver, source = nvml.find_driver(no_library, prints(text))
    assert driver is not None
    assert (driver.version, driver.cuda, len(driver.gpus), source) == ("550.54", None, 2, "nvidia-smi")
    assert driver.gpus[0] == nvml.Gpu("NVIDIA A100-SXM4-80GB", 80 << 30, (8, 0))


def test_a_dead_driver_is_told_in_its_own_words() -> None:
    driver, why = nvml.find_driver(no_library, prints("NVIDIA-SMI has failed", code=9))
    assert driver is None
    assert "NVIDIA-SMI has failed" in why
