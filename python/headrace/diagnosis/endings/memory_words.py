"""The memory of a job at its end, in words: limit, use, kills that the kernel counted, and what each process held."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.session.endings import ProcessMemory
from headrace.session.model import Session
from headrace.system.text.sizes import count_text, size_text

__all__ = ["is_nearly_full", "memory_evidence", "memory_limit_words", "shared_memory_words"]

FULL_SHARE = 0.05
"""Memory was nearly full when less than this share of the limit was left in one of the last samples."""

LAST_SAMPLES = 10
MOST_PROCESSES = 6


def is_nearly_full(session: Session) -> bool:
    """Return whether the last samples show that hardly any memory was left."""
    limit = session.host.memory_limit_bytes or session.host.memory_bytes
    left = [sample.memory_left_bytes for sample in session.samples[-LAST_SAMPLES:] if sample.memory_left_bytes is not None]
    return bool(limit and left) and min(left) < FULL_SHARE * (limit or 0)


def memory_limit_words(session: Session) -> str:
    """Return the limit that was reached: the control group's, or the machine's memory."""
    seen, host = session.job_end, session.host
    limit = (seen.memory_limit_bytes if seen is not None else None) or host.memory_limit_bytes
    if limit is not None and (host.memory_bytes is None or limit < host.memory_bytes):
        return f"its control group may use {size_text(limit)}"
    return f"the machine has {size_text(host.memory_bytes)}" if host.memory_bytes else "how much there is was not seen"


def memory_evidence(session: Session, victim: int | None) -> tuple[str, ...]:
    """Return use and limit, the kills that were counted, and the memory of each process, with the killed one first."""
    seen = session.job_end
    if seen is None:
        return ()
    facts = []
    limit = seen.memory_limit_bytes or session.host.memory_bytes
    if seen.memory_peak_bytes and limit:
        facts.append(f"memory in use: at most {size_text(seen.memory_peak_bytes)} of {size_text(limit)}")
    if seen.oom_kills is not None:
        kills = f"{count_text(seen.oom_kills, 'process')} for memory" if seen.oom_kills else "none for memory"
        facts.append(f"the kernel killed {kills} in the control group meanwhile (oom_kill)")
    elif seen.machine_oom_kills is not None:
        facts.append(f"the kernel counts {seen.machine_oom_kills} kills for memory on this machine meanwhile (oom_kill)")
    held = sorted(seen.processes, key=lambda one: (one.pid != victim, -one.memory_bytes))[:MOST_PROCESSES]
    if held:
        names = _names(session)
        shared = "" if all(one.is_proportional for one in held) else " (pages shared by fork count in each)"
        facts.append(f"memory of each process{shared}: " + ", ".join(_held_words(one, names) for one in held))
    return tuple(facts)


def _held_words(one: ProcessMemory, names: Mapping[int, str]) -> str:
    name = names.get(one.pid) or ("a worker" if one.name == "pt_data_worker" else one.name)
    return f"{name} (pid {one.pid}) {size_text(one.memory_bytes)}"


def _names(session: Session) -> dict[int, str]:
    ranks = sum(process.role == "main" for process in session.processes)
    names = {}
    for process in session.processes:
        if process.worker_id is not None:
            names[process.pid] = f"worker {process.worker_id}"
        elif process.role == "main":
            names[process.pid] = f"rank {process.rank}" if ranks > 1 else "training process"
    return names


def shared_memory_words(session: Session) -> tuple[str, ...]:
    """Return size and least free space of /dev/shm."""
    seen = session.job_end
    if seen is None or seen.shared_memory_bytes is None:
        return ()
    least = seen.shared_memory_least_free_bytes
    free = f", at least {size_text(least)} were free in each sample" if least is not None else ""
    return (f"/dev/shm has {size_text(seen.shared_memory_bytes)}{free}",)
