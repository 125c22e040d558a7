"""NVIDIA GPUs of this machine, asked from the driver's own library (NVML) by ctypes, or from nvidia-smi.

Neither CUDA nor torch is touched, so this works where they are broken, which is when one asks.
Functions and structures: NVIDIA's NVML API reference, https://docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Driver", "Gpu", "find_driver"]

SUCCESS = 0
NAME_BYTES = 96


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: `compute_capability` as (major, minor)."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    pcie_generation: int | None = None
    pcie_width: int | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver: its version, the newest CUDA (major, minor) it supports (None: not told), and its GPUs."""

    version: str
    cuda: tuple[int, int] | None
    gpus: tuple[Gpu, ...]


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def find_driver(
    load: Callable[[str], Any] = ctypes.CDLL, run: Callable[..., Any] = subprocess.run
) -> tuple[Driver | None, str]:
    """The driver and a word on how it was found; (None, reason) where there is none. `load`, `run`: seams for tests."""
    try:
        library = load("libnvidia-ml.so.1")
    except OSError as error:
        return _by_nvidia_smi(run, f"no driver library: {error}")
    code = library.nvmlInit_v2()
    if code != SUCCESS:
        return _by_nvidia_smi(run, f"NVML does not start: {_message(library, code)}")
    try:
        return _by_nvml(library), "NVML"
    except _NvmlError as error:
        return _by_nvidia_smi(run, str(error))
    finally:
        library.nvmlShutdown()


class _NvmlError(Exception):
    """One NVML call failed; never leaves this module."""


def _by_nvml(library: Any) -> Driver:
    version = ctypes.create_string_buffer(NAME_BYTES)
    _check(library, library.nvmlSystemGetDriverVersion(version, ctypes.c_uint(NAME_BYTES)), "driver version")
    cuda = ctypes.c_int()
    told = library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda)) == SUCCESS
    count = ctypes.c_uint()
    _check(library, library.nvmlDeviceGetCount_v2(ctypes.byref(count)), "number of GPUs")
    return Driver(
        version=version.value.decode(),
        cuda=(cuda.value // 1000, cuda.value % 1000 // 10) if told else None,
        gpus=tuple(_gpu(library, index) for index in range(count.value)),
    )


def _gpu(library: Any, index: int) -> Gpu:
    handle = ctypes.c_void_p()
    _check(library, library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)), f"GPU {index}")
    name = ctypes.create_string_buffer(NAME_BYTES)
    _check(library, library.nvmlDeviceGetName(handle, name, ctypes.c_uint(NAME_BYTES)), f"name of GPU {index}")
    memory = _Memory()
    _check(library, library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)), f"memory of GPU {index}")
    major, minor = ctypes.c_int(), ctypes.c_int()
    code = library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    _check(library, code, f"compute capability of GPU {index}")
    return Gpu(
        name=name.value.decode(),
        memory_bytes=memory.total,
        compute_capability=(major.value, minor.value),
        pcie_generation=_optional_number(library.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=_optional_number(library.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )


def _optional_number(ask: Callable[..., int], handle: ctypes.c_void_p) -> int | None:
    value = ctypes.c_uint()
    return value.value if ask(handle, ctypes.byref(value)) == SUCCESS else None


def _check(library: Any, code: int, what: str) -> None:
    if code != SUCCESS:
        raise _NvmlError(f"NVML does not tell the {what}: {_message(library, code)}")


def _message(library: Any, code: int) -> str:
    library.nvmlErrorString.restype = ctypes.c_char_p
    text = library.nvmlErrorString(code)
    return text.decode() if text else f"error {code}"


def _by_nvidia_smi(run: Callable[..., Any], why: str) -> tuple[Driver | None, str]:
    query = "driver_version,name,memory.total,compute_cap"
    try:
        done = run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
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
        gpus.append(Gpu(name, int(memory_mib) << 20, (int(major), int(minor))))
    return Driver(version=version, cuda=None, gpus=tuple(gpus)), "nvidia-smi"
