"""The machine, the versions and the commit that a document of results names."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.system.hardware import machine

REPOSITORY = Path(__file__).resolve().parent.parent


def commit() -> str:
    """Return the repository's commit, marked when files differ from it; or $HEADRACE_COMMIT (where git is absent)."""
    if given := os.environ.get("HEADRACE_COMMIT"):
        return given
    run = ["git", "-C", str(REPOSITORY)]
    name = subprocess.run([*run, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run(
        [*run, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (name or "unknown") + (" with changes" if changed else "")


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the installed versions of Python and `packages`; absent packages are left out."""
    found = {"Python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def description() -> dict[str, Any]:
    """Return processor, cores, memory, system, and the GPU where there is one."""
    found: dict[str, Any] = {
        "processor": machine.processor().model,
        "usable_cores": machine.cores().usable,
        "memory_gib": round(machine.memory().usable_bytes / 2**30),
        "system": platform.platform(),
    }
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpu = subprocess.run(query, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return found
    return found | ({"gpu": gpu.stdout.strip()} if gpu.returncode == 0 else {})
