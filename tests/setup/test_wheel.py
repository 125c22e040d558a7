"""The wheel holds every file of the package, also those that no import misses: the CUDA source is compiled at run time."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CUDA_SOURCE = "headrace/gpu/decoder/decode.cuh"

MANIFEST = """
[package]
name = "headrace"
version = "0.0.1"
edition = "2021"
[workspace]
"""


def tracked(folder: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


def test_a_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    """maturin packs the Python files by the settings of pyproject.toml; an empty program stands in for the native module."""
    maturin = Path(sys.executable).parent / "maturin"
    if not maturin.exists() or shutil.which("cargo") is None or not (ROOT / ".git").exists():
        pytest.skip("needs maturin, cargo and the repository")
    for name in [*tracked("python"), ".gitignore", "README.md"]:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    module = 'manifest-path = "crates/headrace-py/Cargo.toml"\n'
    command = 'headrace = "headrace.cli.main:main"\n'  # maturin takes no commands beside a program
    assert module in settings and command in settings
    settings = settings.replace(module, 'bindings = "bin"\n').replace(command, "")
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    (tmp_path / "Cargo.toml").write_text(MANIFEST, encoding="utf-8")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.rs").write_text("fn main() {}\n", encoding="utf-8")
    build = [maturin, "build", "--offline", "--out", "dist", "--compatibility", "linux"]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    [wheel] = (tmp_path / "dist").glob("*.whl")
    packed = zipfile.ZipFile(wheel)
    missing = {name.removeprefix("python/") for name in tracked("python")} - set(packed.namelist())
    assert not missing
    assert b"__global__" in packed.read(CUDA_SOURCE)


def test_the_cuda_source_stands_beside_the_code_that_compiles_it() -> None:
    from headrace.gpu.decoder.arguments import SOURCE

    assert SOURCE.is_file() and SOURCE.as_posix().endswith(CUDA_SOURCE)
