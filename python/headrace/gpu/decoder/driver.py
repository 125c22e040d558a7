"""The CUDA driver's part: load the compiled kernels into torch's context, and launch them on torch's current stream."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, MissingDependencyError
from headrace.gpu.decoder.arguments import KERNELS, BatchArguments
from headrace.gpu.decoder.nvrtc import cubin_for, target_for
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.install_hints import extra_hint

if TYPE_CHECKING:
    import torch

__all__ = ["CudaLauncher"]


class CudaLauncher:
    """The decoder's CUDA kernels, loaded on one GPU.

    device: torch's device, "cuda" with an index.

    Raises `MissingDependencyError` if cuda-bindings, NVRTC or the driver is missing, `HeadraceError` if the GPU is too old or
    the driver refuses the kernels.

        CudaLauncher(torch.device("cuda", 0)).run(arguments, chunks)
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self.device = device
        try:
            self._driver: Any = importlib.import_module("cuda.bindings.driver")
            self._call("cuInit", 0)
        except (ImportError, RuntimeError, OSError) as error:
            raise MissingDependencyError(
                f"the CUDA driver cannot be loaded: {first_line(error)}",
                hint=f"headrace doctor shows the driver; {extra_hint('gpu')}",
            ) from error
        cubin = cubin_for(target_for(torch.cuda.get_device_capability(device)))
        # The primary context is the one that torch uses.
        self._context = self._call("cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", device.index))
        with self._current():
            self._module = self._call("cuModuleLoadData", cubin)
            self._functions = [self._call("cuModuleGetFunction", self._module, kernel.name.encode()) for kernel in KERNELS]

    def run(self, arguments: BatchArguments, chunks: list[int]) -> None:
        """Launch the kernels in order. Raises `HeadraceError` if the driver refuses; what fails later, torch reports."""
        import torch

        stream = torch.cuda.current_stream(self.device).cuda_stream
        # The driver copies the arguments before it returns.
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        with self._current():
            for kernel, function, blocks in zip(KERNELS, self._functions, chunks, strict=True):
                if blocks:
                    shape = (blocks, 1, 1, kernel.threads, 1, 1)
                    self._call("cuLaunchKernel", function, *shape, 0, stream, ctypes.addressof(pointer), 0)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the GPU's context current in this thread, and put the previous one back."""
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver. Return its value; raise `HeadraceError` if it failed."""
        result = getattr(self._driver, name)(*arguments)
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise HeadraceError(f"the CUDA driver's {name} failed: {result[0].name}")
        return result[1] if len(result) == 2 else None
