"""The rule for standstills: is no training step coming any more, and who is it that stands?

The rule looks at the samples of the session's last standstill, if no step came after it. A standstill is said as soon as it was
sampled. It is the verdict HANG only where nothing moves any more, or where a proof is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.finding import make_finding
from headrace.diagnosis.rules.standing_places import (
    COMPILES,
    OWN,
    STORAGE_STATE,
    collective_of,
    is_event_loop,
    is_idle_worker,
    place_of,
    place_words,
)
from headrace.session.model import Session
from headrace.session.standstill import StandingProcess, Standstill, StandstillSample
from headrace.system.text.sizes import count_text, percent_text

__all__ = ["OpenStandstill", "hang", "open_standstill"]

FIRST_STEP_S = 120.0
"""Call a job without any step a hang only after this long: starting, downloading and indexing take their time."""

LOCKED_S = 30.0
"""Call it a hang after this long where each worker that holds the first step up waits for a lock of its own threads."""

LONGEST_GAPS = 2.0
"""Call a standstill a hang only when it lasts this many times as long as the longest time between two steps before."""

LEAST_SAMPLES = 3
"""Judge whether a thread stands still by at least this many samples in a row."""

QUIET_CORES, QUIET_BYTES_S, QUIET_GPU = 0.05, 64 * 1024, 0.05
"""A job that uses less than this CPU, reads, writes and sends less than this, and uses its GPU less than this, does nothing."""

SWITCHES_A_SAMPLE = 6
"""A thread that wakes more often than this between two samples, and reads meanwhile, goes on, however slowly."""

SPIN_CORES = 0.25
"""Suspect a hang when a function of the script uses this much CPU and moves no bytes. Long work looks the same, so it is never
the verdict. A busy machine leaves a busy loop no more CPU."""

SPIN_WORDS = "one function of the script uses the CPU all the time and moves no bytes: a loop that waits, or long work"

SURE, LONG, SHORT, MEANT = 0.9, 0.85, 0.75, 0.5
LONG_S = 60.0
"""Confidence with a proof; after so many seconds; before; of a training thread that sleeps, or waits for what is not known: it
may be meant to, for example after its loop."""

WORKER_PHASES = ("makes a batch", "worker idle")
SLEEPS = "sleeps"
ENDS_BY_ITSELF = (SLEEPS, COMPILES, "waits for another program", "waits for another process to end", "waits for storage")
"""What the training thread may do for a while with nothing wrong, so that it is a hang only after `FIRST_STEP_S`."""

WAITS_FOR_OTHERS = (
    *ENDS_BY_ITSELF,
    "waits for another process",
    "waits for an item of a queue",
    "waits for room in a queue",
    "waits for bytes from a pipe",
    "waits for room in a pipe",
)
"""What a training process may do because of another training of the command, so that it is no hang while there is one."""

MOST_CLAUSES = 8
"""Say where so many training processes stand, and at how many places the workers of one; the others are counted."""

STOPPED, RUNS = ("T", "t"), "R"
LAUNCHERS = ("torch/distributed/elastic", "torch/distributed/launcher", "torch/distributed/run.py")


@dataclass(frozen=True, slots=True)
class OpenStandstill:
    """The standstill in which the session ended, or that goes on.

    words: who stands where, in a sentence that begins with `no step for N s`. hangs: whether it is a hang, with `confidence`.
    in_next: whether training waits for a batch. advice: what to do, where the place tells. pids: the training processes that
    stand.
    """

    age_s: float
    words: str
    hangs: bool
    confidence: float
    in_next: bool
    evidence: tuple[str, ...]
    advice: str | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Judged:
    """The last samples of a standstill, in which the same processes stand at the same places."""

    samples: tuple[StandstillSample, ...]
    age_s: float
    scale: float
    cwd: str
    by_pid: dict[int, list[StandingProcess]]

    @property
    def last(self) -> StandstillSample:
        return self.samples[-1]

    def trainers(self) -> list[StandingProcess]:
        """Return the training processes in order of rank, those that have ended included."""
        found = [one for one in self.last.processes if one.worker < 0 and one.phase not in ("", *WORKER_PHASES)]
        # One that trained before, alone or as a rank that is there again or has another parent, is of another job.
        there = [one for one in found if not one.ended]
        ranks = {(one.world_size, one.rank) for one in there}
        jobs = {(one.world_size, one.parent_pid) for one in there}
        ended = [one for one in found if one.ended and one.world_size > 1 and (one.world_size, one.rank) not in ranks]
        job = [*there, *(one for one in ended if (one.world_size, one.parent_pid) in jobs)]
        begun = [one for one in job if one.phase != "nothing"] or [one for one in job if not _launches(one)]
        return sorted(begun, key=lambda one: (one.rank, one.pid))

    def workers(self, trainer: StandingProcess) -> list[StandingProcess]:
        """Return the workers of a training process that have not ended. A fork server's, which are no one's, are everyone's."""
        owners = {one.pid for one in self.trainers()}
        there = [one for one in self.last.processes if one.pid not in owners and not one.ended]
        mine = [one for one in there if one.parent_pid == trainer.pid or (one.worker >= 0 and one.parent_pid not in owners)]
        return [one for one in mine if one.worker >= 0 or "_worker_loop" in [frame[0] for frame in one.frames]]

    def history(self, pid: int) -> list[StandingProcess]:
        """Return one process in the samples, oldest first."""
        return self.by_pid.get(pid, [])

    def stands(self, process: StandingProcess) -> bool:
        """Return whether the training thread was at the same place in the last samples, and did not go on in between."""
        seen: list[StandingProcess] = []
        for one in reversed(self.history(process.pid)):
            if not one.frames or (seen and one.frames[-1] != seen[-1].frames[-1]):
                break
            seen.append(one)
        if len(seen) < LEAST_SAMPLES:
            return False
        woken = seen[0].switches - seen[-1].switches > SWITCHES_A_SAMPLE * (len(seen) - 1)
        return not (woken and (seen[0].reads > seen[-1].reads or "network" in _what(process)))

    def cores(self, pids: frozenset[int] | None = None) -> float:
        """Return the cores that these processes used between the samples (default: all of the job)."""
        return self._increase(lambda one: one.cpu_s, pids) / self._seconds()

    def bytes_s(self, pids: frozenset[int] | None = None) -> float:
        """Return the bytes a second that these processes (default: all of the job) read and wrote, and the machine sent.

        The stacks that the whole job wrote for the samples do not count.

        Where a process waits for storage, such as for `fsync`, the kernel writes for it: the machine's disks then count.
        """
        first, last = self.samples[0], self.last
        moved = self._increase(lambda one: one.bytes, pids)
        moved -= sum(sample.stack_bytes for sample in self.samples[:-1]) if pids is None else 0
        outside = last.network_bytes - first.network_bytes
        if any(one.state == STORAGE_STATE for sample in self.samples for one in sample.processes):
            outside += last.disk_bytes - first.disk_bytes
        return (max(0, moved) + max(0, outside)) / self._seconds()

    def _increase(self, sum_of: Callable[[StandingProcess], float], pids: frozenset[int] | None) -> float:
        """Return by how much a sum of these processes (None: all of the job) grew between the first sample and the last.

        Of a process that began in between, all counts. `sum_of`: the sum that a process has had since its start.
        """
        first, last = self.samples[0], self.last
        before = {one.pid: sum_of(one) for one in (*first.processes, *first.others)}
        return sum(
            max(0.0, sum_of(one) - before.get(one.pid, 0.0))
            for one in (*last.processes, *last.others)
            if not one.ended and (pids is None or one.pid in pids)
        )

    def _seconds(self) -> float:
        return max(1e-6, self.last.time_s - self.samples[0].time_s)


def open_standstill(session: Session) -> OpenStandstill | None:
    """Return the standstill that was not over when the session ended, or None. A command that ended well hung nowhere.

    Of several trainings that stand, a hang comes first, then the one that stands longest.
    """
    if session.exit_code == 0 and not session.facts.get("time_limit_s"):
        return None
    last: dict[int, Standstill] = {}
    for one in session.standstills:
        last[one.samples[-1].processes[0].pid if one.samples[-1].processes else 0] = one
    found = [judged for one in last.values() if (judged := _judged(one, session)) is not None]
    return max(found, key=lambda one: (one.hangs, one.age_s), default=None)


def _judged(found: Standstill, session: Session) -> OpenStandstill | None:
    """Return a standstill if it was not over when the session ended, or None."""
    last = found.samples[-1]
    pids = {one.pid for one in last.processes} if last.beside else None
    if found.over or any(step.start_s > found.since_s + 1e-3 and (pids is None or step.pid in pids) for step in session.steps):
        return None
    limit_s = session.facts.get("time_limit_s")
    end_s = session.duration_s if session.duration_s is not None else max(last.time_s, _last_s(session))
    end_s = min(end_s, float(limit_s)) if limit_s and end_s > float(limit_s) > last.time_s else end_s
    samples = _same_places(found)
    by_pid: dict[int, list[StandingProcess]] = {}
    for sample in samples:
        for one in sample.processes:
            by_pid.setdefault(one.pid, []).append(one)
    return _judge(_Judged(samples, end_s - found.since_s, found.scale, session.cwd, by_pid), session)


def hang(found: OpenStandstill, share: float) -> Finding:
    """Return the finding of a standstill that is a hang. share: of the step, 0 to 1."""
    evidence = (*found.evidence, *((found.advice,) if found.advice else ()))
    return replace(make_finding("HANG", share, *evidence), summary=found.words, confidence=found.confidence)


def _last_s(session: Session) -> float:
    return session.samples[-1].time_s if session.samples else 0.0


def _same_places(found: Standstill) -> tuple[StandstillSample, ...]:
    """Return the last samples in which all processes stand in the same functions as in the last one, at least three."""
    samples: list[StandstillSample] = []
    for sample in reversed(found.samples):
        if len(samples) >= LEAST_SAMPLES and _functions(sample) != _functions(samples[-1]):
            break
        samples.append(sample)
    return tuple(reversed(samples))


def _functions(sample: StandstillSample) -> dict[int, tuple[str, str] | None]:
    return {one.pid: one.frames[-1][:2] if one.frames else None for one in sample.processes if not is_idle_worker(one)}


def _judge(judged: _Judged, session: Session) -> OpenStandstill | None:
    trainers = judged.trainers()
    here = [one for one in trainers if not one.ended]
    if not here or judged.age_s <= 0:
        return None
    several = len(trainers) > 1
    culprits = [culprit for one in here for culprit in _standing(judged, one)]
    longest_s = max(one.longest_s for one in here)
    proof = _proof(trainers)
    hangs = _hangs(judged, session, trainers, culprits, proof)
    spins = not hangs and _spins(judged, here, culprits)
    clauses = dict.fromkeys(_clause(judged, one, several=several) for one in trainers[:MOST_CLAUSES])
    more = f"; and {len(trainers) - MOST_CLAUSES} more ranks" if len(trainers) > MOST_CLAUSES else ""
    which = f" in {_processes_words(here)}" if judged.last.beside else ""
    words = f"no step for {judged.age_s:.0f} s{which}: {'; '.join(clauses)}{more}"
    return OpenStandstill(
        age_s=judged.age_s,
        words=f"suspected: {words}" if spins else words,
        hangs=hangs,
        confidence=_confidence(judged, culprits, proof),
        in_next=all(one.phase == "waits" for one in here),
        evidence=tuple(
            filter(
                None,
                (
                    SPIN_WORDS if spins else None,
                    proof,
                    _use_words(judged, session),
                    _before_words(here, longest_s),
                    _beside_words(judged.last.beside),
                ),
            )
        ),
        advice=_lock_advice(culprits),
        pids=tuple(one.pid for one in here),
    )


def _hangs(
    judged: _Judged,
    session: Session,
    trainers: Sequence[StandingProcess],
    culprits: Sequence[StandingProcess],
    proof: str | None,
) -> bool:
    """Return whether nothing moves any more: all stand still, and use nothing, for long enough or with a proof."""
    here = [one for one in trainers if not one.ended]
    exchange = any(collective_of(one) is not None for one in here)
    if len(judged.samples) < LEAST_SAMPLES or not (culprits or exchange) or not all(map(judged.stands, culprits)):
        return False
    if all(one.phase == "nothing" for one in here) and not exchange:
        return False  # a command that may not train at all, or is still at its preparations
    if any(map(is_event_loop, culprits)):
        return False
    if judged.last.beside and any(one.worker < 0 and _what(one) in WAITS_FOR_OTHERS for one in culprits):
        return False
    begun = any(one.steps > 1 for one in here)  # the first step compiles, downloads and allocates
    first_s = LOCKED_S if culprits and all(map(_takes_lock, culprits)) else FIRST_STEP_S
    least_s = LONGEST_GAPS * max(one.longest_s for one in here) if begun else first_s * judged.scale
    # Ranks that wait in an exchange may use a core and a GPU for that. Those outside must use nothing.
    outside = frozenset(one.pid for one in culprits)
    outside_quiet = judged.cores(outside) < QUIET_CORES
    if proof is not None and outside_quiet:
        return True
    if not culprits and any(one.phase != "nothing" and one.world_size > len(trainers) for one in here):
        return False  # a rank of another machine may work
    if any(one.worker < 0 and _what(one) in ENDS_BY_ITSELF for one in culprits):
        least_s = max(least_s, FIRST_STEP_S * judged.scale)
    outside_quiet = outside_quiet and judged.bytes_s(outside) < QUIET_BYTES_S
    quiet = judged.cores() < QUIET_CORES and judged.bytes_s() < QUIET_BYTES_S and _gpu(judged, session) < QUIET_GPU
    return judged.age_s >= least_s and (quiet or (exchange and bool(culprits) and outside_quiet))


def _takes_lock(process: StandingProcess) -> bool:
    """Return whether a worker takes a lock of Python's threads: only another thread of that worker could give it back."""
    place = place_of(process) if process.worker >= 0 else None
    return place is not None and place.lock is not None


def _confidence(judged: _Judged, culprits: Sequence[StandingProcess], proof: str | None) -> float:
    if proof is not None:
        return SURE
    if any(one.worker < 0 and _what(one) in ("", SLEEPS) and not _waits_for_worker(one) for one in culprits):
        return MEANT
    return LONG if judged.age_s >= LONG_S * judged.scale else SHORT


def _standing(judged: _Judged, trainer: StandingProcess) -> list[StandingProcess]:
    """Return who stands for a training process: workers that make a batch, or itself; no one if it waits for other ranks."""
    if collective_of(trainer) is not None:
        return []
    if _waits_for_worker(trainer):
        busy = [one for one in judged.workers(trainer) if not is_idle_worker(one)]
        return [one for one in busy if judged.stands(one)] or busy or [trainer]
    return [trainer]


def _clause(judged: _Judged, trainer: StandingProcess, *, several: bool) -> str:
    """Return what a training process does, in words."""
    rank = f"rank {trainer.rank}" if several else "the training thread"
    ended = f"{rank} ended its loader after {count_text(trainer.batches, 'batch')}" if trainer.phase == "epoch ended" else ""
    if trainer.ended:
        return ended or f"{rank} has ended after {count_text(trainer.steps, 'step')}"
    exchange = collective_of(trainer)
    if exchange is not None:
        done = max(0, trainer.batches - (trainer.phase == "runs"))
        since = f" since step {done:,}" if trainer.phase != "nothing" else ""
        return f"{ended} and waits in {exchange}" if ended else f"{rank} waits in {exchange}{since}"
    standing = _standing(judged, trainer)
    if standing != [trainer]:
        by_words: dict[str, list[StandingProcess]] = {}
        for one in standing:
            by_words.setdefault(_where(judged, one), []).append(one)
        said = [_workers_words(ones, words) for words, ones in list(by_words.items())[:MOST_CLAUSES]]
        more = [f"and at {len(by_words) - MOST_CLAUSES} more places"] if len(by_words) > MOST_CLAUSES else []
        workers = ", ".join((*said, *more))
        return f"{rank}: {workers}" if several else workers
    if _waits_for_worker(trainer):
        return f"{rank} waits for a batch, and no worker makes one"
    return f"{f'{ended} and' if ended and several else rank} {_where(judged, trainer, wait_first=True)}"


def _where(judged: _Judged, process: StandingProcess, *, wait_first: bool = False) -> str:
    """Return the place of a process in words: where it was last seen, if it did not answer in the last sample."""
    if process.state in STOPPED:
        return "is stopped (SIGSTOP, or a debugger)"
    place = place_of(process)
    if place is not None:
        return place_words(place, judged.cwd, wait_first=wait_first)
    before = next((found for one in reversed(judged.history(process.pid)) if (found := place_of(one)) is not None), None)
    if before is not None:
        return place_words(before, judged.cwd).replace("stands", "was last seen", 1)
    return "runs, its stack is not known" if process.state == RUNS else "stands still, its stack is not known"


def _waits_for_worker(trainer: StandingProcess) -> bool:
    """Return whether `next()` of PyTorch's loader waits for a batch of a worker."""
    return any(frame[0] in ("_get_data", "_try_get_data") for frame in trainer.frames)


def _workers_words(workers: Sequence[StandingProcess], where: str) -> str:
    """Return where one or several workers stand: `workers 0 and 1 (4018, 4019) stand at train.py:12 in __getitem__`."""
    workers = sorted(workers, key=lambda one: one.worker)
    if len(workers) == 1:
        number = f"worker {workers[0].worker}" if workers[0].worker >= 0 else "a worker"
        return f"{number} ({workers[0].pid}) {where}"
    stand = where.replace("stands", "stand", 1)
    pids = ", ".join(str(one.pid) for one in workers[:4])
    if len(workers) > 4:
        return f"{len(workers)} workers ({pids}, …) {stand}"
    numbers = [str(one.worker) if one.worker >= 0 else "?" for one in workers]
    return f"workers {', '.join(numbers[:-1])} and {numbers[-1]} ({pids}) {stand}"


def _proof(trainers: Sequence[StandingProcess]) -> str | None:
    """Return what proves that no step can come, or None: a rank takes no step that others wait for."""
    here = [one for one in trainers if not one.ended and one.phase not in ("nothing", "epoch ended")]
    waiting = [one for one in here if collective_of(one) is not None]
    without = [one for one in trainers if one.ended or (one.phase == "epoch ended" and collective_of(one) is not None)]
    if waiting and without:
        return f"the exchange needs every rank, and rank {without[0].rank} takes no further step of this epoch"
    return None


def _gpu(judged: _Judged, session: Session) -> float:
    """Return the use of the GPU, 0 to 1; 0 where the job uses none."""
    used = any(step.gpu_step_s is not None for step in session.steps)
    used = used or (session.facts.get("configuration") or {}).get("device") == "cuda"
    return max((sample.gpu_busy or 0.0 for sample in judged.samples[1:]), default=0.0) if used else 0.0


def _spins(judged: _Judged, here: Sequence[StandingProcess], culprits: Sequence[StandingProcess]) -> bool:
    """Return whether the one process that stands uses a core in a function of the script, with nothing read or written.

    With several ranks that is no sign: one may validate, while the others wait for it.
    """
    if len(here) != 1 or len(culprits) != 1 or len(judged.samples) <= LEAST_SAMPLES:
        return False
    places = {one.frames[-1][:2] if one.frames else ("", "") for one in judged.history(culprits[0].pid)}
    own = len(places) == 1 and places.pop()[1].startswith(OWN)
    return own and judged.cores(frozenset((culprits[0].pid,))) >= SPIN_CORES and judged.bytes_s() < QUIET_BYTES_S


def _launches(process: StandingProcess) -> bool:
    """Return whether a process only starts the ranks and waits for them (torchrun)."""
    return any(file.startswith(LAUNCHERS) for _, file, _ in process.frames)


def _what(process: StandingProcess) -> str:
    place = place_of(process)
    return place.what if place is not None else ""


def _use_words(judged: _Judged, session: Session) -> str:
    gpu = _gpu(judged, session)
    also = f"; the GPU is used {percent_text(gpu)}" if gpu else ""
    return (
        f"over {len(judged.samples)} samples all processes together use {judged.cores():.2f} cores and move "
        f"{judged.bytes_s() / 1024:.1f} KiB/s{also}"
    )


def _processes_words(processes: Sequence[StandingProcess]) -> str:
    """Return which training stands, of several that a command runs at the same time."""
    if len(processes) == 1:
        return f"process {processes[0].pid}"
    return f"the job of process {processes[0].pid} and {count_text(len(processes) - 1, 'more rank')}"


def _beside_words(pids: Sequence[int]) -> str | None:
    if not pids:
        return None
    shown = ", ".join(str(pid) for pid in pids[:MOST_CLAUSES]) + (", …" if len(pids) > MOST_CLAUSES else "")
    return f"the command runs another training beside it ({'pids' if len(pids) > 1 else 'pid'} {shown})"


def _before_words(trainers: Sequence[StandingProcess], longest_s: float) -> str:
    steps = max(one.steps for one in trainers)
    if not steps:
        return "no batch has come yet"
    return f"{count_text(steps, 'batch')} came before, the longest time between two changes was {longest_s:.3g} s"


def _lock_advice(culprits: Sequence[StandingProcess]) -> str | None:
    """Return what to do about a lock that a worker waits for; None where no worker takes a lock at its place."""
    places = [place_of(one) for one in culprits if one.worker >= 0]
    lock = next((place.lock for place in places if place is not None and place.lock), None)
    if lock is None:
        return None
    return (
        f"a worker that was forked while another thread held {lock} waits for ever: start the workers before that thread, "
        'or with multiprocessing_context="spawn" or "forkserver"'
    )
