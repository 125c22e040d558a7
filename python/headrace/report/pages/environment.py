"""The environment of a session: machine, software, processes and loaders, as pairs of name and value."""

from __future__ import annotations

from collections import Counter

from headrace.diagnosis.result.model import Diagnosis
from headrace.report.text import numbers
from headrace.session.merge_loaders import merge_recreated_loaders
from headrace.session.model import ObservedLoader, Session
from headrace.system.text.sizes import count_text

__all__ = ["environment"]

SHOWN_FROM_SESSION = frozenset(
    ["host", "cpu", "cores", "cores_online", "cores_affinity", "quota_cores", "memory_bytes", "memory_limit_bytes", "kernel"]
) | {"gpu", "gpus", "driver", "python", "torch", "torch_threads", "loaders", "exit_code"}
"""Keys of `Diagnosis.environment` to leave out, because the session's own facts contain them."""


def environment(diagnosis: Diagnosis, session: Session | None) -> list[tuple[str, object]]:
    """Return the environment as (name, value) pairs: the session's, then those only the diagnosis has. None: not measured."""
    pairs = _from_session(session) if session is not None else []
    for key, value in diagnosis.environment.items():
        if session is not None and key in SHOWN_FROM_SESSION:
            continue
        if key.endswith("_bytes") and isinstance(value, int | float):
            key, value = key.removesuffix("_bytes"), numbers.byte_size(value)
        pairs.append((key.replace("_", " "), value))
    return pairs


def _from_session(session: Session) -> list[tuple[str, object]]:
    host = session.host
    limit = host.memory_limit_bytes
    memory = None if host.memory_bytes is None else numbers.byte_size(host.memory_bytes)
    pairs: list[tuple[str, object]] = [
        ("machine", host.hostname or None),
        ("kernel", host.kernel or None),
        ("CPU", host.cpu_model),
        ("cores", _cores(session)),
        ("memory", f"{memory}, limited to {numbers.byte_size(limit)}" if memory and limit else memory),
        ("GPUs", _gpus(session)),
        ("GPU driver", next((gpu.driver for gpu in host.gpus), None)),
        ("folder", session.cwd or None),
        ("exit code", session.exit_code),
    ]
    for process in session.processes:
        if process.role == "main":
            software = (f"pid {process.pid}", f"Python {process.python}" if process.python else None,
                        f"torch {process.torch}" if process.torch else None,
                        count_text(process.torch_threads, "torch thread") if process.torch_threads else None)  # fmt: skip
            pairs.append((f"rank {process.rank}", ", ".join(filter(None, software))))
    return pairs + [(f"loader {loader.loader}", _loader(loader)) for loader in merge_recreated_loaders(session).loaders]


def _gpus(session: Session) -> str | None:
    names = Counter(gpu.name for gpu in session.host.gpus)
    text = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items())
    return text or ("none found" if session.host.hostname else None)


def _cores(session: Session) -> str | None:
    host = session.host
    if host.cores is None:
        return None
    quota = "no quota known" if host.quota_cores is None else f"quota {host.quota_cores:g}"
    online, affinity = host.cores_online or "unknown", host.cores_affinity or "unknown"
    return f"{host.cores:g} usable (online {online}, affinity {affinity}, {quota})"


def _loader(loader: ObservedLoader) -> str:
    names = ("dataset", "dataset_length", "batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers",
             "start_method", "transform")  # fmt: skip
    values = ((name, getattr(loader, name)) for name in names)
    return ", ".join(f"{name}={value}" for name, value in values if value not in (None, ""))
