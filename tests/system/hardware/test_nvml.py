"""NVML through fake libraries, nvidia-smi through a fake runner."""

from __future__ import annotations

import ctypes
import subprocess
from typing import Any

import pytest
from headrace.system.hardware import nvml


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

    def answer_nvmlDeviceGetHandleByIndex_v2(self, index: int, out: Any) -> None:
        out._obj.value = 100 + index

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


H200 = nvml.Device("NVIDIA H200", 139 << 30, (9, 0), 5, 16)


def no_program(*_: Any, **__: Any) -> Any:
    raise FileNotFoundError(2, "No such file or directory", "nvidia-smi")


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", load)


def prints(text: str, code: int = 0) -> Any:
    return lambda *_, **__: subprocess.CompletedProcess([], code, stdout=text, stderr="")


def test_find_driver_reads_all_facts_from_nvml() -> None:
    library = FakeNvml()
    driver, source = nvml.find_driver(library, no_program)
    assert driver == nvml.Driver(version="570.86.15", cuda=(12, 8), gpus=(H200, H200))
    assert source == "NVML"
    assert library.shut_down


def test_unsupported_link_facts_are_none_not_zero() -> None:
    library = FakeNvml(failing=("nvmlDeviceGetMaxPcieLinkGeneration",))
    driver, _ = nvml.find_driver(library, no_program)
    assert driver is not None
    assert (driver.gpus[0].pcie_generation, driver.gpus[0].pcie_width) == (None, 16)


@pytest.mark.parametrize("failing", ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo"])
def test_a_failing_nvml_falls_back_to_nvidia_smi_with_the_reason(failing: str) -> None:
    driver, why = nvml.find_driver(FakeNvml(failing=(failing,)), no_program)
    assert driver is None
    assert "GPU is lost" in why and "nvidia-smi" in why


@pytest.mark.usefixtures("no_library")
def test_without_nvml_the_facts_come_from_nvidia_smi() -> None:
    text = "550.54, NVIDIA A100-SXM4-80GB, 81920, 8.0\n550.54, NVIDIA A100-SXM4-80GB, 81920, 8.0\n"
    driver, source = nvml.find_driver(run=prints(text))
    assert driver is not None
    assert (driver.version, driver.cuda, len(driver.gpus), source) == ("550.54", None, 2, "nvidia-smi")
    assert driver.gpus[0] == nvml.Device("NVIDIA A100-SXM4-80GB", 80 << 30, (8, 0))


@pytest.mark.usefixtures("no_library")
def test_the_message_of_a_failing_nvidia_smi_is_the_reason() -> None:
    driver, why = nvml.find_driver(run=prints("NVIDIA-SMI has failed", code=9))
    assert driver is None
    assert "NVIDIA-SMI has failed" in why
