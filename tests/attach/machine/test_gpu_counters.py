"""GPU counters of the sampler, from fake NVML libraries."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from headrace.attach.machine.gpu_counters import as_json, open_counters
from headrace.system.hardware import gpm
from headrace.system.hardware.nvml import NvmlError, throttle_names


class FakeNvml:
    """The functions of the library that are used, for one GPU; the ones not listed fail as unsupported."""

    def __init__(self, reasons: int = 0) -> None:
        self.reasons = reasons

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 3  # NVML_ERROR_NOT_SUPPORTED

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: int) -> int:
        name.value = b"NVIDIA Test"
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, use: Any) -> int:
        use._obj.gpu = 40
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, reasons: Any) -> int:
        reasons._obj.value = self.reasons
        return 0


def test_unsupported_counters_are_left_out() -> None:
    counters = open_counters(FakeNvml(reasons=0x21))
    assert counters.gpus()[0].name == "NVIDIA Test"
    assert counters.gpus()[0].memory_bytes is None
    sample = counters.sample()[0]
    assert sample.busy == 0.4
    assert sample.throttle == ("heat (software)",)  # 0x1, idle, is no fault
    assert sample.power_w is None
    assert "power_w" not in as_json(sample)


class FakeHopper(FakeNvml):
    """Counters that a GPU has from Hopper on; `refuses` names metrics that this one does not give."""

    def __init__(self, refuses: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.refuses = refuses
        self.looks: list[int] = []

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = 12080
        return 0

    def nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:
        assert support._obj.version == 1
        support._obj.is_supported = 1
        return 0

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:
        sample._obj.value = 100 + len(self.looks)
        self.looks.append(0)
        return 0

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        self.looks[sample.value - 100] = max(self.looks) + 1
        return 0

    def nvmlGpmMetricsGet(self, request: Any) -> int:
        asked = request._obj
        assert asked.version == 1
        assert self.looks[asked.second - 100] == self.looks[asked.first - 100] + 1, "the later sample is the second"
        for place in range(asked.count):
            metric = asked.metrics[place]
            metric.code = 3 if metric.metric in self.refuses else 0
            metric.value = {2: 61.0, 5: 35.0, 10: 44.0, 21: 512.0}[metric.metric]
        return 0


def test_hopper_reports_how_full_it_is() -> None:
    counters = open_counters(FakeHopper())
    assert counters.gpus()[0].cuda == "12.8"
    assert counters.sample()[0].sm_active is None, "one look says nothing"
    for _ in range(3):
        sample = counters.sample()[0]
        assert (sample.sm_active, sample.tensor_active, sample.dram_active) == pytest.approx((0.61, 0.35, 0.44))
        assert sample.pcie_receive_bytes_s == 512 * 2**20


def test_refused_metrics_are_none() -> None:
    counters = open_counters(FakeHopper(refuses=(5, 21)))
    counters.sample()[0]
    sample = counters.sample()[0]
    assert sample.sm_active == pytest.approx(0.61)
    assert sample.tensor_active is None
    assert sample.pcie_receive_bytes_s is None


def test_the_structures_have_the_layout_of_nvml_h() -> None:
    assert ctypes.sizeof(gpm._Metric) == 40
    assert gpm._MetricsGet.metrics.offset == 24
    assert ctypes.sizeof(gpm._Support) == 8


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x10, ()),  # idle, application clocks, sync boost: no fault
        (0x4, ("power cap",)),
        (0x8 | 0x40, ("hardware slowdown", "heat (hardware)")),
        (0x80, ("power brake",)),
    ],
)
def test_only_faults_count_as_throttling(bits: int, names: tuple[str, ...]) -> None:
    assert throttle_names(bits) == names


def test_a_missing_driver_raises_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(NvmlError, match="no NVIDIA driver"):
        open_counters()
