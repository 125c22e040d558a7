"""Read the environment variables and library versions that may change the speed of this process.

Nothing is imported: a library that the script has not imported has no version here.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from headrace.system.text.redaction import redact_text

__all__ = ["library_versions", "speed_variables"]

PREFIXES = (
    *("CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "GLOO_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "TORCH_", "PYTORCH_"),
    *("TORCHINDUCTOR_", "TRITON_", "TF_", "XLA_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_"),
    *("NUMBA_", "OPENCV_", "MALLOC_", "ATEN_", "DNNL_", "ONEDNN_", "LD_PRELOAD"),
    *("PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONDEVMODE", "PYTHONUNBUFFERED"),
)  # fmt: skip
"""Prefixes of recorded environment variables: libraries read them to choose threads, devices, memory and algorithms."""

LONGEST = 200
"""Cut recorded values to this many characters."""

LIBRARIES = (
    *("torch", "torchvision", "torchdata", "tensorflow", "numpy", "PIL", "cv2", "timm", "lightning", "pytorch_lightning"),
    *("transformers", "accelerate", "datasets", "albumentations", "kornia", "webdataset", "ffcv", "nvidia.dali", "numba"),
)
"""Modules whose versions are recorded."""


def speed_variables() -> dict[str, str]:
    """Return the variables that are set and change the speed of libraries, without secrets.

    Example: `{"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0"}`
    """
    found = {}
    for name in sorted(os.environ):
        if name.startswith(PREFIXES):
            found[name] = redact_text(f"{name}={os.environ[name][:LONGEST]}").partition("=")[2]
    return found


def library_versions() -> dict[str, str]:
    """Return the versions of the known libraries that this process has imported. Example: `{"numpy": "2.3.1"}`"""
    found = {}
    for name in LIBRARIES:
        with suppress(Exception):  # a module that is being imported, or a class of the user in its place
            version = getattr(sys.modules[name], "__version__", None)
            if isinstance(version, str):
                found[name] = version[:60]
    return found
