"""GPU counters through NVIDIA's management library, by ctypes: no package is needed, only the driver.

Function and constant names are those of `nvml.h`. `utilization.gpu` is the share of time in which at least one kernel
ran, not how full the GPU was. Each call that a GPU or driver does not support gives None.
"""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.attach.gpm import Gpm
from headrace.session.model import GpuProperties, GpuSample

__all__ = ["Nvml", "NvmlError", "open_nvml", "throttle_names"]

LIBRARY = "libnvidia-ml.so.1"
CLOCK_SM = 1
TEMPERATURE_GPU = 0
PCIE_RECEIVED = 1

THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""`nvmlClocksThrottleReasons…`; the bits for idle, application clocks and sync boost are no fault."""


class NvmlError(Exception):
    """NVML cannot be used; the message says why, in words for "not measured"."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(slots=True)
class Nvml:
    """An open library and the handles of its GPUs."""

    library: Any
    handles: list[ctypes.c_void_p]
    _gpm: dict[int, Gpm] = field(default_factory=dict)

    def gpus(self) -> list[GpuProperties]:
        """What the GPUs are."""
        driver = ctypes.create_string_buffer(96)
        known = self.library.nvmlSystemGetDriverVersion(driver, 96) == 0
        version = ctypes.c_int()
        told = self.library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)) == 0
        cuda = f"{version.value // 1000}.{version.value % 1000 // 10}" if told else None
        return [
            self._gpu(index, handle, driver.value.decode() if known else None, cuda)
            for index, handle in enumerate(self.handles)
        ]

    def _gpu(self, index: int, handle: ctypes.c_void_p, driver: str | None, cuda: str | None) -> GpuProperties:
        name = ctypes.create_string_buffer(96)
        self.library.nvmlDeviceGetName(handle, name, 96)
        memory = self._memory(handle)
        return GpuProperties(
            index,
            name.value.decode(errors="replace") or "GPU",
            memory.total if memory is not None else None,
            driver,
            self._number("nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM),
            cuda,
        )

    def sample(self, index: int) -> GpuSample:
        """One GPU now."""
        handle = self.handles[index]
        use = _Utilization()
        busy = use.gpu / 100 if self.library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)) == 0 else None
        memory = self._memory(handle)
        power_mw = self._number("nvmlDeviceGetPowerUsage", handle)
        reasons = ctypes.c_ulonglong()
        throttled = self.library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons)) == 0
        if index not in self._gpm:
            self._gpm[index] = Gpm(self.library, handle)
        full = self._gpm[index].read()
        # The older counter of the bus takes 20 ms of the caller's time to sample.
        received_kb_s = None if full else self._number("nvmlDeviceGetPcieThroughput", handle, PCIE_RECEIVED)
        received = {} if received_kb_s is None else {"pcie_receive_bytes_s": received_kb_s * 1024.0}
        return GpuSample(
            index,
            busy=busy,
            memory_used_bytes=memory.used if memory is not None else None,
            sm_clock_mhz=self._number("nvmlDeviceGetClockInfo", handle, CLOCK_SM),
            temperature_c=self._number("nvmlDeviceGetTemperature", handle, TEMPERATURE_GPU),
            power_w=power_mw / 1000 if power_mw is not None else None,
            throttle=throttle_names(reasons.value) if throttled else None,
            **full,
            **received,
        )

    def _memory(self, handle: ctypes.c_void_p) -> _Memory | None:
        memory = _Memory()
        return memory if self.library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 else None

    def _number(self, function: str, handle: ctypes.c_void_p, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        call = getattr(self.library, function, None)
        return value.value if call is not None and call(handle, *arguments, ctypes.byref(value)) == 0 else None


def open_nvml(library: Any = None) -> Nvml:
    """Load the library and find the GPUs. Raises `NvmlError` where there is no driver or no GPU."""
    if library is None:
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise NvmlError(f"no NVIDIA driver on this machine ({LIBRARY} not found)") from None
    code = library.nvmlInit_v2()
    if code != 0:
        raise NvmlError(f"the NVIDIA driver does not answer (nvmlInit returned {code})")
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0 or count.value == 0:
        raise NvmlError("the NVIDIA driver sees no GPU")
    handles = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            handles.append(handle)
    return Nvml(library, handles)


def throttle_names(reasons: int) -> tuple[str, ...]:
    """The faults among the reasons why the clock is not higher."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit)


def as_json(gpu: GpuProperties | GpuSample) -> dict[str, Any]:
    """Without what is not measured."""
    return {name: value for name, value in asdict(gpu).items() if value is not None}
