"""Whether headrace runs in an image: by AWS's table of its images, for others by what their tag names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from headrace.errors import UsageError
from headrace.launch.sagemaker.image_table import IMAGES, MADE, Framework, Image, images_named

__all__ = ["Needs", "check_image", "check_processor", "check_versions", "image_of"]

LEAST_PYTHON, LEAST_TORCH = (3, 11), (2, 4)
"""headrace's own requirements (pyproject.toml)."""

Needs = Literal["run", "diagnose", "plain"]
"""What is to run there: a script under `headrace run`, which needs PyTorch, or under `headrace diagnose`, or as it is."""

_PYTHON = re.compile(r":[^/]*-py3(\d+)(?:-|$)")
"""The Python that the tag of an image names, as AWS's for all frameworks do."""

_TAG = re.compile(
    r"/(?P<family>huggingface-pytorch|pytorch|tensorflow)-training:(?P<version>\d+\.\d+(?:\.\d+)?)"
    r"(?:-transformers(?P<transformers>[\d.]+))?-(?:cpu|gpu)-py3(?P<python>\d+)"
    r"(?:-cu\d+)?(?:-(?P<system>(?:ubuntu|amzn)[\d.]+))?(?:-|$)"
)
_FAMILIES: Mapping[str, Framework] = {"huggingface-pytorch": "huggingface", "pytorch": "pytorch", "tensorflow": "tensorflow"}
_ARM = re.compile(r"ml\.(?:[a-z]+\d+g[a-z]*)\.")


def image_of(uri: str) -> Image | None:
    """Return what the tag of one of AWS's images says, with the system from the table where the tag names none.

    None for another image.
    """
    found = _TAG.search(uri)
    if found is None:
        return None
    framework = _FAMILIES[found["family"]]
    known = next(images_named(framework, found["version"]), None)
    system = found["system"] or (known.system if known else None)
    return Image(framework, found["version"], (3, int(found["python"])), system, found["transformers"])


def check_image(uri: str, instances: list[str], *, glibc: tuple[int, int], machine: str, needs: Needs = "run") -> str | None:
    """Return a remark on an image that cannot be judged, or None. Raises `UsageError` where headrace cannot run.

    glibc: what the travelling libraries need. machine: the processor that they are for, as `platform.machine()` names it.
    """
    check_processor(instances, machine)
    image, named = image_of(uri), _PYTHON.search(uri)
    if image is not None:
        _refuse(image, f"{uri} has", glibc, needs)
        return None
    if named is not None and (3, int(named[1])) < LEAST_PYTHON:
        words = f"{uri} has Python 3.{named[1]}, and headrace needs {_text(LEAST_PYTHON)}"
        raise UsageError(words, hint=_fitting("pytorch", glibc, needs))
    return (
        f"{uri} is not one of AWS's images: it needs Python {_text(LEAST_PYTHON)}, torch {_text(LEAST_TORCH)} and "
        f"glibc {_text(glibc)}, or newer"
    )


def check_processor(instances: list[str], machine: str) -> None:
    """Raise `UsageError` for an instance type with another processor than `machine`."""
    for instance in instances:
        if bool(_ARM.match(instance)) != (machine == "aarch64"):
            raise UsageError(
                f"headrace travels to {instance} as built here, for {machine}, and that instance has another processor",
                hint="launch from a machine with the same processor, or choose another instance type",
            )


def check_versions(
    framework: Framework, version: str, python: str, *, glibc: tuple[int, int], needs: Needs = "run", transformers: str = ""
) -> None:
    """Raise `UsageError` where the versions of an estimator name an image that headrace cannot run in.

    version: of torch or of TensorFlow. python: as `py312`. transformers: of Hugging Face's estimator. Of a version that the
    table lacks, the numbers count.
    """
    minor = re.fullmatch(r"py3(\d+)", python)
    if minor is None or re.match(r"\d+\.\d+", version) is None:
        return
    known = next(images_named(framework, version), None)
    image = Image(framework, version, (3, int(minor[1])), known.system if known else None, transformers or None)
    _refuse(image, f"{image.arguments()} is an image with", glibc, needs)


def _refuse(image: Image, has: str, glibc: tuple[int, int], needs: Needs) -> None:
    """Raise `UsageError` with the images that work, if this one does not. has: the first words of the message."""
    if needs == "run" and image.torch is None:
        raise UsageError(f'{has} TensorFlow, and "run" is for PyTorch', hint='"diagnose" measures such a job')
    if lacks := _lacks(image, glibc, needs):
        raise UsageError(f"{has} {lacks}", hint=_fitting(image.framework, glibc, needs))


def _lacks(image: Image, glibc: tuple[int, int], needs: Needs) -> str:
    """Return what is too old in an image, in words; "" if nothing is."""
    if image.python < LEAST_PYTHON:
        return f"Python {_text(image.python)}, and headrace needs {_text(LEAST_PYTHON)}"
    if needs != "plain" and image.torch is not None and image.torch < LEAST_TORCH:
        return f"torch {_text(image.torch)}, and headrace needs {_text(LEAST_TORCH)}"
    if image.glibc is not None and image.glibc < glibc:
        return f"glibc {_text(image.glibc)} ({image.system}), and headrace as built here needs {_text(glibc)}"
    return ""


def _fitting(framework: Framework, glibc: tuple[int, int], needs: Needs) -> str:
    """Return the images of a framework that work, in words: arguments for the newest, versions of the others."""
    fits = [image for image in reversed(IMAGES) if image.framework == framework and not _lacks(image, glibc, needs)]
    named = [image for image in fits if image.in_sdk]
    if not named:
        return "headrace built by `make wheel` needs glibc 2.28: install that wheel here, and launch again"
    others = [_version(image) for image in named[1:]] + [
        f"{_version(image)} by image_uri" for image in fits if not image.in_sdk
    ]
    more = f"; so do {', '.join(others)}" if others else ""
    return f"{named[0].arguments()} works{more} (AWS's images of {MADE})"


def _version(image: Image) -> str:
    with_transformers = f" with transformers {image.transformers}" if image.transformers else ""
    return f"{image.version} (py3{image.python[1]}){with_transformers}"


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
