"""Set-up: the lines of the README, the extras, the Dockerfile, other systems, verbs without their extra."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace._native import __version__
from headrace.cli.main import main
from headrace.cli.missing_packages import _EXTRAS, missing_package
from headrace.system.text.install_hints import RELEASES, extra_hint

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
GUIDE = (REPOSITORY / "docs" / "guides" / "install.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("way", ["pip", "uv"])
def test_readme_and_guide_give_the_same_line(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import try_install

    line = try_install.line_of(way, (REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert line == try_install.line_of(way, GUIDE)
    assert re.search(rf"\b{way}\b", line) and "'.[train]'" in line
    subprocess.run(["bash", "-n", "-c", line], check=True)


def test_readme_guide_and_hints_name_the_place_of_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import try_install

    line = try_install.line_of("a release", (REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert line == try_install.line_of("a release", GUIDE)
    command = f"pip install --find-links {RELEASES} 'headrace[train]=={__version__}'"
    assert line.endswith(command) and extra_hint("train").endswith(command)


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import release

    monkeypatch.setattr(sys, "argv", ["release.py", str(tmp_path)])
    for name in ("cp311-abi3-manylinux_2_28_x86_64.whl", "cp311-abi3-manylinux_2_28_aarch64.whl"):
        (tmp_path / f"headrace-{__version__}-{name}").write_text(name)
    (tmp_path / f"headrace-{__version__}.tar.gz").write_text("source")
    return release


def test_a_release_has_checksums_and_the_notes_of_its_version(release: Any, tmp_path: Path) -> None:
    assert release.main() == 0
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 4, done.stdout + done.stderr
    notes = (tmp_path / "NOTES.md").read_text(encoding="utf-8")
    assert notes.startswith(f"## [{__version__}]") and notes.count("\n## ") == 0
    text = "# Changelog\n\n## [Unreleased]\n\n## [2]\n\n- new\n\n## [1]\n\n- old\n"
    assert (release.notes(text, "2"), release.notes(text, "1")) == ("## [2]\n\n- new\n", "## [1]\n\n- old\n")
    with pytest.raises(SystemExit, match=r"no entry \[3\]"):
        release.notes(text, "3")


def test_a_release_is_whole_and_of_one_version(release: Any, tmp_path: Path) -> None:
    (tmp_path / "headrace-0.0.9-cp311-abi3-manylinux_2_28_x86_64.whl").write_text("old")
    with pytest.raises(SystemExit, match="another version than"):
        release.main()
    (tmp_path / "headrace-0.0.9-cp311-abi3-manylinux_2_28_x86_64.whl").unlink()
    (tmp_path / f"headrace-{__version__}.tar.gz").unlink()
    with pytest.raises(SystemExit, match="no source archive"):
        release.main()


def test_the_guide_explains_every_extra() -> None:
    table = re.findall(r"^\| `?(\w+)`? \|", GUIDE.partition("## Extras")[2].partition("##")[0], re.MULTILINE)
    assert set(table) - {"extra", "none"} == set(PROJECT["optional-dependencies"])


def test_every_extra_that_is_named_in_a_hint_exists() -> None:
    named = {extra for _, extra in _EXTRAS.values()}
    for path in [*(REPOSITORY / "python").rglob("*.py"), *(REPOSITORY / "docs").rglob("*.md")]:
        for extras in re.findall(r"(?:headrace|\.)\[([a-z,]+)\]'", path.read_text(encoding="utf-8")):
            named |= set(extras.split(","))
    assert named <= set(PROJECT["optional-dependencies"]) and {"train", "aws", "plot"} <= named


def test_a_package_comes_with_the_extra_that_the_hint_names() -> None:
    distributions = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn", "botocore": "boto3"}
    for module, (_, extra) in _EXTRAS.items():
        listed = " ".join(PROJECT["optional-dependencies"][extra])
        assert distributions.get(module, module) in listed, module


@pytest.mark.parametrize("verb", ["train", "tune", "evaluate"])
def test_without_pytorch_a_verb_names_the_extra_in_one_line(
    verb: str,
    image_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    photos = image_folder()
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] in ("torch", "torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    words = {"evaluate": ["evaluate", "run", "--data", str(photos)]}.get(
        verb, [verb, "--model", "resnet18", "--data", str(photos)]
    )
    assert main(words) == 1
    message, hint = capsys.readouterr().err.strip().splitlines()
    assert "needs PyTorch" in message and "pip install '.[train]'" in hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images"]


def test_other_missing_modules_stay_what_they_are() -> None:
    assert missing_package("train", ModuleNotFoundError("no", name="headrace.absent")) is None
    assert missing_package("train", ModuleNotFoundError("no")) is None
    known = missing_package("export", ModuleNotFoundError("no", name="onnx.helper"))
    assert known is not None and "'.[export]'" in (known.hint or "")


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_other_systems_get_a_sentence_at_import(system: str) -> None:
    code = f"import sys; sys.platform = {system!r}; import headrace"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: headrace runs on Linux only. On Windows use WSL 2, on macOS")


def dockerfile() -> list[str]:
    """The instructions, with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (REPOSITORY / "Dockerfile").read_text())
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_dockerfile_is_well_formed() -> None:
    lines = dockerfile()
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD", "ENV", "ARG"}
    assert all(line.split()[0] in known for line in lines)
    stages = [re.fullmatch(r"FROM (\S+:[\w.-]+)(?: AS (\w+))?", line) for line in lines if line.startswith("FROM")]
    assert len(stages) == 2 and all(stages), "each base image has a fixed tag"
    assert stages[0] is not None and stages[0][2] == "build"
    last = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM")) :]
    user = last.index(next(line for line in last if line.startswith("USER")))
    assert not any(line.startswith("RUN") for line in last[user:]) and last[user] != "USER root"
    assert 'ENTRYPOINT ["headrace"]' in last
    for line in lines:
        if line.startswith("RUN"):
            script = re.sub(r"^RUN (--\S+ )*", "", line)
            subprocess.run(["bash", "-n", "-c", script], check=True)
            assert "apt-get install" not in script or ("--no-install-recommends" in script and "rm -rf /var/lib/apt" in script)
            assert "pip install" not in script or "--no-cache-dir" in script


@pytest.mark.parametrize("name", ["Dockerfile", "examples/sagemaker.Dockerfile"])
def test_hadolint_finds_nothing_in_the_dockerfiles(name: str) -> None:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("no hadolint: the extra `dev` brings it")
    done = subprocess.run([program, str(REPOSITORY / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_dockerfile_copies_what_exists_and_the_image_context_holds() -> None:
    sources = [word for line in dockerfile() if line.startswith("COPY") for word in line.split()[1:-1]]
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for source in sources:
        assert (REPOSITORY / source).exists() and f"!{source}" in ignored, source
    for needed in ("pyproject.toml", "Cargo.toml", "Cargo.lock", "README.md", "crates", "python"):
        assert needed in sources  # what `maturin build` reads
    rust = re.search(r'rust-version = "(\d+)\.(\d+)"', (REPOSITORY / "Cargo.toml").read_text())
    base = re.match(r"FROM rust:(\d+)\.(\d+)", dockerfile()[0])
    assert rust and base and (int(base[1]), int(base[2])) >= (int(rust[1]), int(rust[2]))
    extras = re.search(r"\.whl\)\[([\w,]+)\]", " ".join(dockerfile()))
    assert extras and set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
