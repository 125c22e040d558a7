"""Which images headrace can run in is told before a job is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.errors import UsageError
from headrace.launch.job_request.request import IMAGE_TAG, training_image
from headrace.launch.sagemaker.image_table import IMAGES, MADE
from headrace.launch.sagemaker.images import check_image, check_versions, image_of

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
    assert 'framework_version="2.8.0", py_version="py312" works; so do 2.7.1 (py312), 2.6.0 (py312), ' in str(raised.value.hint)


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
        check_image(uri, ["ml.g5.xlarge"], glibc=(2, 35), machine="x86_64", needs="diagnose")


@pytest.mark.parametrize(
    "tag, system",
    [
        ("2.8.0-gpu-py312", "ubuntu22.04"), ("2.3-cpu-py311", "ubuntu20.04"),
        ("2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker-v1.12-2025-07-15-19-53-45", "ubuntu22.04"), ("9.0.0-gpu-py399", None),
    ],
)  # fmt: skip
def test_the_table_has_the_system_of_the_sdks_short_tags(tag: str, system: str | None) -> None:
    image = image_of(f"{AWS}:{tag}")
    assert image is not None and image.system == system


def test_glibc_of_a_short_tag_and_of_versions_comes_from_the_table() -> None:
    with pytest.raises(UsageError, match=r"glibc 2\.35 \(ubuntu22\.04\), and headrace as built here needs 2\.39") as raised:
        check_image(f"{AWS}:2.8.0-gpu-py312", ["ml.g5.xlarge"], glibc=(2, 39), machine="x86_64")
    assert "make wheel" in str(raised.value.hint), "no image of AWS's has it: the library has to be an older one"
    with pytest.raises(UsageError, match=r'framework_version="2\.8", py_version="py312" is an image with glibc 2\.35'):
        check_versions("pytorch", "2.8", "py312", glibc=(2, 39))
    check_versions("pytorch", "2.8", "py312", glibc=(2, 35))


def test_an_estimator_of_hugging_face_is_told_its_own_versions() -> None:
    with pytest.raises(UsageError, match=r'transformers_version="4\.36\.0", pytorch_version="2\.1\.0".*Python 3\.10') as raised:
        check_versions("huggingface", "2.1.0", "py310", glibc=(2, 28), transformers="4.36.0")
    assert 'transformers_version="4.56.2", pytorch_version="2.8.0", py_version="py312" works' in str(raised.value.hint)


def test_tensorflow_is_refused_under_run_and_judged_under_diagnose() -> None:
    uri = "763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:{}-sagemaker"
    new, old = uri.format("2.19.0-gpu-py312-cu125-ubuntu22.04"), uri.format("2.18.0-gpu-py310-cu125-ubuntu22.04")
    with pytest.raises(UsageError, match='has TensorFlow, and "run" is for PyTorch') as raised:
        check_image(new, ["ml.g5.xlarge"], glibc=(2, 28), machine="x86_64", needs="run")
    assert "diagnose" in str(raised.value.hint)
    assert check_image(new, ["ml.g5.xlarge"], glibc=(2, 28), machine="x86_64", needs="diagnose") is None
    with pytest.raises(UsageError, match=r"Python 3\.10") as raised:
        check_image(old, ["ml.g5.xlarge"], glibc=(2, 28), machine="x86_64", needs="diagnose")
    assert 'framework_version="2.19.0", py_version="py312" works (AWS' in str(raised.value.hint)


def test_a_script_as_it_is_needs_no_torch_of_ours() -> None:
    uri = f"{AWS}:2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker"
    assert check_image(uri, ["ml.g5.xlarge"], glibc=(2, 28), machine="x86_64", needs="plain") is None


def test_our_own_requests_name_images_of_the_table() -> None:
    for instance in ("ml.g5.xlarge", "ml.m5.xlarge"):
        assert check_image(training_image("us-east-1", instance), [instance], glibc=(2, 35), machine="x86_64") is None
    assert IMAGE_TAG["gpu"].split("-")[0] in {image.version for image in IMAGES if image.framework == "pytorch"}


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "launch.md").read_text(encoding="utf-8")
    assert MADE in page
    names = {"pytorch": "PyTorch", "huggingface": "Hugging Face", "tensorflow": "TensorFlow"}
    for image in IMAGES:
        version = f"{image.version} with transformers {image.transformers}" if image.transformers else image.version
        glibc = "{}.{}".format(*image.glibc) if image.glibc else ""
        assert f"| {names[image.framework]} {version} | 3.{image.python[1]} | {image.system} | {glibc} |" in page


LAUNCH = ["launch", "sagemaker", "--model", "resnet50", "--data", "s3://bucket/train", "--instance", "ml.g5.xlarge", "--role",
          "arn:aws:iam::123456789012:role/r", "--bucket", "bucket", "--dry-run"]  # fmt: skip


@pytest.mark.parametrize(
    "tag, wheel, words",
    [
        ("2.1.0-gpu-py310-cu121-ubuntu20.04-sagemaker", None, "Python 3.10"),
        ("2.8.0-gpu-py312", "headrace-0.1.0-cp311-abi3-manylinux_2_39_x86_64.whl", "glibc 2.35"),
        ("2.8.0-gpu-py312", "headrace-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl", None),
    ],
)
def test_a_request_of_headrace_train_is_judged_too(
    capsys: pytest.CaptureFixture[str], tag: str, wheel: str | None, words: str | None
) -> None:
    pytest.importorskip("botocore")
    code = main([*LAUNCH, "--image", f"{AWS}:{tag}", *(["--wheel", wheel] if wheel else [])])
    assert (code == 0) is (words is None)
    assert words is None or words in capsys.readouterr().err
