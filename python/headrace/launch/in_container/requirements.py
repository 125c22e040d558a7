"""Install what a script's `requirements.txt` asks for, into a folder of the job: this Python stays as it is."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.system.processes.own_python import own_module

__all__ = ["FILE", "install_requirements"]

FILE = "requirements.txt"

_PINNED = ".headrace-requirements.txt"
_OPTION = re.compile(r"\s*-(?!e\b|-editable|r\b|-requirement|c\b|-constraint)")

_PIP = own_module("pip", "--disable-pip-version-check", "install", "--quiet", "--no-input")


def install_requirements(folder: Path, target: Path, environment: Mapping[str, str]) -> list[str]:
    """Install into `target` what the file in `folder` asks for and this Python lacks. Return the names and versions.

    pip first tells what it would install: a package that is there in a version that fits is not installed again. Raises
    `HeadraceError` with pip's words.
    """
    report = _run(["--dry-run", "--report", "-", "--requirement", FILE], folder, environment)
    try:
        wanted = [_requirement(one) for one in json.loads(report)["install"]]
    except (ValueError, KeyError, TypeError) as error:
        raise HeadraceError(f"cannot install {FILE}: pip's report is not understood ({error!r})") from None
    if wanted:
        lines = (folder / FILE).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        options = [line for line in lines if _OPTION.match(line)]  # where packages come from
        (folder / _PINNED).write_text("\n".join([*options, *wanted]), encoding="utf-8", errors="surrogateescape")
        _run(["--no-deps", "--target", str(target), "--requirement", _PINNED], folder, environment)
    return wanted


def _requirement(found: Mapping[str, Any]) -> str:
    name, version = found["metadata"]["name"], found["metadata"]["version"]
    return f"{name} @ {found['download_info']['url']}" if found.get("is_direct") else f"{name}=={version}"


def _run(words: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run([*_PIP, *words], cwd=folder, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "pip failed")
        hint = "install pip in this environment" if "No module named pip" in done.stderr else f"see {FILE} beside the script"
        raise HeadraceError(f"cannot install {FILE}: {why.removeprefix('ERROR: ')}", hint=hint)
    return done.stdout
