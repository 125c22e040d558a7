"""GPU counters of the sampler: read NVML and fill the session's GPU records.

A counter that the GPU does not support is None.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace.session.machine import GpuProperties, GpuSample
from headrace.system.hardware.gpm import Gpm
from headrace.system.hardware.nvml import Nvml, NvmlError, open_nvml

__all__ = ["GpuCounters", "as_json", "open_counters"]


class GpuCounters:
    """The counters of all GPUs of the machine."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._gpm = [Gpm(nvml.library, handle) for handle in nvml.handles]

    def gpus(self) -> list[GpuProperties]:
        """Return the constant facts (name, memory size, limits) of each GPU."""
        nvml = self._nvml
        driver, cuda = nvml.driver_version(), nvml.cuda_version()
        cuda_text = f"{cuda[0]}.{cuda[1]}" if cuda is not None else None
        found = []
        for index in range(len(nvml.handles)):
            memory = nvml.memory_bytes(index)
            total_bytes = memory[0] if memory is not None else None
            name = nvml.name(index) or "GPU"
            found.append(GpuProperties(index, name, total_bytes, driver, nvml.max_sm_clock_mhz(index), cuda_text))
        return found

    def sample(self) -> list[GpuSample]:
        """Return the counters of each GPU now. Those of GPM (NVML's performance monitoring) are means since the last call."""
        return [self._sample(index) for index in range(len(self._nvml.handles))]

    def _sample(self, index: int) -> GpuSample:
        nvml = self._nvml
        memory = nvml.memory_bytes(index)
        by_gpm = self._gpm[index].read()
        if not by_gpm and (rate := nvml.pcie_receive_bytes_s(index)) is not None:
            by_gpm = {"pcie_receive_bytes_s": rate}
        return GpuSample(
            index,
            busy=nvml.busy_share(index),
            memory_used_bytes=memory[1] if memory is not None else None,
            sm_clock_mhz=nvml.sm_clock_mhz(index),
            temperature_c=nvml.temperature_c(index),
            power_w=nvml.power_w(index),
            throttle=nvml.throttle_reasons(index),
            **by_gpm,
        )


def open_counters(library: Any = None) -> GpuCounters:
    """Open NVML. Raise `NvmlError` if there is no driver or no GPU. `library` replaces the loaded library in tests."""
    nvml = open_nvml(library)
    if not nvml.handles:
        nvml.close()
        raise NvmlError("the NVIDIA driver sees no GPU")
    return GpuCounters(nvml)


def as_json(gpu: GpuProperties | GpuSample) -> dict[str, Any]:
    """Return the fields that are not None, as a dict."""
    return {name: value for name, value in asdict(gpu).items() if value is not None}
