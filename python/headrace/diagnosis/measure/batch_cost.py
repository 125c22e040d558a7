"""The cost of making one batch: seconds on a core, queueing for a core, blocked, and collating."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.diagnosis.measure.stats import Spans, mean, mean_of_known, median, required
from headrace.session.model import Batch, Event, ObservedLoader, Process, Session, Step, owners
from headrace.session.stacks import Stack, StackFrame

__all__ = ["BatchCost", "Recorded", "measure_batch_cost"]

UNDISTURBED = 0.2
"""Accept the experiment when other workers were busy for at most this share of the time of the batch made alone."""

NEAREST, LEAST_NEAREST = 20, 3
"""Compare the batch made alone with this many batches nearest in time, the two nearest left out; need at least so many."""

MOST_SHARED = 16
"""Measure the batches of workers that are no process's own for so many training processes; further ones get the last answer.

A session names any number of processes, and each looks at all such batches.
"""

MOST_ALONE = 16
"""Look at so many batches made alone, the last ones. The experiment makes one for each worker at most."""

LEAST_REFUSED = 0.2
"""Count a store as refusing when it refuses a request in one batch of five or more: now and then, any store does."""

BACKOFF_SHARE = 0.2
"""Count a store as refusing when clients wait to ask again for at least this share of the time of making batches."""

LEAST_SAMPLES = 30
"""Take the share of waiting to ask again from this many sampled stacks on."""

BACKOFF_WORDS = ("retry", "retries", "backoff", "tenacity")
"""Words in the name of a function, or of its file, that waits before it asks a store again: urllib3, botocore, google, …"""


@dataclass(frozen=True, slots=True)
class BatchCost:
    """The mean cost of making one batch in one worker. Times are seconds; None means not measured.

    wall_s: the whole time.
    cpu_s: on a core, collating included.
    queue_s: ready to run, waiting for a core.
    blocked_s: neither: waiting for storage, network or a lock.
    collate_s, collate_cpu_s: in the collate function, and on a core there.
    other_cpu_s: CPU time of the worker process outside the fetching thread (serialising, native threads).
    socket_s: in reads from sockets.
    read_bytes, disk_bytes: read by system calls, and of these from a disk.
    pool_cpu_s: CPU time of the process's other threads while the batch was made, Python threads left out.
    preempted: how often the kernel took the core from a running thread of the process meanwhile.
    alone_ratio: blocked time beside the other workers over blocked time alone. 1 means that storage serves all readers
        equally well; the number of workers means that storage serves one at a time. None without the experiment.
    refused: answers per batch in which a store asks for fewer requests (HTTP 429 and 503).
    backoff_share, backoff: share of the time of making a batch in which a client waits before it asks again, by sampled stacks,
        and the function that waits.
    """

    wall_s: float
    cpu_s: float | None
    queue_s: float | None
    blocked_s: float | None
    collate_s: float
    collate_cpu_s: float
    other_cpu_s: float
    socket_s: float
    read_bytes: float | None
    disk_bytes: float | None
    alone_ratio: float | None
    pool_cpu_s: float | None = None
    preempted: float | None = None
    refused: float = 0.0
    backoff_share: float = 0.0
    backoff: StackFrame | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the store refuses requests, so that more of them bring nothing: its rate now is all that it gives."""
        return self.refused >= LEAST_REFUSED or self.backoff_share >= BACKOFF_SHARE

    def with_queueing(self, queue_share: float | None) -> BatchCost:
        """Return the cost with the queueing for a core that was not measured, from the share of the job's threads.

        queue_share: share of their runnable time in which the job's threads wait for a core; None where not measured.
        """
        if queue_share is None or self.cpu_s is None or self.queue_s is not None:
            return self
        queued_s = self.cpu_s * queue_share / max(1e-9, 1 - queue_share)
        off_core_s = self.off_core_s
        queue_s = min(off_core_s, queued_s)
        return replace(self, queue_s=queue_s, blocked_s=off_core_s - queue_s)

    @property
    def off_core_s(self) -> float:
        """Seconds blocked. Where queueing was not measured, seconds blocked or queueing, outside the collate function."""
        if self.blocked_s is not None or self.cpu_s is None:
            return self.blocked_s or 0.0
        return max(0.0, self.wall_s - self.cpu_s - max(0.0, self.collate_s - self.collate_cpu_s))

    @property
    def prepare_cpu_s(self) -> float:
        """CPU seconds of reading, decoding and transforming: all but collating."""
        return max(0.0, (self.cpu_s or 0.0) - self.collate_cpu_s)

    @property
    def parts_s(self) -> dict[str, float]:
        """The wall time of a batch in seconds, by what it went into. The parts sum to `wall_s`."""
        cpu_s = self.cpu_s if self.cpu_s is not None else self.wall_s
        prepare_s = max(0.0, cpu_s - self.collate_cpu_s)
        queue_s = self.queue_s or 0.0
        blocked_s = self.off_core_s
        if self.blocked_s:  # a part of it passes in the collate function
            off_core_s = blocked_s + queue_s
            blocked_s -= blocked_s * min(1.0, max(0.0, self.collate_s - self.collate_cpu_s) / off_core_s)
        rest_s = max(0.0, self.wall_s - prepare_s - queue_s - blocked_s)
        return {"on a core": prepare_s, "queueing for a core": queue_s, "blocked": blocked_s, "collating": rest_s}


class Recorded:
    """What a session recorded, by process: each training process looks at its own part, and not at all of it.

    events, stacks: by pid. probes: the times of headrace's own experiment, which also delays the few steps after it.
    """

    def __init__(self, session: Session) -> None:
        self.facts = session.facts
        self.events: dict[int, list[Event]] = {}
        for event in session.events:
            self.events.setdefault(event.pid, []).append(event)
        self.probes = Spans(
            (event.start_s, event.start_s + 2 * event.duration_s + 0.05) for event in session.events if event.name == "probe"
        )
        self.stacks: dict[int, list[Stack]] = {}
        for stack in session.stacks:
            self.stacks.setdefault(stack.pid, []).append(stack)
        self._batches: dict[tuple[int, int], list[Batch]] = {}
        self._of_workers: dict[int, list[Batch]] = {}
        for batch in session.batches:
            self._batches.setdefault((batch.pid, batch.loader), []).append(batch)
            if batch.worker >= 0:
                self._of_workers.setdefault(batch.loader, []).append(batch)
        self._workers: dict[int, list[int]] = {}
        for worker, parent in owners(session.processes).items():
            self._workers.setdefault(parent, []).append(worker)
        self._ends_s: dict[int, list[float]] = {}
        self._shared: dict[int, list[BatchCost | None]] = {}

    def family(self, process: Process) -> list[int]:
        """Return the pids of a training process and of its workers."""
        return list(dict.fromkeys((process.pid, *self._workers.get(process.pid, ()))))

    def made_by(self, pids: Iterable[int], loader: int) -> list[Batch]:
        """Return the batches of a loader that these processes made, in order of time."""
        found = [batch for pid in pids for batch in self._batches.get((pid, loader), ())]
        return sorted(found, key=lambda batch: batch.start_s)

    def ends_of(self, loader: int) -> list[float]:
        """Return when workers finished the batches of the loaders of this number, in order."""
        if loader not in self._ends_s:
            self._ends_s[loader] = sorted(batch.start_s + batch.wall_s for batch in self._of_workers.get(loader, ()))
        return self._ends_s[loader]

    def shared_cost(self, loader: int, steps: Sequence[Step]) -> BatchCost | None:
        """Return the mean cost of batches whose workers do not have the training process as their parent: a fork server's."""
        known = self._shared.setdefault(loader, [])
        if len(known) < MOST_SHARED:
            known.append(_mean_cost(self._of_workers.get(loader, []), steps, ()))
        return known[-1]


def measure_batch_cost(recorded: Recorded, process: Process, loader: ObservedLoader, steps: Sequence[Step]) -> BatchCost | None:
    """Return the mean cost of the batches made during the steady steps, or None when no batch was seen being made."""
    own = recorded.family(process)
    mine = recorded.made_by(own, loader.loader)
    stacks = [stack for pid in own for stack in recorded.stacks.get(pid, ()) if stack.loader == loader.loader]
    if mine:
        return _mean_cost(mine, steps, stacks)
    found = recorded.shared_cost(loader.loader, steps)
    backoff_share, backoff = _backoff(stacks)
    return None if found is None else replace(found, backoff_share=backoff_share, backoff=backoff)


def _mean_cost(mine: Sequence[Batch], steps: Sequence[Step], stacks: Sequence[Stack]) -> BatchCost | None:
    begin_s, end_s = steps[0].start_s, steps[-1].start_s + steps[-1].step_s
    made = [batch for batch in mine if begin_s <= batch.start_s <= end_s and not batch.alone] or mine
    if not made:
        return None
    backoff_share, backoff = _backoff(stacks)
    return BatchCost(
        wall_s=required(mean([batch.wall_s for batch in made])),
        cpu_s=mean_of_known(batch.cpu_s for batch in made),
        queue_s=mean_of_known(batch.queue_s for batch in made),
        blocked_s=mean_of_known(batch.blocked_s for batch in made),
        collate_s=mean_of_known(batch.collate_s for batch in made) or 0.0,
        collate_cpu_s=mean_of_known(batch.collate_cpu_s for batch in made) or 0.0,
        other_cpu_s=mean_of_known(batch.other_cpu_s for batch in made) or 0.0,
        socket_s=mean_of_known(batch.socket_s for batch in made) or 0.0,
        read_bytes=mean_of_known(batch.read_bytes for batch in made),
        disk_bytes=mean_of_known(batch.disk_bytes for batch in made),
        alone_ratio=_alone_ratio(mine),
        pool_cpu_s=mean_of_known(batch.pool_cpu_s for batch in made),
        preempted=mean_of_known(batch.preempted for batch in made),
        refused=mean_of_known(batch.refused for batch in made) or 0.0,
        backoff_share=backoff_share,
        backoff=backoff,
    )


def _backoff(stacks: Sequence[Stack]) -> tuple[float, StackFrame | None]:
    """Return the share of making batches in which a client waits before it asks again, and the function that waits."""
    making = [stack for stack in stacks if stack.role in ("batch", "collate") and stack.frames]
    total = sum(stack.count for stack in making)
    waiting = [stack for stack in making if _asks_again(stack.frames[-1])]
    if total < LEAST_SAMPLES or not waiting:
        return 0.0, None
    return sum(stack.count for stack in waiting) / total, max(waiting, key=lambda stack: stack.count).frames[-1]


def _asks_again(frame: StackFrame) -> bool:
    """Return whether the innermost function of a stack is one that repeats requests: its own code only waits."""
    words = f"{frame.function} {frame.file}".lower()
    return any(word in words for word in BACKOFF_WORDS)


def _alone_ratio(batches: Sequence[Batch]) -> float | None:
    """Return the blocked time of a batch beside other workers over that of a batch made alone, by the same worker.

    Only batches that were read like the one made alone count: from a disk, or from the page cache. Return None when the
    other workers did not pause during the experiment, or when too few batches can be compared.
    """
    for single in [batch for batch in reversed(batches) if batch.alone][:MOST_ALONE]:
        begin_s, end_s = single.start_s, single.start_s + single.wall_s
        beside = Spans((batch.start_s, batch.start_s + batch.wall_s) for batch in batches if batch.pid != single.pid)
        disturbed_s = beside.within(begin_s, end_s)
        if not single.blocked_s or disturbed_s > UNDISTURBED * single.wall_s:
            continue
        own = [batch for batch in batches if batch.pid == single.pid and not batch.alone][1:]
        alike = [batch for batch in own if _is_cold(batch) == _is_cold(single) and batch.blocked_s is not None]
        near = sorted(alike, key=lambda batch: abs(batch.start_s - single.start_s))[2:NEAREST]
        if len(near) >= LEAST_NEAREST:
            return required(median([batch.blocked_s or 0.0 for batch in near])) / single.blocked_s
    return None


def _is_cold(batch: Batch) -> bool:
    """Return whether most bytes of a batch came from a disk."""
    return bool(batch.read_bytes and batch.disk_bytes) and 2 * (batch.disk_bytes or 0) > (batch.read_bytes or 0)
