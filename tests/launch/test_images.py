"""Which images headrace can run in is told before a job is sent."""

from __future__ import annotations

import pytest
from headrace.errors import UsageError
from headrace.launch.sagemaker.images import check_image

AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training"


@pytest.mark.parametrize(
    "tag",
    [
        "2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker", "2.5.1-cpu-py311-ubuntu22.04-sagemaker",
        "2.4.0-gpu-py311-cu124-ubuntu22.04-sagemaker",
    ],
)  # fmt: skip
def test_images_that_work_pass(tag: str) -> None:
    assert check_image(f"{AWS}:{tag}", ["ml.g5.xlarge"], glibc=(2, 35), machine="x86_64") is None


@pytest.mark.parametrize(
    "tag, words",
    [
        ("2.1.0-gpu-py310-cu121-ubuntu20.04-sagemaker", r"has Python 3\.10, and headrace needs 3\.11"),
        ("2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker", r"has torch 2\.3, and headrace needs 2\.4"),
        (
            "2.4.0-gpu-py311-cu124-ubuntu20.04-sagemaker",
            r"has glibc 2\.31 \(ubuntu20\.04\), and .* needs 2\.35",
        ),
    ],
)
def test_images_that_cannot_work_are_refused_with_those_that_can(tag: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        check_image(f"{AWS}:{tag}", ["ml.g5.xlarge"], glibc=(2, 35), machine="x86_64")
    assert "2.6 to 2.8 with py312" in str(raised.value.hint)


def test_an_image_of_somebody_else_gets_a_remark() -> None:
    remark = check_image("123.dkr.ecr.us-east-1.amazonaws.com/mine:1", ["ml.g5.xlarge"], glibc=(2, 35), machine="x86_64")
    assert remark is not None and "glibc 2.35" in remark


@pytest.mark.parametrize(
    "instance, machine, fits",
    [
        ("ml.g5g.xlarge", "x86_64", False), ("ml.c7g.large", "aarch64", True),
        ("ml.g5.xlarge", "aarch64", False), ("ml.p4d.24xlarge", "x86_64", True),
    ],
)  # fmt: skip
def test_the_processor_must_be_that_of_the_library(instance: str, machine: str, fits: bool) -> None:
    uri = f"{AWS}:2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker"
    if fits:
        assert check_image(uri, [instance], glibc=(2, 35), machine=machine) is None
        return
    with pytest.raises(UsageError, match="another processor"):
        check_image(uri, [instance], glibc=(2, 35), machine=machine)


@pytest.mark.parametrize("framework", ["huggingface-pytorch-training", "tensorflow-training", "mine"])
def test_an_image_whose_tag_names_an_older_python_is_refused(framework: str) -> None:
    uri = f"1.dkr.ecr.us-east-1.amazonaws.com/{framework}:2.1.0-transformers4.36.0-gpu-py310-cu121-ubuntu20.04"
    with pytest.raises(UsageError, match=r"Python 3\.10, and headrace needs 3\.11"):
        check_image(uri, ["ml.g5.xlarge"], glibc=(2, 35), machine="x86_64")
