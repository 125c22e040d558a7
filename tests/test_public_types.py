"""The types of the public names, as a user's type checker sees them: a right script passes, each wrong line is an error."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import get_overloads

import headrace
import pytest
from headrace.loading.loader import _OtherArguments

RIGHT = """\
import headrace as hr
loader = hr.Loader(hr.open("photos"), 8, hr.transforms.imagenet_train(224), threads=2)
for images, labels in loader:
    reveal_type(images)
    print(images.shape, labels.sum().item(), loader.stats().wait_s)
for pixels, numbers in hr.Loader("photos", 8, hr.transforms.CenterCrop(8), output="numpy"):
    reveal_type(pixels)
    print(pixels.mean(), numbers.max())
for views, _, masks in hr.Loader("photos", 8, hr.transforms.Views([hr.transforms.CenterCrop(8)]), mask="masks"):
    print(views[0].shape, masks.shape)
def step(data: hr.Loader) -> int:
    return len(data)
print(hr.__version__, step(loader), hr.pack("photos", "packed", quality=95).shards)
data = hr.open("photos")
label: int = data[0][1]
print(data.classes[label], data.class_to_idx["cat"] + data.targets[0], loader.classes[0], loader.preview()[1].sum())
print(hr.show_batch(loader, 8, columns=4))
"""
FIVE_LINES = """\
import headrace as hr
loader = hr.Loader("photos", 8, hr.transforms.imagenet_train(224), dtype="float32")
for images, labels in loader:
    print(images.mean().item(), loader.classes[int(labels[0])])
print(loader.stats().wait_s)
"""
FIVE_WRONG_LINES = """\
import headrace as hr
loader = hr.Loader("photos", 8, hr.transforms.imagenet_train(224), dtype="float32")
for images, labels in loader.batches:
    print(images.mean().item(), loader.classes["cat"])
print(loader.stats().waits)
"""
WRONG = """\
import headrace as hr
hr.Loadr
hr.Loader("photos", 8, hr.transforms.CenterCrop(8), shufle=True)
hr.Loader("photos", 8, hr.transforms.CenterCrop(8), output="tensorflow")
hr.Loader("photos", 8, "crop")
hr.Loader("photos")
hr.open(["photos"])
hr.pack("photos", "packed", no_such_option=1)
hr.transforms.RandomResizedCrop(224, scale="large")
hr.transforms.RandomCropp(224)
hr.Loader("photos", 8, hr.transforms.CenterCrop(8), num_workers=4)
hr.open("photos")["cat"]
hr.open("photos").targets[0].upper()
hr.show_batch(7)
"""
LIMIT_S = 400  # reading torch's types takes most of it on a busy machine
FILES = ("right.py", "wrong.py", "five_lines.py", "five_wrong_lines.py")


def run_mypy(folder: Path) -> str:
    return _output([sys.executable, "-m", "mypy", "--strict", "--config-file=", *FILES], folder)


def run_pyright(folder: Path) -> str:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed: pip install 'headrace[dev]'")
    command = [sys.executable, "-m", "pyright"]
    if subprocess.run([*command, "--version"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("pyright does not start: its Node.js is missing")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    return _output([*command, "--pythonpath", sys.executable, *FILES], folder)


def _output(command: list[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False).stdout


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("check", [run_mypy, run_pyright])
def test_type_checkers_know_the_public_names(check: Callable[[Path], str], tmp_path: Path) -> None:
    torch = importlib.util.find_spec("torch") is not None
    for name, text in zip(FILES, (RIGHT, WRONG, FIVE_LINES, FIVE_WRONG_LINES), strict=True):
        (tmp_path / name).write_text(text)
    output = check(tmp_path)
    found = re.findall(r"(\w+)\.py:(\d+).*?(error)", output)
    assert not [one for one in found if one[0] in ("right", "five_lines")], output
    assert {int(line) for name, line, _ in found if name == "wrong"} == set(range(2, WRONG.count("\n") + 1)), output
    assert {int(line) for name, line, _ in found if name == "five_wrong_lines"} == {3, 4, 5}, output
    revealed = re.findall(r"right\.py:(\d+).*[Tt]ype (?:of \"\w+\" )?is \"(.*)\"", output)
    images, pixels = (dict(revealed)[line] for line in ("4", "7"))
    assert images.rpartition(".")[2] == ("Tensor" if torch else "Any"), output
    assert "ndarray" in pixels, output


def test_each_overload_of_the_loader_takes_every_argument() -> None:
    names = set(inspect.signature(headrace.Loader).parameters)
    overloads = get_overloads(headrace.Loader.__init__)
    assert len(overloads) == 4
    for overload in overloads:
        own = set(inspect.signature(overload).parameters) - {"self", "others"}
        assert not own & set(_OtherArguments.__annotations__) and own | set(_OtherArguments.__annotations__) == names


def test_dir_lists_the_public_names_only() -> None:
    assert dir(headrace) == sorted(headrace.__all__)
    assert all(getattr(headrace, name) is not None for name in dir(headrace))
    with pytest.raises(AttributeError, match="Loadr"):
        headrace.Loadr  # type: ignore[attr-defined]  # noqa: B018


def test_public_functions_bear_their_public_names() -> None:
    functions = [name for name in headrace.__all__ if callable(getattr(headrace, name))]
    assert {"Dataset", "Loader", "open", "pack", "verify", "watch"} <= set(functions)
    for name in functions:
        assert getattr(headrace, name).__name__ == name
        assert getattr(headrace, name).__doc__


def test_version_is_that_of_the_package() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", headrace.__version__)
    try:
        installed = metadata.version("headrace")
    except metadata.PackageNotFoundError:
        pytest.skip("headrace is not installed as a package")
    assert headrace.__version__ == installed
