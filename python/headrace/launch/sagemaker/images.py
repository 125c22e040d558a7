"""AWS's PyTorch images: what a tag says of Python, torch and the C library, and whether headrace runs there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.errors import UsageError

__all__ = ["Image", "check_image", "check_processor", "check_versions", "image_of"]

LEAST_PYTHON, LEAST_TORCH = (3, 11), (2, 4)
"""headrace's own requirements (pyproject.toml)."""

GLIBC = {"ubuntu20.04": (2, 31), "ubuntu22.04": (2, 35), "ubuntu24.04": (2, 39), "amzn2023": (2, 34)}
"""Version of the C library of each system (packages.ubuntu.com, docs.aws.amazon.com/linux/al2023; November 2026)."""

FITTING = "2.4 and 2.5.1 with py311, 2.6 to 2.8 with py312"
"""The PyTorch images that headrace runs in: `image_uri_config/pytorch.json` of SageMaker's SDK 2.257.7, August 2026."""

_PYTHON = re.compile(r":[^/]*-py3(\d+)-")
"""The Python that the tag of an image names, as AWS's for all frameworks do."""

_TAG = re.compile(
    r"/(?:huggingface-)?pytorch-training:(?P<torch>\d+\.\d+)(?:\.\d+)?-(?:cpu|gpu)-py(?P<major>3)(?P<minor>\d+)(?:-\w+)?-(?P<system>[a-z]+[\d.]+)"
)
_ARM = re.compile(r"ml\.(?:[a-z]+\d+g[a-z]*)\.")


@dataclass(frozen=True, slots=True)
class Image:
    """What is in an image: versions of Python and torch, and of glibc where its system is known."""

    python: tuple[int, int]
    torch: tuple[int, int]
    system: str
    glibc: tuple[int, int] | None


def image_of(uri: str) -> Image | None:
    """Return what the tag of one of AWS's PyTorch images says; None for another image."""
    found = _TAG.search(uri)
    if found is None:
        return None
    major, minor = map(int, found["torch"].split("."))
    return Image((int(found["major"]), int(found["minor"])), (major, minor), found["system"], GLIBC.get(found["system"]))


def check_image(uri: str, instances: list[str], *, glibc: tuple[int, int], machine: str) -> str | None:
    """Return a remark on an image that cannot be judged, or None. Raises `UsageError` where headrace cannot run.

    glibc: what the travelling libraries need. machine: the processor that they are for, as `platform.machine()` names it.
    """
    check_processor(instances, machine)
    image, named = image_of(uri), _PYTHON.search(uri)
    if named is not None and (3, int(named[1])) < LEAST_PYTHON:
        words = f"{uri} has Python 3.{named[1]}, and headrace needs {_text(LEAST_PYTHON)}"
        raise UsageError(words, hint=f"PyTorch images that work: {FITTING}")
    if image is None:
        return (
            f"{uri} is not one of AWS's PyTorch images: it needs Python {_text(LEAST_PYTHON)}, torch {_text(LEAST_TORCH)} and "
            f"glibc {_text(glibc)}, or newer"
        )
    lacks = _lacks(image.python, image.torch)
    if image.glibc is not None and image.glibc < glibc:
        lacks.append(f"glibc {_text(image.glibc)} ({image.system}), and headrace as built here needs {_text(glibc)}")
    if lacks:
        raise UsageError(f"{uri} has {lacks[0]}", hint=f"PyTorch images that work: {FITTING}")
    return None


def check_processor(instances: list[str], machine: str) -> None:
    """Raise `UsageError` for an instance type with another processor than `machine`."""
    for instance in instances:
        if bool(_ARM.match(instance)) != (machine == "aarch64"):
            raise UsageError(
                f"headrace travels to {instance} as built here, for {machine}, and that instance has another processor",
                hint="launch from a machine with the same processor, or choose another instance type",
            )


def check_versions(torch: str | None, python: str) -> None:
    """Raise `UsageError` where a `framework_version` and a `py_version` name an image that headrace cannot run in.

    torch: None for an image of another framework, of which Python alone counts.
    """
    numbers, minor = re.findall(r"\d+", torch or ""), re.fullmatch(r"py3(\d+)", python)
    if minor is None or (torch is not None and len(numbers) < 2):
        return
    version = LEAST_TORCH if torch is None else (int(numbers[0]), int(numbers[1]))
    if lacks := _lacks((3, int(minor[1])), version):
        raise UsageError(
            f"framework_version={torch!r}, py_version={python!r} is an image with {lacks[0]}",
            hint=f'framework_version="2.8.0", py_version="py312" works; so do {FITTING}',
        )


def _lacks(python: tuple[int, int], torch: tuple[int, int]) -> list[str]:
    return [
        f"{name} {_text(has)}, and headrace needs {_text(needs)}"
        for name, has, needs in (("Python", python, LEAST_PYTHON), ("torch", torch, LEAST_TORCH))
        if has < needs
    ]


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
