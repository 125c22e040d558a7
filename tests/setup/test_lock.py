"""requirements.lock holds a version for every requirement of what setup installs, within the bounds of pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

packaging = pytest.importorskip("packaging.requirements")
REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
LOCKED = ("dev", "demo", "site")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, str]:
    """The version of each package, by its canonical name. Several lines of a package: the first for this Python."""
    found: dict[str, str] = {}
    for line in (REPOSITORY / "requirements.lock").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = packaging.Requirement(line)
            (pin,) = requirement.specifier
            assert pin.operator == "==", line
            if requirement.marker is None or requirement.marker.evaluate():
                found.setdefault(canonical(requirement.name), pin.version)
    return found


def required(extra: str) -> list[str]:
    command = [sys.executable, str(REPOSITORY / "scripts" / "requirements.py"), extra]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("extra", LOCKED)
def test_the_lock_satisfies_every_requirement(extra: str) -> None:
    pins = locked()
    lines = required(extra)
    assert len(lines) > 3
    for line in lines:
        requirement = packaging.Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        assert requirement.specifier.contains(pins[canonical(requirement.name)], prereleases=True), (
            f"{line}: {pins.get(canonical(requirement.name))} is locked; run scripts/lock.sh"
        )


def test_setup_installs_the_locked_versions_again_when_the_lock_changes() -> None:
    script = (REPOSITORY / "scripts" / "setup.sh").read_text()
    (install,) = [line for line in script.splitlines() if "-r .venv/requirements.txt" in line]
    assert "-c requirements.lock" in install
    assert "requirements.lock -nt" in script
    used = set(re.findall(r"scripts/setup\.sh (\w+)", (REPOSITORY / "Makefile").read_text()))
    assert used <= set(LOCKED) and "dev" in used


def test_what_a_user_installs_has_an_upper_bound() -> None:
    users = ("train", "aws", "gpu", "plot", "export", "ray")
    lines = PROJECT["dependencies"] + [
        line for extra in users for line in PROJECT["optional-dependencies"][extra] if "headrace[" not in line
    ]
    assert len(lines) >= 11
    for line in lines:
        operators = {one.operator for one in packaging.Requirement(line).specifier}
        assert operators & {"<", "==", "~="} and ">=" in operators, f"{line}: from which version on, and below which?"
