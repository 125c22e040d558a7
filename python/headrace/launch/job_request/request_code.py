"""List the code that a request would run on this machine. `launch local` shows this list and asks before it runs the job.

On SageMaker a request runs in a container. Here its hosts are processes of this user, so a request of somebody else is a
program of somebody else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.launch.in_container.container import RESERVED, Container, decoded, script_arguments
from headrace.system.text.redaction import redact_words

__all__ = ["chosen_code", "container_words", "made_by_headrace", "own_entry"]

_ENTRY = "headrace.launch.entry"
_SCRIPTS = ("HEADRACE_SCRIPT", "HEADRACE_TORCHRUN")
"""Environment variables in headrace's own requests: the name of the script, and whether torchrun starts it.

Its arguments (`HEADRACE_ARGUMENTS`) are asked about: they may name places.
"""
_CHOOSING = frozenset({"config", "out", "checkpoint_url", "resume", "pretrained", "data", "val"})
"""Options of training that name places of this machine or in a store, to read or to write."""
_OF_TOOLKIT = frozenset({"sagemaker_program", "sagemaker_submit_directory"})
"""Hyperparameters that name a script, and are no options."""
_HOSTS_UNASKED = 8
"""Start so many hosts without a question. Each is at least two processes here, and a request may name thousands."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NUMBER = re.compile(r'"?(?:[-+]?[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?|true|false)"?', re.IGNORECASE)
"""Name and value of an option that cannot name a place or code, whatever the script makes of it."""
_MASKED = " (a part that looks like a secret is masked: read it in the file)"


def container_words(request: Mapping[str, Any]) -> list[str]:
    """Return the command line of the container: its entry point, then its arguments."""
    algorithm = request.get("AlgorithmSpecification") or {}
    return [*(algorithm.get("ContainerEntrypoint") or []), *(algorithm.get("ContainerArguments") or [])]


def own_entry(request: Mapping[str, Any]) -> bool:
    """Return whether the container runs `headrace.launch.entry`, or names no program: `launch local` needs no image then."""
    return not container_words(request) or made_by_headrace(request)


def made_by_headrace(request: Mapping[str, Any]) -> bool:
    """Return whether the container's command is headrace's own: its channel `code` holds headrace, which is here."""
    return _ENTRY in " ".join(container_words(request))


def chosen_code(request: Mapping[str, Any], *, script: bool) -> list[str]:
    """Return a line, without secrets, for each field of the request that decides what runs on this machine or where it writes.

    script: whether the command line names a script, which takes the place of that of the request. It gets all hyperparameters,
    and any of its options that is no number may name a place or code.
    """
    found = [] if own_entry(request) else [_shown("ContainerEntrypoint", container_words(request), shlex.join)]
    if (hosts := _hosts(request)) > _HOSTS_UNASKED:
        found.append(f"ResourceConfig: {hosts:,} hosts, each with processes of its own on this machine")
    for name, value in (request.get("Environment") or {}).items():
        if name not in _SCRIPTS or (name == "HEADRACE_SCRIPT" and not script):
            found.append(_shown("Environment", [f"{name}={value}"]))
    for key, value in (request.get("HyperParameters") or {}).items():
        of_script = script and not key.startswith(RESERVED) and not (_NAME.fullmatch(key) and _NUMBER.fullmatch(value))
        if of_script or _chooses(key, value) or (key in _OF_TOOLKIT and not (key == "sagemaker_program" and script)):
            found.append(_shown("HyperParameters", [f"{key}={value}"]))
    return found


def _chooses(key: str, value: str) -> bool:
    """Return whether a hyperparameter is an option that names code or a place, in the words that training gets.

    Both key and value can be one: `tf32` takes no value, so with the value `--out=/x` training gets two options.
    """
    words = script_arguments(Container(Path(), decoded({key: value}), {}, {}))
    names = {word.partition("=")[0].strip("-").replace("-", "_") for word in words if word.startswith("-")}
    if words == ["--pretrained", "auto"]:  # the library's own weights
        return False
    return not names.isdisjoint(_CHOOSING) or ("model" in names and any(":" in word for word in words))


def _hosts(request: Mapping[str, Any]) -> int:
    resources = request.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or [resources]
    return sum(group.get("InstanceCount") or 0 for group in groups)


def _shown(field: str, words: Sequence[str], join: Callable[[Sequence[str]], str] = " ".join) -> str:
    """Return a line with words that others wrote. A mask may hide code, which is run all the same, so the line says so."""
    clean = redact_words(words)
    return f"{field}: {join(clean)}{'' if clean == [*words] else _MASKED}"
