"""Install what a script's `requirements.txt` asks for, into a folder of the job: this Python stays as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.system.processes.own_python import own_module
from headrace.system.text.redaction import redact_text

__all__ = ["FILE", "install_requirements"]

FILE = "requirements.txt"

_PINNED = ".headrace-requirements.txt"
_OPTION = re.compile(r"\s*-(?!e\b|-editable|-require-hashes)")
_INCLUDED = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[ =]?\s*(\S+)")

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
        options = [line for line in _lines(folder / FILE, set()) if _OPTION.match(line)]  # where packages come from
        (folder / _PINNED).write_text("\n".join([*options, *wanted]), encoding="utf-8", errors="surrogateescape")
        _run(["--no-deps", "--target", str(target), "--requirement", _PINNED], folder, environment)
    return wanted


def _requirement(found: Mapping[str, Any]) -> str:
    name, version = found["metadata"]["name"], found["metadata"]["version"]
    if not found.get("is_direct"):
        return f"{name}=={version}"
    source = found["download_info"]
    vcs = source.get("vcs_info")
    url = f"{vcs['vcs']}+{source['url']}@{vcs['commit_id']}" if vcs else source["url"]
    part = source.get("subdirectory")
    return f"{name} @ {url}#subdirectory={part}" if part else f"{name} @ {url}"


def _lines(file: Path, seen: set[Path]) -> Iterator[str]:
    """Yield the lines of a file of requirements, and of those that it includes by `-r` and `-c`."""
    if file in seen or not file.is_file():
        return
    seen.add(file)
    for line in file.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        included = _INCLUDED.match(line)
        if included:
            yield from _lines(file.parent / included[1], seen)
        else:
            yield line


def _run(words: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run([*_PIP, *words], cwd=folder, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(redact_text(done.stderr))  # the job's log
        hint = "install pip in this environment" if "No module named pip" in done.stderr else f"see {FILE} beside the script"
        raise HeadraceError(f"cannot install {FILE}: {_reason(done.stderr)}", hint=hint)
    return done.stdout


def _reason(printed: str) -> str:
    """Return the line in which pip says why: its first error, else that of the build which failed last."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    if errors := [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]:
        return errors[0]
    if builds := [line.removeprefix("× ") for line in lines if line.startswith("× ")]:
        return f"{builds[-1]} pip's words stand in the log."
    return lines[-1] if lines else "pip failed"
