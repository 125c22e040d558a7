"""Which process of a job was killed: a worker, a rank, or the command itself."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.session.endings import ProcessEnd, RaisedError
from headrace.session.model import Process, Session, owners

__all__ = ["LOST_PEER", "SHELL_SIGNALS", "Victim", "find_victim", "signal_words"]

_KILLED = re.compile(r"DataLoader worker \(pid (?P<pid>\d{1,9})\) is killed by signal: (?P<name>[^.]{1,99})\.")
_GONE = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d{1,9})[^)]{0,999}\) exited unexpectedly(?: with exit code (?P<code>\d+))?"
)
LOST_PEER = re.compile(
    r"(?i)connection (?:was )?(?:closed|reset|refused|aborted)|broken pipe|remote (?:process|peer)|\bpeer\b|nccl|gloo"
)
"""Words of errors by which a rank notices that another one is gone."""

SHELL_SIGNALS = 128
"""A shell, and a container's runtime, report signal n as exit code 128 + n."""

SAMPLE_S = 1.0
"""The time of two samples. They may still show a killed rank this long after another rank noticed that it was gone."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that ended without an error of Python. `role`: "worker", "rank" or "command"; `owner`: its training process.

    signal: that killed it; None where that is not known.
    """

    role: str
    words: str
    pid: int | None
    owner: int | None
    signal: int | None


def signal_words(number: int | None) -> str:
    """Return a signal in words: `signal 9 (SIGKILL)`."""
    known = {one.value: one.name for one in signal.Signals}
    return f"signal {number} ({known[number]})" if number in known else f"signal {number}"


def find_victim(session: Session, first: ProcessEnd | None) -> Victim | None:
    """Return the process that was killed, or None. `first`: the training process that failed first, with its errors."""
    errors = first.errors if first is not None else ()
    found = _child(session, first) or _worker(session, errors) or _lost_rank(session, errors) or _silent_rank(session, first)
    if found is not None or errors:
        return found
    return _command(session)


def _child(session: Session, first: ProcessEnd | None) -> Victim | None:
    """The worker or rank below the training process that a signal killed, other than by `terminate()`.

    Other children are helpers: a script kills them itself when it fails.
    """
    known = {process.pid for process in session.processes}
    children = first.children if first is not None else ()
    killed = [(pid, -code) for pid, code in children if pid in known and code < 0 and code != -signal.SIGTERM]
    return _as_worker(session, *killed[0]) if killed else None


def _as_worker(session: Session, pid: int, number: int | None) -> Victim:
    known = next((process for process in session.processes if process.pid == pid), None)
    if known is not None and known.role == "main":
        return Victim("rank", f"rank {known.rank} (pid {pid})", pid, pid, number)
    name = f"worker {known.worker_id}" if known is not None and known.worker_id is not None else "a worker"
    return Victim("worker", f"{name} (pid {pid})", pid, owners(session.processes).get(pid), number)


def _worker(session: Session, errors: Sequence[RaisedError]) -> Victim | None:
    """The worker that PyTorch's loader reports as killed."""
    matches = [(error, pattern.search(error.message)) for pattern in (_KILLED, _GONE) for error in errors]
    match = next((match for _, match in matches if match is not None), None)
    if match is None:
        return None
    pid = int(match["pid"])
    number: int | None = None
    if match.re is _KILLED:
        number = next((one.value for one in signal.Signals if signal.strsignal(one) == match["name"]), None)
    elif match["code"] is not None:
        return None  # it ended by itself, with an exit code
    return _as_worker(session, pid, number)


def _lost_rank(session: Session, errors: Sequence[RaisedError]) -> Victim | None:
    """The rank that `torchrun` or `torch.multiprocessing.spawn` reports as killed by a signal."""
    lost = next((error for error in errors if error.lost_code is not None and error.lost_code < 0), None)
    if lost is None:
        return None
    return Victim("rank", f"rank {lost.lost_rank} (pid {lost.lost_pid})", lost.lost_pid, lost.lost_pid, -(lost.lost_code or 0))


def _silent_rank(session: Session, first: ProcessEnd | None) -> Victim | None:
    """The rank that was gone, without a word, when another one noticed that its connection was closed."""
    ranks = [process for process in session.processes if process.role == "main" and process.world_size > 1]
    told = {end.pid for end in session.ends}
    silent = [rank for rank in ranks if rank.pid not in told]
    noticed = first is not None and any(LOST_PEER.search(error.message) for error in first.errors)
    if not silent or first is None or not noticed:
        return None
    reported = next((end for end in session.ends for error in end.errors if error.lost_code is not None), None)
    lost = next((error for error in reported.errors if error.lost_code is not None), None) if reported else None
    if lost is not None and lost.lost_pid in {rank.pid for rank in silent}:
        code = lost.lost_code or 0
        number = -code if code < 0 else None
        return Victim("rank", f"rank {lost.lost_rank} (pid {lost.lost_pid})", lost.lost_pid, lost.lost_pid, number)
    gone = _gone_first(session, silent, first.time_s)
    return None if gone is None else Victim("rank", f"rank {gone.rank} (pid {gone.pid})", gone.pid, gone.pid, None)


def _gone_first(session: Session, silent: Sequence[Process], noticed_s: float) -> Process | None:
    """Return the rank that was last seen before the error; the only silent one where nothing was sampled."""
    seen = session.job_end
    if seen is None:
        return silent[0] if len(silent) == 1 else None
    last = {process.pid: seen.time_s - process.seen_s for process in seen.processes}
    early = [rank for rank in silent if rank.pid in last and last[rank.pid] <= noticed_s + SAMPLE_S]
    return min(early, key=lambda rank: last[rank.pid], default=None)


def _command(session: Session) -> Victim | None:
    """The command itself, if a signal ended it or its last process."""
    code = session.exit_code
    if code is None:
        number = None
    elif code < 0:
        number = -code
    elif code > SHELL_SIGNALS and any(one.value == code - SHELL_SIGNALS for one in signal.Signals):
        number = code - SHELL_SIGNALS
    else:
        return None
    ended = {end.pid for end in session.ends}
    training = [process for process in session.processes if process.role == "main" and process.pid not in ended]
    if code is None and not training:
        return None
    pid = training[0].pid if len(training) == 1 else None
    return Victim("command", f"the training process (pid {pid})" if pid else "the command", pid, pid, number)
