"""Read how many threads this process and its libraries may use: variables of the environment, PyTorch, OpenCV, Numba, BLAS.

Nothing is imported or loaded: a library that the script has not imported has no threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["THREAD_VARIABLES", "thread_settings"]

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
"""Environment variables that limit the threads of libraries such as OpenMP and MKL."""

_RECORDED = (*THREAD_VARIABLES, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_PROC_BIND")

_LIBRARIES: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("torch", "torch", lambda torch: torch.get_num_threads()),
    ("torch_interop", "torch", lambda torch: torch.get_num_interop_threads()),
    ("cv2", "cv2", lambda cv2: cv2.getNumThreads()),
    ("numba", "numba.np.ufunc.parallel", lambda parallel: parallel.get_num_threads()),
)

_BLAS_GETTERS = (
    *(f"{prefix}openblas_get_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")),
    "MKL_Get_Max_Threads",
    "bli_thread_get_num_threads",
)
"""The functions that return the threads of OpenBLAS (as NumPy's wheels name it, and its own names), MKL and BLIS."""


def thread_settings() -> dict[str, int | str]:
    """Return the settings by name: variables that are set (text), and threads of the libraries in use (numbers).

    Example: `{"OMP_NUM_THREADS": "2", "torch": 2, "torch_interop": 2, "cv2": 8, "blas": 2}`
    """
    found: dict[str, int | str] = {name: os.environ[name][:40] for name in _RECORDED if name in os.environ}
    for name, module, read in _LIBRARIES:
        if module in sys.modules:
            with suppress(Exception):  # a library that is being imported, or an old one without the function
                found[name] = int(read(sys.modules[module]))
    if "numpy" in sys.modules:
        with suppress(Exception):
            found["blas"] = _blas_threads()
    return found


def _blas_threads() -> int:
    """Return the threads of NumPy's BLAS. Raise `LookupError` where it has none that is known."""
    import ctypes

    for path in _numpy_blas_files():
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        getter = next((function for name in _BLAS_GETTERS if (function := getattr(library, name, None)) is not None), None)
        if getter is not None:
            return int(getter())
    raise LookupError("no BLAS")


def _numpy_blas_files() -> list[str]:
    """List the BLAS libraries that this process has loaded, NumPy's own first: SciPy and OpenCV bring others."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if "blas" in line or "mkl_rt" in line or "blis" in line}
    found = [path for path in paths if any(word in path.rpartition("/")[2] for word in ("openblas", "mkl_rt", "libblis"))]
    return sorted(found, key=lambda path: ("/numpy" not in path, path))
