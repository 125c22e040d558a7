"""Errors for missing packages: they name the extra of headrace that installs the package."""

from __future__ import annotations

from headrace.errors import MissingDependencyError
from headrace.system.text.install_hints import extra_hint

__all__ = ["missing_package"]

# Module → its name in prose, and the extra of pyproject.toml that installs it.
_EXTRAS = {
    "PIL": ("Pillow", "train"),
    "boto3": ("boto3", "aws"),
    "botocore": ("boto3", "aws"),
    "matplotlib": ("matplotlib", "plot"),
    "obstore": ("obstore", "aws"),
    "onnx": ("onnx", "export"),
    "onnxscript": ("onnxscript", "export"),
    "ray": ("Ray", "ray"),
    "skimage": ("scikit-image", "demo"),
    "sklearn": ("scikit-learn", "demo"),
    "torch": ("PyTorch", "train"),
    "torchvision": ("torchvision", "train"),
}


def missing_package(verb: str, error: ModuleNotFoundError) -> MissingDependencyError | None:
    """Return an error that names the extra to install; None if no extra of headrace installs the missing module.

    Example: `missing_package("train", error).hint` is `extra_hint("train")` where torch is absent.
    """
    found = _EXTRAS.get((error.name or "").partition(".")[0])
    if found is None:
        return None
    package, extra = found
    return MissingDependencyError(f"headrace {verb} needs {package}", hint=extra_hint(extra))
