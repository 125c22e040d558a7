"""What a results page says about the machine it was made on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from headrace.system import machine

REPOSITORY = Path(__file__).resolve().parent.parent


def commit() -> str:
    """The repository's commit, marked when files differ from it; or what $HEADRACE_COMMIT says (where git is absent)."""
    if given := os.environ.get("HEADRACE_COMMIT"):
        return given
    run = ["git", "-C", str(REPOSITORY)]
    name = subprocess.run([*run, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run(
        [*run, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (name or "unknown") + (" with changes" if changed else "")


def versions(packages: Sequence[str]) -> str:
    """Installed versions of `packages`; absent ones are left out."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def describe(packages: Sequence[str]) -> list[str]:
    """Markdown lines: processor, cores, memory, system, versions, commit."""
    cores = machine.cores()
    memory_gib = machine.memory().usable_bytes / 2**30
    lines = [
        f"- Machine: {machine.processor().model}, {cores.usable:g} usable cores, {memory_gib:.0f} GiB, {platform.platform()}",
        f"- Versions: Python {platform.python_version()}, {versions(packages)}",
        f"- Commit: {commit()}",
    ]
    try:
        gpu = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
        if gpu.returncode == 0:
            lines.insert(1, f"- GPU: {gpu.stdout.strip()}")
    except FileNotFoundError:
        pass
    return lines
