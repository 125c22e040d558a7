"""Versions of Python, NumPy, torch and other packages, and the facts of torch's build.

A child process imports torch: the import takes seconds and hundreds of megabytes, and a broken CUDA installation may crash the
process.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import dataclass, fields
from importlib import metadata

from headrace.system.processes.own_python import own_text

__all__ = ["Software", "Torch", "read_software", "read_torch"]

TIMEOUT_S = 120.0
OPTIONAL_PACKAGES = ("numpy", "pillow", "timm", "safetensors", "boto3", "ray", "nvidia-dali-cuda120")

# Source of the child process that imports torch and prints its facts as one JSON object.
SCRIPT = """
import json, warnings
warnings.simplefilter("ignore")
import torch
facts = {
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
    "nccl": None, "architectures": [], "available": False, "devices": 0, "error": None, "torchvision": None,
    "torchvision_error": None, "threads": torch.get_num_threads(),
}
try:
    if torch.version.cuda and torch.distributed.is_nccl_available():
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    facts["architectures"] = torch._C._cuda_getArchFlags().split() if torch.version.cuda else []
    facts["devices"] = torch.cuda.device_count()
    torch.cuda.init()
    facts["available"] = torch.cuda.is_available()
except Exception as error:
    facts["error"] = (str(error).splitlines() or [type(error).__name__])[0]
try:
    import torchvision
    facts["torchvision"] = torchvision.__version__
except Exception as error:
    facts["torchvision_error"] = (str(error).splitlines() or [type(error).__name__])[0]
print("headrace-facts:" + json.dumps(facts))
"""


@dataclass(frozen=True, slots=True)
class Torch:
    """Version, build and devices of the installed torch, as torch reports them.

    `cuda`: the CUDA version of the build, None for a CPU build. `architectures`: the GPU architectures of the build, `sm_XY`
    (machine code) and `compute_XY` (portable code). `available`: whether CUDA could be initialised; `error`: why not.
    """

    version: str
    cuda: str | None
    hip: str | None
    cudnn: int | None
    nccl: str | None
    architectures: tuple[str, ...]
    available: bool
    devices: int
    error: str | None
    torchvision: str | None
    torchvision_error: str | None
    threads: int


@dataclass(frozen=True, slots=True)
class Software:
    """The versions on this machine. `torch` is None if it cannot be imported; `torch_error` is the reason, or None."""

    headrace: str
    python: str
    executable: str
    system: str
    packages: dict[str, str | None]
    torch: Torch | None
    torch_error: str | None


def read_software(headrace_version: str, *, python: str = sys.executable) -> Software:
    """Return the versions of Python, headrace and its packages. Takes seconds: a child process imports torch."""
    torch, error = read_torch(python)
    return Software(
        headrace=headrace_version,
        python=platform.python_version(),
        executable=python,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages={name: _version(name) for name in OPTIONAL_PACKAGES},
        torch=torch,
        torch_error=error,
    )


def read_torch(python: str = sys.executable) -> tuple[Torch | None, str | None]:
    """Return torch's facts, or None and the reason. The reason is None if torch is not installed."""
    try:
        done = subprocess.run(own_text(SCRIPT, python=python), capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, f"importing torch took more than {TIMEOUT_S:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith("headrace-facts:"):
            facts = json.loads(line.removeprefix("headrace-facts:"))
            facts["architectures"] = tuple(facts["architectures"])
            return Torch(**{field.name: facts[field.name] for field in fields(Torch)}), None
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if "No module named 'torch'" in last:
        return None, None
    return None, last


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
