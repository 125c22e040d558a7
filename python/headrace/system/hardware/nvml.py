"""NVIDIA's management library (NVML) by ctypes: which GPUs there are, and their counters.

Only the driver is needed: neither CUDA nor torch is loaded, so a broken CUDA or torch does not matter here. The standard
library suffices, because the sampler of a watched job uses this module. Functions, structures and constants are those of
`nvml.h`: https://docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Device", "Driver", "Nvml", "NvmlError", "find_driver", "open_nvml", "throttle_names"]

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
FUNCTION_NOT_FOUND = 13
NAME_BYTES = 96
CLOCK_SM = 1
TEMPERATURE_GPU = 0
PCIE_RECEIVED = 1
SMI_TIMEOUT_S = 20

THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""`nvmlClocksThrottleReasons…`; the bits for idle, application clocks and sync boost are no fault."""


class NvmlError(Exception):
    """NVML cannot be used. The message says why."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as the driver describes it: `compute_capability` as (major, minor)."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    pcie_generation: int | None = None
    pcie_width: int | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver: its version, the newest CUDA version it supports as (major, minor) or None, and its GPUs."""

    version: str
    cuda: tuple[int, int] | None
    gpus: tuple[Device, ...]


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Nvml:
    """The opened library and the handles of its GPUs.

    A method returns None for what the GPU or the driver does not support; `last_error` then says why. `index` is a place in
    `handles`.
    """

    def __init__(self, library: Any, handles: list[ctypes.c_void_p], device_count: int) -> None:
        self.library = library
        self.handles = handles
        self.device_count = device_count
        self._code = SUCCESS

    def driver_version(self) -> str | None:
        """Return the version of the driver."""
        version = ctypes.create_string_buffer(NAME_BYTES)
        return version.value.decode() if self._call("nvmlSystemGetDriverVersion", version, NAME_BYTES) else None

    def cuda_version(self) -> tuple[int, int] | None:
        """Return the newest CUDA version that the driver supports, as (major, minor)."""
        version = ctypes.c_int()
        if not self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version)):
            return None
        return version.value // 1000, version.value % 1000 // 10

    def name(self, index: int) -> str | None:
        """Return the model name of a GPU."""
        name = ctypes.create_string_buffer(NAME_BYTES)
        known = self._call("nvmlDeviceGetName", self.handles[index], name, NAME_BYTES)
        return name.value.decode(errors="replace") if known else None

    def memory_bytes(self, index: int) -> tuple[int, int] | None:
        """Return the total and the used memory of a GPU in bytes."""
        memory = _Memory()
        if not self._call("nvmlDeviceGetMemoryInfo", self.handles[index], ctypes.byref(memory)):
            return None
        return memory.total, memory.used

    def compute_capability(self, index: int) -> tuple[int, int] | None:
        """Return the compute capability of a GPU as (major, minor)."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        function = "nvmlDeviceGetCudaComputeCapability"
        if not self._call(function, self.handles[index], ctypes.byref(major), ctypes.byref(minor)):
            return None
        return major.value, minor.value

    def busy_share(self, index: int) -> float | None:
        """Return the share of time in which at least one kernel ran. A GPU that runs one small kernel counts as busy."""
        use = _Utilization()
        return use.gpu / 100 if self._call("nvmlDeviceGetUtilizationRates", self.handles[index], ctypes.byref(use)) else None

    def max_sm_clock_mhz(self, index: int) -> int | None:
        """Return the highest clock of a GPU's streaming multiprocessors in MHz; None if the driver does not report it."""
        return self._number("nvmlDeviceGetMaxClockInfo", index, CLOCK_SM)

    def sm_clock_mhz(self, index: int) -> int | None:
        """Return the present clock of a GPU's streaming multiprocessors in MHz; None if the driver does not report it."""
        return self._number("nvmlDeviceGetClockInfo", index, CLOCK_SM)

    def temperature_c(self, index: int) -> int | None:
        """Return the temperature of a GPU in degrees Celsius."""
        return self._number("nvmlDeviceGetTemperature", index, TEMPERATURE_GPU)

    def power_w(self, index: int) -> float | None:
        """Return the power that a GPU draws, in watts."""
        power_mw = self._number("nvmlDeviceGetPowerUsage", index)
        return None if power_mw is None else power_mw / 1000

    def throttle_reasons(self, index: int) -> tuple[str, ...] | None:
        """Return why the clock of a GPU is lowered now (names in `THROTTLE_REASONS`); None if the driver does not report it."""
        reasons = ctypes.c_ulonglong()
        known = self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self.handles[index], ctypes.byref(reasons))
        return throttle_names(reasons.value) if known else None

    def pcie_receive_bytes_s(self, index: int) -> float | None:
        """Return the bytes per second that a GPU receives over PCIe. The call takes 20 ms."""
        rate_kib_s = self._number("nvmlDeviceGetPcieThroughput", index, PCIE_RECEIVED)
        return None if rate_kib_s is None else rate_kib_s * 1024.0

    def pcie_link(self, index: int) -> tuple[int | None, int | None]:
        """Return the highest generation and width (number of lanes) of the PCIe link of a GPU."""
        return self._number("nvmlDeviceGetMaxPcieLinkGeneration", index), self._number("nvmlDeviceGetMaxPcieLinkWidth", index)

    def last_error(self) -> str:
        """Return NVML's error message for the last call that failed."""
        return _message(self.library, self._code)

    def close(self) -> None:
        """Shut NVML down (`nvmlShutdown`)."""
        self.library.nvmlShutdown()

    def _number(self, function: str, index: int, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._call(function, self.handles[index], *arguments, ctypes.byref(value)) else None

    def _call(self, function: str, *arguments: Any) -> bool:
        """Call a function of the library; return whether it exists and succeeded."""
        call = getattr(self.library, function, None)
        self._code = FUNCTION_NOT_FOUND if call is None else call(*arguments)
        return self._code == SUCCESS


def open_nvml(library: Any = None) -> Nvml:
    """Load the library and find the GPUs. Raise `NvmlError` if there is no driver, or if it does not answer.

    `library` replaces the loaded library in tests.
    """
    if library is None:
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise NvmlError(f"no NVIDIA driver on this machine ({LIBRARY} not found)") from None
    code = library.nvmlInit_v2()
    if code != SUCCESS:
        raise NvmlError(f"the NVIDIA driver does not answer: {_message(library, code)}")
    count = ctypes.c_uint()
    code = library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    if code != SUCCESS:
        library.nvmlShutdown()
        raise NvmlError(f"the NVIDIA driver does not report its GPUs: {_message(library, code)}")
    handles = []
    for number in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) == SUCCESS:
            handles.append(handle)
    return Nvml(library, handles, count.value)


def find_driver(library: Any = None, run: Callable[..., Any] = subprocess.run) -> tuple[Driver | None, str]:
    """Return the driver and how it was found ("NVML" or "nvidia-smi"), or None and the reason why there is none.

    `library` replaces the loaded library and `run` replaces `subprocess.run` in tests.
    """
    try:
        nvml = open_nvml(library)
    except NvmlError as error:
        return _ask_nvidia_smi(run, str(error))
    try:
        return _ask_nvml(nvml), "NVML"
    except NvmlError as error:
        return _ask_nvidia_smi(run, str(error))
    finally:
        nvml.close()


def throttle_names(reasons: int) -> tuple[str, ...]:
    """Return the names in `THROTTLE_REASONS` of the bits that are set in `reasons`."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit)


def _ask_nvml(nvml: Nvml) -> Driver:
    if len(nvml.handles) < nvml.device_count:
        raise NvmlError(f"NVML can open only {len(nvml.handles)} of {nvml.device_count} GPUs")
    return Driver(
        version=_required(nvml, nvml.driver_version(), "driver version"),
        cuda=nvml.cuda_version(),
        gpus=tuple(_device(nvml, index) for index in range(len(nvml.handles))),
    )


def _device(nvml: Nvml, index: int) -> Device:
    generation, width = nvml.pcie_link(index)
    return Device(
        name=_required(nvml, nvml.name(index), f"name of GPU {index}"),
        memory_bytes=_required(nvml, nvml.memory_bytes(index), f"memory of GPU {index}")[0],
        compute_capability=_required(nvml, nvml.compute_capability(index), f"compute capability of GPU {index}"),
        pcie_generation=generation,
        pcie_width=width,
    )


def _required(nvml: Nvml, value: T | None, what: str) -> T:
    if value is None:
        raise NvmlError(f"the NVIDIA driver (NVML) does not report the {what}: {nvml.last_error()}")
    return value


def _message(library: Any, code: int) -> str:
    library.nvmlErrorString.restype = ctypes.c_char_p
    text = library.nvmlErrorString(code)
    return text.decode() if text else f"error {code}"


def _ask_nvidia_smi(run: Callable[..., Any], why: str) -> tuple[Driver | None, str]:
    query = "driver_version,name,memory.total,compute_cap"
    try:
        done = run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT_S,
        )
    except FileNotFoundError:
        return None, f"{why}; no nvidia-smi either"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{why}; nvidia-smi: {error}"
    if done.returncode != 0:
        return None, f"{why}; nvidia-smi: {(done.stdout + done.stderr).strip()}"
    version, gpus = "unknown", []
    for line in done.stdout.strip().splitlines():
        version, name, memory_mib, capability = (field.strip() for field in line.split(","))
        major, _, minor = capability.partition(".")
        gpus.append(Device(name, int(memory_mib) << 20, (int(major), int(minor))))
    return Driver(version=version, cuda=None, gpus=tuple(gpus)), "nvidia-smi"
