"""Settings that a session recorded (command, machine, versions, loader, model, …), and how those of two sessions differ."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.report.sessions.compare_jobs import finished_job_of
from headrace.report.text import numbers
from headrace.session.model import ObservedLoader, Process, Session

__all__ = ["GROUPS", "Difference", "differences", "settings"]

GROUPS = ("command", "job", "hyperparameters", "machine", "versions", "variables", "threads", "loader", "model")
"""Groups of settings, in the order in which they are shown."""

ABSENT = {"hyperparameters": "not given", "variables": "not set", "versions": "not used", "loader": "none", "model": "none"}
"""What to print for a setting without a value, by group. Other groups print "unknown"."""

_OPEN_GROUPS = {"variables": "variables", "versions": "variables", "hyperparameters": "hyperparameters"}
"""Groups in which an absent name is a value too, and the group that marks the session that records them."""

Settings = dict[tuple[str, str], object]
"""(group, name) → value. A missing name was not recorded; None: not known, or not set."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting, version or machine fact that differs between two sessions. group: one of `GROUPS`."""

    name: str
    before: str
    after: str
    group: str = ""


LOADER_FIELDS = (
    *("num_workers", "batch_size", "prefetch_factor", "pin_memory", "persistent_workers", "start_method", "batched_by"),
    *("dataset", "dataset_length", "transform", "collate", "family", "iterable", "batch_format"),
)

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

HOST_FIELDS = {
    "machine": "hostname",
    "CPU": "cpu_model",
    "cores": "cores",
    "cores online": "cores_online",
    "cores by affinity": "cores_affinity",
    "CPU quota in cores": "quota_cores",
    "kernel": "kernel",
}

BYTE_FIELDS = {"memory": "memory_bytes", "memory limit": "memory_limit_bytes"}

MODEL_WORDS = {"lr": "learning rate", "parameter_format": "number format of weights", "data_parallel": "GPUs of DataParallel"}


def settings(session: Session) -> Settings:
    """Return all recorded settings of a session. Secrets were masked when the session was written."""
    host = session.host
    found: Settings = {("command", "command"): shlex.join(session.command)}
    found |= {("command", "folder"): session.cwd}
    found |= {("machine", label): getattr(host, name) for label, name in HOST_FIELDS.items()}
    found |= {("machine", label): _size(getattr(host, name)) for label, name in BYTE_FIELDS.items()}
    found["machine", "GPUs"] = [gpu.name for gpu in host.gpus]
    found["machine", "GPU driver"] = next((gpu.driver for gpu in host.gpus), None)
    found |= _of_finished_job(session)
    main = _training_process(session)
    if main is not None:
        found |= _of_process(main)
    loader = _training_loader(session)
    if loader is not None:
        found |= {("loader", name): _without_address(getattr(loader, name)) for name in LOADER_FIELDS}
        found["loader", "headrace run"] = loader.take_over == "active" or loader.family == "headrace"
    configuration: Mapping[str, object] = session.facts.get("configuration") or {}
    found |= {("model", MODEL_WORDS.get(name, name.replace("_", " "))): value for name, value in configuration.items()}
    return found


def _of_finished_job(session: Session) -> Settings:
    job = finished_job_of(session)
    if job is None:
        return {}
    given = job.get("hyperparameters")
    found: Settings = (
        {("hyperparameters", str(name)): str(value) for name, value in given.items()} if isinstance(given, dict) else {}
    )
    return found | {
        ("hyperparameters", ""): "recorded",
        ("job", "instances"): job.get("instances"),
        ("job", "framework"): job.get("framework"),
    }


def _without_address(value: object) -> object:
    """Return a description without memory addresses, which differ from run to run: `<Own object at 0x7f31>`."""
    return ADDRESS.sub("", value) if isinstance(value, str) else value


def _of_process(main: Process) -> Settings:
    found: Settings = {("machine", "ranks"): main.world_size}
    found |= {("versions", "Python"): main.python or None, ("versions", "torch"): main.torch}
    found |= {("versions", name): version for name, version in main.versions.items()}
    variables = {name: value for name, value in main.thread_settings.items() if name.isupper()}
    if main.versions:  # an older session records no other variables
        found["variables", ""] = "recorded"
    found |= {("variables", name): value for name, value in (variables | dict(main.environment)).items()}
    threads = {"torch": main.torch_threads} | {
        name: value for name, value in main.thread_settings.items() if not name.isupper()
    }
    return found | {("threads", f"{name.replace('_', ' ')} threads"): value for name, value in threads.items()}


def differences(before: Session, after: Session) -> tuple[Difference, ...]:
    """Return the settings that differ, in the order of `GROUPS`. A value that only one session could record is left out."""
    old, new = settings(before), settings(after)
    names = sorted(dict.fromkeys((*old, *new)), key=lambda key: GROUPS.index(key[0]))
    return tuple(_compared(names, old, new))


def _compared(names: list[tuple[str, str]], old: Settings, new: Settings) -> Iterator[Difference]:
    for key in names:
        group, name = key
        if not name or not _is_comparable(key, old, new):
            continue
        was, now = old.get(key), new.get(key)
        if was != now:
            absent = ABSENT.get(group, "unknown")
            yield Difference(name, _text(was, absent), _text(now, absent), group)


def _is_comparable(key: tuple[str, str], old: Settings, new: Settings) -> bool:
    """Return whether both sessions recorded the setting: a variable or a library that is absent is a value too."""
    group, in_both = key[0], key in old and key in new
    if group in _OPEN_GROUPS and not in_both:
        return all((_OPEN_GROUPS[group], "") in one for one in (old, new))
    return in_both


def _text(value: object, absent: str) -> str:
    if value is None or value == "":
        return absent
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size(value: int | None) -> str | None:
    return None if value is None else numbers.byte_size(value)


def _training_process(session: Session) -> Process | None:
    """Return the process of the training loader, or else the first main process."""
    loader = _training_loader(session)
    mains = [process for process in session.processes if process.role == "main"]
    return next((process for process in mains if loader is not None and process.pid == loader.pid), mains[0] if mains else None)


def _training_loader(session: Session) -> ObservedLoader | None:
    """Return the loader of most steps."""
    counts: dict[tuple[int, int], int] = {}
    for step in session.steps:
        counts[step.pid, step.loader] = counts.get((step.pid, step.loader), 0) + 1
    most = max(counts, key=lambda key: counts[key], default=None)
    return next((one for one in session.loaders if (one.pid, one.loader) == most), None)
