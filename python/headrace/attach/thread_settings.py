"""Read how many threads this process and its libraries may use: variables of the environment, PyTorch, OpenCV, Numba.

Nothing is imported: a library that the script has not imported has no threads.
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
)
"""The variables by which libraries with threads of their own limit them."""

_RECORDED = (*THREAD_VARIABLES, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_PROC_BIND")

_LIBRARIES: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("torch", "torch", lambda torch: torch.get_num_threads()),
    ("torch_interop", "torch", lambda torch: torch.get_num_interop_threads()),
    ("cv2", "cv2", lambda cv2: cv2.getNumThreads()),
    ("numba", "numba.np.ufunc.parallel", lambda parallel: parallel.get_num_threads()),
)


def thread_settings() -> dict[str, int | str]:
    """Return the settings by name: variables that are set (text), and threads of the libraries in use (numbers).

    Example: `{"OMP_NUM_THREADS": "2", "torch": 2, "torch_interop": 2, "cv2": 8}`
    """
    found: dict[str, int | str] = {name: os.environ[name][:40] for name in _RECORDED if name in os.environ}
    for name, module, read in _LIBRARIES:
        if module in sys.modules:
            with suppress(Exception):  # a library that is being imported, or an old one without the function
                found[name] = int(read(sys.modules[module]))
    return found
