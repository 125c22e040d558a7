"""Where a model computes: on the CPU, on a CUDA GPU, or on a simulated GPU.

A simulated GPU measures the input side of training without a GPU. A stand-in model with a real loss and real gradients takes
almost no time, and each step then waits until a GPU of the stated rate would have been done.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from headrace.errors import MissingDependencyError, UsageError
from headrace.system.text.install_hints import extra_hint
from headrace.system.text.sizes import count_text

__all__ = ["SIMULATED", "Device", "make_deterministic", "make_fast", "open_device"]

Kind = Literal["cpu", "cuda", "simulated"]

# Name → (images per second, source). ResNet-50 training, mixed precision, one A100-SXM4-80GB, batch 256.
SIMULATED = {"a100": (2470.0, "NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5, AMP, container 21.03")}


@dataclass(frozen=True, slots=True)
class Device:
    """A device. name: for people. torch_name: where tensors live. img_s: stated rate of a simulated device, else None."""

    kind: Kind
    name: str
    torch_name: str
    img_s: float | None = None
    source: str | None = None

    @property
    def torch_type(self) -> str:
        """ "cpu" or "cuda"."""
        return self.torch_name.partition(":")[0]

    @property
    def simulated(self) -> bool:
        """Whether the device is simulated: computing is then a timed wait."""
        return self.kind == "simulated"


def open_device(spec: str | None, *, local_rank: int = 0) -> Device:
    """Return the device named by `spec`: "cpu", "cuda", "cuda:N", "sim:a100" or "sim:IMAGES_PER_SECOND".

    None stands for CUDA where torch finds a GPU, else the CPU. "cuda" is the GPU of `local_rank`. Raises UsageError for another
    name and for CUDA without a GPU, MissingDependencyError without torch.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("training needs PyTorch", hint=extra_hint("train")) from error
    if spec is None:
        spec = "cuda" if torch.cuda.is_available() else "cpu"
    if spec == "cpu":
        return Device("cpu", "CPU", "cpu")
    if spec.startswith("sim:"):
        return _open_simulated(spec.removeprefix("sim:"))
    if spec == "cuda" or spec.startswith("cuda:"):
        if not torch.cuda.is_available():
            raise UsageError(f"--device {spec}: torch finds no CUDA GPU here", hint="headrace doctor says why; --device cpu")
        index = int(spec.partition(":")[2] or local_rank)
        if index >= torch.cuda.device_count():
            raise UsageError(f"--device {spec}: torch finds {count_text(torch.cuda.device_count(), 'GPU')}, numbered from 0")
        return Device("cuda", torch.cuda.get_device_name(index), f"cuda:{index}")
    raise UsageError(f"there is no device {spec!r}", hint="use cpu, cuda, sim:a100, or sim:IMAGES_PER_SECOND")


def _open_simulated(name: str) -> Device:
    if name in SIMULATED:
        rate, source = SIMULATED[name]
        return Device("simulated", f"simulated {name.upper()}", "cpu", rate, source)
    try:
        rate = float(name)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        known = ", ".join(f"sim:{known_name}" for known_name in SIMULATED)
        raise UsageError(f"there is no simulated device {name!r}", hint=f"{known}, or sim:IMAGES_PER_SECOND")
    return Device("simulated", f"simulated GPU ({rate:g} img/s)", "cpu", rate, "given on the command line")


def make_fast(*, tf32: bool = True) -> None:
    """Set torch for speed: cuDNN tries its algorithms for each shape (training has few); `tf32`: float32 products in TF32."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def make_deterministic() -> None:
    """Make torch compute the same bits every time. This is slower, and operations that cannot do it raise."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it, and reads it once, when it starts
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
