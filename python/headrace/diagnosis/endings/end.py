"""How the command ended, in one sentence: killed for memory, by a signal, by an exception, by its own exit, or as it should.

Read from the exit code, from what the job's Python processes recorded of their own end (`headrace.attach.record.ending`), from
what the sampler saw last (`JobEnd`), and from the loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath

from headrace.diagnosis.endings.memory_words import is_nearly_full, memory_evidence, memory_limit_words, shared_memory_words
from headrace.diagnosis.endings.victim import LOST_PEER, SHELL_SIGNALS, Victim, find_victim, signal_words
from headrace.diagnosis.result.model import End
from headrace.session.endings import ProcessEnd, RaisedError
from headrace.session.model import Loss, Process, Session
from headrace.system.text.sizes import count_text

__all__ = ["how_it_ended"]

SIGINT, SIGKILL, SIGBUS, SIGTERM = 2, 9, 7, 15
CRASHES = (4, 6, SIGBUS, 8, 11)
"""SIGILL, SIGABRT, SIGBUS, SIGFPE and SIGSEGV: native code failed."""
STOPS = {1: "SIGHUP (the terminal or session closed)", SIGINT: "Ctrl-C", SIGTERM: "SIGTERM from outside"}

MOST_COUNTED = 50_000
"""A process records every step up to this number, and then one in sixteen: more steps are not counted."""

LEAST_BROKEN = 3
"""The loss of one step may be infinite: a gradient scaler skips such a step. This many in a row say that it stays so."""

LAST_S = 10.0
"""An error of a process that iterates no loader counts as the command's if it came in this last time: it may be a helper's."""

_IN_WORKER = re.compile(r"Caught \S+ in DataLoader worker process (?P<worker>\d+)")
_SHARED_MEMORY = re.compile(
    r"(?i)unable to (?:allocate|write|open|mmap|resize).{0,40}(?:shared memory|/torch_|file <)|out of shared memory"
    r"|shm_open|/dev/shm|shared memory.{0,60}(?:no space|cannot allocate)"
)
_NOT_A_NUMBER = re.compile(r"(?i)\bnan\b|\binf(?:inity|inite)?\b|non-?finite|not finite")
_LOSS = re.compile(r"(?i)\bloss\b")
_KILL = re.compile(r"(?i)SIGKILL|exit (?:code|status):? (?:-9|137)\b|terminated abruptly|unexpectedly terminated")
_HOST_MEMORY = re.compile(r"(?i)can't allocate memory|cannot allocate memory|unable to allocate .{0,40} for an array")
_GPU_MEMORY = re.compile(r"CUDA out of memory|HIP out of memory|OutOfMemoryError")


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of the end: the process that failed first (`first`), and who was killed, if one was."""

    session: Session
    first: ProcessEnd | None
    victim: Victim | None

    @property
    def errors(self) -> tuple[RaisedError, ...]:
        return self.first.errors if self.first is not None else ()

    @property
    def code(self) -> int | None:
        return self.session.exit_code

    @property
    def after(self) -> str:
        return _after(self.session, self.victim, self.first.pid if self.first else None)


def how_it_ended(session: Session) -> End | None:
    """Return how the command of a session ended, or None while it runs.

    A loss that is no number to the last is an end too, also of a command that runs on or ends well.
    """
    nan = _nan(session)
    if session.exit_code is None and session.job_end is None:
        return nan
    limit_s = session.facts.get("time_limit_s")
    first = _first_failure(session)
    if limit_s and (first is None or first.time_s >= limit_s):  # a consequence of the signal that ended the command
        return nan or End("time_limit", f"--seconds ended the command after {limit_s:g} s")
    if session.exit_code == 0 and not limit_s:
        return nan or _stopped(_Facts(session, None, None)) or End("finished", "the command ended by itself, with exit code 0")
    facts = _Facts(session, first, find_victim(session, first))
    # Before --seconds ended the command, something had failed: that is the end, and the signal of --seconds is none.
    rules = [rule for rule in _RULES if not (limit_s and facts.errors and rule is _stopped)]
    found = next(end for rule in rules if (end := rule(facts)) is not None)
    return _with_nan(found, nan, facts)


def _with_nan(found: End, nan: End | None, facts: _Facts) -> End:
    """Return NaN as the end where the loss was NaN and that, or nothing else, stopped the script; else the end, and the NaN."""
    said = " ".join(error.message for error in facts.errors)
    if nan is None:
        is_loss = found.kind == "exception" and bool(_LOSS.search(said) and _NOT_A_NUMBER.search(said))
        return replace(found, kind="nan") if is_loss else found
    if found.kind in ("exit", "stopped") or (found.kind == "exception" and _NOT_A_NUMBER.search(said)):
        return replace(nan, evidence=(*nan.evidence, found.text, *found.evidence))
    return replace(found, evidence=(*found.evidence, nan.text))


# What failed first.


def _first_failure(session: Session) -> ProcessEnd | None:
    """Return the end of the training process (rank) that failed first; of another process only where none of these failed."""
    training = {process.pid for process in session.processes if process.role == "main"}
    failed = [end for end in session.ends if end.errors or (end.how == "exit" and end.code)]
    ranks = [end for end in failed if end.pid in training]
    if ranks:
        return ranks[0]
    end_s = session.duration_s if session.duration_s is not None else session.job_end.time_s if session.job_end else math.inf
    others = [end for end in failed if end.pid not in training and end.time_s >= end_s - LAST_S]
    return others[0] if others else None


def _process(session: Session, pid: int | None) -> Process | None:
    return next((process for process in session.processes if process.pid == pid), None)


def _after(session: Session, victim: Victim | None = None, failed: int | None = None) -> str:
    """Return "after 112 steps" of the training process that the end concerns, or of the one with most steps.

    failed: the process that failed first.
    """
    counts: dict[int, int] = {}
    for step in session.steps:
        counts[step.pid] = counts.get(step.pid, 0) + 1
    known = next((pid for pid in (victim.owner if victim else None, failed) if pid in counts), None)
    count = counts[known] if known is not None else max(counts.values(), default=0)
    if count >= MOST_COUNTED:
        return ""
    if not count:
        return " before the first step was complete"
    # A killed process loses the steps of its last half second, which were not written yet.
    is_least = victim is not None and known is not None and victim.pid == known
    return f" after {'at least ' if is_least else ''}{count_text(count, 'step')}"


def _steps_before(session: Session, time_s: float, pid: int) -> int:
    return sum(step.start_s < time_s for step in session.steps if step.pid == pid)


# The rules, in order: the first that returns an end decides.


def _stopped(facts: _Facts) -> End | None:
    """The command was stopped from outside: by a signal to `headrace`, which it passes on, or to the command itself."""
    session = facts.session
    number = session.facts.get("stopped_by")
    code = session.exit_code
    if number is None and code is not None:
        own = -code if code < 0 else code - SHELL_SIGNALS
        number = own if own in STOPS else None
    if number is None and facts.errors and facts.errors[0].type == "KeyboardInterrupt":
        number = SIGINT
    if number is None:
        return None
    after = _after(session)
    return End("stopped", f"stopped by {STOPS.get(int(number)) or signal_words(int(number))}{after}")


def _memory(facts: _Facts) -> End | None:
    """The kernel killed a process for memory: it counts such kills, in the control group and on the machine.

    A kill may be hours old, and another program's: an exception that speaks of no lost process has a cause of its own.
    """
    session, victim = facts.session, facts.victim
    seen = session.job_end
    is_killed = victim is not None and victim.signal in (SIGKILL, None)
    own = seen.oom_kills if seen is not None else None
    machine = seen.machine_oom_kills if seen is not None else None
    said = " ".join(error.message for error in facts.errors)
    is_cause = is_killed or not facts.errors or bool(_KILL.search(said) or LOST_PEER.search(said))
    is_counted = is_cause and (bool(own) or (own is None and bool(machine) and is_killed))
    is_suspected = own is None and machine is None and is_killed and is_nearly_full(session)
    if not (is_counted or is_suspected) or (victim is not None and not is_killed):
        return None
    who = victim.words if victim is not None else "a process of the command's control group"
    verb = "killed" if is_counted else "probably killed"
    text = f"the kernel {verb} {who} for memory{facts.after}: {memory_limit_words(session)}"
    evidence = memory_evidence(session, victim.pid if victim else None)
    advice = "less data in memory at once, or more memory"
    if any(process.worker_id is not None for process in session.processes):
        advice = (
            "fewer workers, a smaller prefetch_factor or batch, paths and labels in arrays instead of lists, or more memory"
        )
    return End("memory", text, (*evidence, *_cause_words(facts)), victim.pid if victim else None, advice)


def _shared_memory(facts: _Facts) -> End | None:
    """/dev/shm was full: writing to it fails with an error, or with SIGBUS."""
    victim = facts.victim
    said = next((error for error in facts.errors if _SHARED_MEMORY.search(error.message)), None)
    is_bus = victim is not None and victim.signal == SIGBUS and _is_shared_memory_small(facts.session)
    if (said is None or (victim is not None and victim.signal != SIGBUS)) and not is_bus:
        return None
    text = f"/dev/shm was full{facts.after}"
    if victim is not None:
        text += f": {victim.words} was killed by {signal_words(victim.signal)}"
    elif said is not None:
        text += f": {_last_line(said)}"
    advice = "a larger /dev/shm (docker run --shm-size=8g), fewer workers, a smaller prefetch_factor or smaller batches"
    return End("shared_memory", text, shared_memory_words(facts.session), victim.pid if victim else None, advice)


def _is_shared_memory_small(session: Session) -> bool:
    """Return whether /dev/shm may have been full: little was free in a sample, it is small, or its size is not known."""
    seen = session.job_end
    if seen is None or seen.shared_memory_bytes is None:
        return True
    least = seen.shared_memory_least_free_bytes
    return seen.shared_memory_bytes <= 1 << 30 or (least is not None and least < 0.1 * seen.shared_memory_bytes)


def _killed(facts: _Facts) -> End | None:
    """A worker, a rank or the command was killed by a signal."""
    victim = facts.victim
    if victim is None:
        return None
    if victim.signal is None:
        text = f"{victim.words} ended without an error of Python{facts.after}: a signal or os._exit"
    else:
        text = f"{victim.words} was killed by {signal_words(victim.signal)}{facts.after}"
    kind = {"worker": "worker_killed", "rank": "rank_lost"}.get(victim.role, "killed")
    evidence: tuple[str, ...] = ()
    if victim.signal == SIGKILL:
        evidence = ("`kill -9`, a scheduler or the kernel send SIGKILL", *memory_evidence(facts.session, victim.pid))
    elif victim.signal in CRASHES:
        evidence = ("such a signal means a crash in native code: a library, or a file that shrank while it was mapped",)
        kind = "crashed" if kind == "killed" else kind
    return End(kind, text, (*evidence, *_cause_words(facts)), victim.pid)


def _cause_words(facts: _Facts) -> tuple[str, ...]:
    """The last line of the exception by which the training noticed a killed process."""
    return (f"the training process then raised {_last_line(facts.errors[0])}",) if facts.errors else ()


def _exception(facts: _Facts) -> End | None:
    """An exception of Python ended the training, or the exception that was handled where the script called `sys.exit`."""
    if not facts.errors or facts.first is None:
        return None
    index = next((at for at, error in enumerate(facts.errors) if _IN_WORKER.search(error.message)), None)
    after = facts.after
    kind, error, who = "exception", facts.errors[0], "the command"
    process = _process(facts.session, facts.first.pid)
    if process is not None and process.world_size > 1:
        who = f"rank {process.rank} (pid {process.pid})"
    elif process is not None:
        who = "the training"
    if index is not None and index + 1 < len(facts.errors):
        worker = _IN_WORKER.search(facts.errors[index].message)
        kind, error = "worker_error", facts.errors[index + 1]
        who = f"worker {worker['worker']}" if worker else "a worker"
    elif error.lost_rank is not None and len(facts.errors) > 1:  # the traceback of a rank, which its launcher shows
        who, error = f"rank {error.lost_rank} (pid {error.lost_pid})", facts.errors[1]
    evidence = []
    if facts.first.how == "exit" and "-packages" not in (facts.first.file or ""):  # `torch.multiprocessing` calls it, too
        evidence.append(f"the script then called sys.exit({facts.first.code}){_at(facts.first)}")
    if error is facts.errors[0] and len(facts.errors) > 1 and not evidence:
        evidence.append(f"behind it: {_last_line(facts.errors[1])}")
    if facts.session.job_end is not None and facts.session.job_end.oom_kills:
        evidence += memory_evidence(facts.session, None)
    advice = None
    if _GPU_MEMORY.search(f"{error.type} {error.message}"):
        advice = "the GPU's memory was full: a smaller batch, mixed precision or gradient checkpointing"
    if error.type == "MemoryError" or _HOST_MEMORY.search(error.message):
        advice = (
            "no more memory was given to the process (ulimit -v, or the machine's): keep less of past steps, a smaller batch"
        )
    return End(kind, f"{who} raised {_last_line(error)}{_at(error)}{after}", tuple(evidence), facts.first.pid, advice)


def _exit(facts: _Facts) -> End:
    """The command ended by itself with an exit code that is not 0, or it left no trace."""
    code, first = facts.code, facts.first
    if code is None:
        return End("killed", f"the command ended{facts.after} and left no trace of why", ("it was killed, or the machine was",))
    is_its = first is not None and first.how == "exit" and first.code == code  # else another process's, or one that was caught
    where = f": sys.exit{_at(first)}" if first is not None and is_its else ""
    evidence: tuple[str, ...] = ()
    if first is not None and first.how == "exit" and not where:
        evidence = (f"a process of it called sys.exit({first.code}){_at(first)}",)
    elif not where:
        evidence = ("no Python process of it recorded an exception; its own output may say why",)
    return End("exit", f"the command failed with exit code {code}{facts.after}{where}", evidence)


_RULES: tuple[Callable[[_Facts], End | None], ...] = (_memory, _stopped, _shared_memory, _killed, _exception, _exit)


def _last_line(error: RaisedError) -> str:
    """Return the last line of the exception's traceback: type and message."""
    return f"{error.type}: {error.message}" if error.message else error.type


def _at(place: RaisedError | ProcessEnd) -> str:
    if place.file is None:
        return ""
    inside = f" in {place.function}" if place.function and place.function != "<module>" else ""
    return f" ({PurePath(place.file).name}:{place.line}{inside})"


def _nan(session: Session) -> End | None:
    """The loss is no number from some step on, to the last that was seen."""
    by_pid: dict[int, list[Loss]] = {}
    for loss in session.losses:
        by_pid.setdefault(loss.pid, []).append(loss)
    has_failed = session.exit_code in range(1, SHELL_SIGNALS)  # by itself: a script may stop at the first such loss
    for pid, losses in by_pid.items():
        good = [number for number, loss in enumerate(losses) if math.isfinite(loss.value)]
        broken = losses[good[-1] + 1 :] if good else losses
        if len(broken) >= (1 if has_failed else LEAST_BROKEN):
            what = "NaN" if math.isnan(broken[0].value) else "infinite"
            before = _steps_before(session, broken[0].time_s, pid)
            evidence = f"the last loss before it: {losses[good[-1]].value:.4g}" if good else "no loss was a number"
            advice = "a lower learning rate, gradient clipping, or a look at the first batch that gives it"
            text = f"the loss is {what} from step {before:,} on: the weights learn nothing since"
            return End("nan", text, (evidence,), pid, advice)
    return None
