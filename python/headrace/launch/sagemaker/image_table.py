"""A table of AWS's images for training on SageMaker: framework, its version, Python, torch and the C library of each.

Made on 2026-11-28 from `image_uri_config/*.json` of SageMaker's SDK 2.257.1 (versions, Pythons, systems of Hugging Face's
images), and from `available_images.md` and the release notes of github.com/aws/deep-learning-containers (systems of the others,
and the images that the SDK does not name yet).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["GLIBC", "IMAGES", "MADE", "Framework", "Image", "images_named"]

Framework = Literal["pytorch", "huggingface", "tensorflow"]
"""The SDK's names: `PyTorch(…)`, `HuggingFace(pytorch_version=…)`, `TensorFlow(…)`."""

MADE = "2026-11-28"
"""The day on which the table was made."""

GLIBC = {"ubuntu20.04": (2, 31), "ubuntu22.04": (2, 35), "ubuntu24.04": (2, 39), "amzn2023": (2, 34)}
"""Version of the C library of each system (packages.ubuntu.com, docs.aws.amazon.com/linux/al2023; November 2026)."""


@dataclass(frozen=True, slots=True)
class Image:
    """What is in an image. version: of torch, or of TensorFlow. python: 3.N. system: None if not known.

    transformers: version of Hugging Face's library. in_sdk: whether `framework_version` (for Hugging Face `pytorch_version`) of
    the SDK finds it; else only its address does.
    """

    framework: Framework
    version: str
    python: tuple[int, int]
    system: str | None
    transformers: str | None = None
    in_sdk: bool = True

    @property
    def torch(self) -> tuple[int, int] | None:
        """The version of torch; None for TensorFlow."""
        if self.framework == "tensorflow":
            return None
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The version of the C library; None if the system is not known."""
        return GLIBC.get(self.system or "")

    def arguments(self) -> str:
        """Return the arguments of an estimator that name the image."""
        transformers = f'transformers_version="{self.transformers}", ' if self.transformers else ""
        name = "pytorch_version" if self.transformers else "framework_version"
        return f'{transformers}{name}="{self.version}", py_version="py3{self.python[1]}"'


_20, _22 = "ubuntu20.04", "ubuntu22.04"

IMAGES = (
    Image("pytorch", "1.13.1", (3, 9), _20),
    Image("pytorch", "2.0.0", (3, 10), _20),
    Image("pytorch", "2.0.1", (3, 10), _20),
    Image("pytorch", "2.1.0", (3, 10), _20),
    Image("pytorch", "2.2.0", (3, 10), _20),
    Image("pytorch", "2.3.0", (3, 11), _20),
    Image("pytorch", "2.4.0", (3, 11), _22),
    Image("pytorch", "2.5.1", (3, 11), _22),
    Image("pytorch", "2.6.0", (3, 12), _22),
    Image("pytorch", "2.7.1", (3, 12), _22),
    Image("pytorch", "2.8.0", (3, 12), _22),
    Image("pytorch", "2.9.0", (3, 12), _22, in_sdk=False),
    Image("huggingface", "1.13.1", (3, 9), _20, "4.26.0"),
    Image("huggingface", "2.0.0", (3, 10), _20, "4.28.1"),
    Image("huggingface", "2.1.0", (3, 10), _20, "4.36.0"),
    Image("huggingface", "2.3.0", (3, 11), _20, "4.46.1"),
    Image("huggingface", "2.3.0", (3, 11), _20, "4.48.0"),
    Image("huggingface", "2.5.1", (3, 11), _22, "4.49.0"),
    Image("huggingface", "2.7.1", (3, 12), _22, "4.55.0"),
    Image("huggingface", "2.8.0", (3, 12), _22, "4.56.2"),
    Image("huggingface", "2.9.0", (3, 12), _22, "5.3.0", in_sdk=False),
    Image("tensorflow", "2.11.0", (3, 9), _20),
    Image("tensorflow", "2.12.0", (3, 10), _20),
    Image("tensorflow", "2.13.0", (3, 10), _20),
    Image("tensorflow", "2.14.1", (3, 10), _20),
    Image("tensorflow", "2.16.2", (3, 10), _20),
    Image("tensorflow", "2.18.0", (3, 10), _22),
    Image("tensorflow", "2.19.0", (3, 12), _22),
)
"""The images of each framework, oldest first; older ones have an older Python. AWS has none for Graviton's training jobs."""


def images_named(framework: Framework, version: str) -> Iterator[Image]:
    """Yield the table's images of a version, newest first: of `2.8` those of 2.8.0."""
    for image in reversed(IMAGES):
        if image.framework == framework and f"{image.version}.".startswith(f"{version}."):
            yield image
