"""List the code that a request would run on this machine. `launch local` shows this list and asks before it runs the job.

On SageMaker a request runs in a container. Here its hosts are processes of this user, so a request of somebody else is a
program of somebody else.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from headrace.system.text.redaction import redact_words

__all__ = ["chosen_code", "container_words", "own_entry"]

_ENTRY = "headrace.launch.entry"
_SCRIPTS = ("HEADRACE_SCRIPT", "HEADRACE_TORCHRUN")
"""Environment variables in headrace's own requests: the name of the script, and whether torchrun starts it."""
_CHOOSING = ("config", "out", "checkpoint_url", "resume", "sagemaker_program", "sagemaker_submit_directory")
"""Hyperparameters that name a script, or files of this machine that training reads options from or writes."""


def container_words(request: Mapping[str, Any]) -> list[str]:
    """Return the command line of the container: its entry point, then its arguments."""
    algorithm = request["AlgorithmSpecification"]
    return [*(algorithm.get("ContainerEntrypoint") or []), *(algorithm.get("ContainerArguments") or [])]


def own_entry(request: Mapping[str, Any]) -> bool:
    """Return whether the container runs `headrace.launch.entry`, or names no program: `launch local` needs no image then."""
    words = container_words(request)
    return not words or _ENTRY in " ".join(words)


def chosen_code(request: Mapping[str, Any], *, script: bool) -> list[str]:
    """Return a line, without secrets, for each field of the request that decides what runs on this machine or where it writes.

    script: whether the command line names a script, which takes the place of that of the request.
    """
    found = [] if own_entry(request) else [f"ContainerEntrypoint: {shlex.join(redact_words(container_words(request)))}"]
    for name, value in (request.get("Environment") or {}).items():
        if name not in _SCRIPTS or (name == "HEADRACE_SCRIPT" and not script):
            found.append(f"Environment: {redact_words([f'{name}={value}'])[0]}")
    for key, value in (request.get("HyperParameters") or {}).items():
        # A key may hold an assignment itself: training gets both as words of its command line.
        name, _, rest = f"{key}={value}".partition("=")
        plain = name.strip("-").replace("-", "_")
        if (plain == "model" and ":" in rest) or (plain in _CHOOSING and not (plain == "sagemaker_program" and script)):
            found.append(f"HyperParameters: {redact_words([f'{key}={value}'])[0]}")
    return found
