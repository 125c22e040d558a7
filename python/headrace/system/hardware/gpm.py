"""NVML's GPU performance monitoring (GPM): how full a GPU is, from Hopper on. Each metric is a mean between two samples.

NVML's utilization only says that some kernel ran. Structures, metric numbers and versions are those of `nvml.h` (CUDA 12
and 13). The array of metrics has the greatest length that any version of the header has given it, because the library may
clear all of it.
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["Gpm"]

VERSION = 1
SM_UTIL, ANY_TENSOR_UTIL, DRAM_BW_UTIL, PCIE_RX_PER_SEC = 2, 5, 10, 21
PERCENT, MIB = 0.01, 2.0**20
METRICS = (
    ("sm_active", SM_UTIL, PERCENT),
    ("tensor_active", ANY_TENSOR_UTIL, PERCENT),
    ("dram_active", DRAM_BW_UTIL, PERCENT),
    ("pcie_receive_bytes_s", PCIE_RX_PER_SEC, MIB),
)
MOST_METRICS = 512


class _Support(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("is_supported", ctypes.c_uint))


class _Metric(ctypes.Structure):
    _fields_ = (
        ("metric", ctypes.c_uint),
        ("code", ctypes.c_int),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    )


class _MetricsGet(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("metrics", _Metric * MOST_METRICS),
    )


class Gpm:
    """The GPM metrics of one GPU."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle
        self._samples = (ctypes.c_void_p(), ctypes.c_void_p())
        self._taken = 0
        self._usable = self._supported() and all(self._call("nvmlGpmSampleAlloc", ctypes.byref(one)) for one in self._samples)

    def read(self) -> dict[str, float]:
        """Return the metrics' means since the last call, by the names in `METRICS`: shares from 0 to 1, and bytes per second.

        The first call returns nothing, and so does each call where the GPU or the driver has no GPM.
        """
        if not self._usable or not self._call("nvmlGpmSampleGet", self._handle, self._samples[self._taken % 2]):
            return {}
        self._taken += 1
        if self._taken < 2:
            return {}
        request = _MetricsGet(
            version=VERSION,
            count=len(METRICS),
            first=self._samples[self._taken % 2].value,
            second=self._samples[(self._taken + 1) % 2].value,
        )
        for place, (_, metric, _) in enumerate(METRICS):
            request.metrics[place].metric = metric
        if not self._call("nvmlGpmMetricsGet", ctypes.byref(request)):
            return {}
        found = zip(METRICS, request.metrics, strict=False)
        return {name: metric.value * unit for (name, _, unit), metric in found if metric.code == 0 and metric.value >= 0}

    def _supported(self) -> bool:
        support = _Support(version=VERSION)
        return self._call("nvmlGpmQueryDeviceSupport", self._handle, ctypes.byref(support)) and bool(support.is_supported)

    def _call(self, function: str, *arguments: Any) -> bool:
        """Call a function of the library; return whether it exists and succeeded."""
        call = getattr(self._library, function, None)
        return call is not None and call(*arguments) == 0
