"""The cost of a diagnosis follows what was read of a session, and not the product of two parts of it: anybody may write one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.measure.stats import Spans, overlap_s
from headrace.session.batch_contents import Contents, GeneratorState, LoaderContents, LookedBatch, Pass, WorkerDraws
from headrace.session.model import Batch, Event, ObservedLoader, Process, Session, Step
from traced_memory import at_most

MAIN = Process(5, 1, "main", 0.0)
LOADER = ObservedLoader(5, 0, num_workers=2, batch_size=2)
MANY = 20_000


def steps(count: int, *, pid: int = 5, loader: int = 0, wait_s: float = 0.9, epochs: int = 1) -> tuple[Step, ...]:
    return tuple(
        Step(pid, loader, number * epochs // count, float(number), wait_s, 0.1, optimizer_steps=1 - loader, forward_s=0.01)
        for number in range(count)
    )


def plain(count: int = 30, **parts: object) -> Session:
    return replace(Session(processes=(MAIN,), loaders=(LOADER,), steps=steps(count)), **parts)  # type: ignore[arg-type]


def events(name: str, count: int, *, duration_s: float = 0.5, detail: str | None = None) -> tuple[Event, ...]:
    return tuple(Event(5, name, float(number), duration_s, detail) for number in range(count))


def ranks(count: int, **contents: object) -> Session:
    processes = tuple(replace(MAIN, pid=10 + n, rank=n, world_size=count) for n in range(count))
    return Session(
        processes=processes,
        loaders=tuple(replace(LOADER, pid=10 + n) for n in range(count)),
        steps=tuple(step for n in range(count) for step in steps(30, pid=10 + n)),
        contents=Contents(tuple(LoaderContents(10 + n, 0, **contents) for n in range(count))),  # type: ignore[arg-type]
    )


def steps_and_events() -> Session:
    return plain(MANY, events=events("gc", MANY))


def steps_and_a_long_event_each() -> Session:
    return plain(MANY, events=events("save", MANY, duration_s=1e6))


def steps_of_two_loaders() -> Session:
    return plain(steps=(*steps(MANY), *(replace(one, start_s=1e6 + one.start_s) for one in steps(MANY, loader=1, wait_s=0.1))))


def steps_and_probes() -> Session:
    return plain(MANY, events=tuple(replace(one, start_s=1e9) for one in events("probe", MANY)))


def epochs_and_events() -> Session:
    return plain(steps=steps(MANY, epochs=MANY // 2), events=events("other", MANY))


def steps_and_loaders() -> Session:
    return plain(steps=(*steps(MANY), *(Step(5, number, 0, 0.0, 0.0, 0.0) for number in range(1, MANY))))


def batches_made_alone() -> Session:
    made = tuple(Batch(5, 0, 0, float(number % 30), 0.5, alone=1) for number in range(MANY))
    return plain(batches=made)


def readings_of_one_process() -> Session:
    return plain(events=events("worker_shared_memory", MANY, detail="1"))


def ranks_and_batches() -> Session:
    """Of workers that are no rank's own."""
    return replace(ranks(500), batches=tuple(Batch(1, 0, 0, float(number % 30), 0.1) for number in range(MANY)))


def ranks_with_the_same_worker() -> Session:
    session = ranks(500)
    workers = tuple(Process(7, 10 + number, "worker", 0.0) for number in range(500))
    made = tuple(Batch(7, 0, 0, float(number % 30), 0.1) for number in range(MANY))
    return replace(session, processes=session.processes + workers, batches=made)


def short_passes_of_many_loaders() -> Session:
    numbers = range(4_000)
    return Session(
        processes=(MAIN,),
        loaders=tuple(replace(LOADER, loader=number) for number in numbers),
        steps=tuple(Step(5, n, epoch, 10.0 * n + epoch, 0.5, 0.5) for n in numbers for epoch in range(5)),
        events=events("gc", MANY),
    )


def looks_at_one_batch() -> Session:
    return ranks(2, first=(LookedBatch(1, "a", "b", "c"),) * 4096)


def contents_of_many_ranks() -> Session:
    return ranks(3_000, sampler="RandomSampler", passes=(Pass(0, records=5, ended=True),))


def contents_of_many_loaders() -> Session:
    contents = Contents(tuple(LoaderContents(5, number) for number in range(MANY)))
    return plain(loaders=tuple(replace(LOADER, loader=number) for number in range(MANY)), contents=contents)


def draws_of_many_workers_in_many_passes() -> Session:
    names = tuple(GeneratorState(f"g{number}", "t", "s") for number in range(200))

    def drawn(pid: int, worker: int) -> Iterator[WorkerDraws]:
        for made in range(3):
            seen = tuple(replace(one, state=str(made)) for one in names) if pid == 1000 else ()
            yield WorkerDraws(pid, 0, worker, float(pid), made, seen)

    pids = [*((1000 + n, 0) for n in range(2000)), *((5000 + n, n) for n in range(1, 2000))]
    processes = (MAIN, *(Process(pid, 5, "worker", 0.0, worker_id=worker) for pid, worker in pids))
    draws = tuple(one for pid, worker in pids for one in drawn(pid, worker))
    return plain(processes=processes, contents=Contents((LoaderContents(5, 0),), draws))


@pytest.mark.parametrize(
    "made",
    [
        steps_and_events,
        steps_and_a_long_event_each,
        steps_of_two_loaders,
        steps_and_probes,
        epochs_and_events,
        steps_and_loaders,
        batches_made_alone,
        readings_of_one_process,
        ranks_and_batches,
        ranks_with_the_same_worker,
        short_passes_of_many_loaders,
        contents_of_many_ranks,
        contents_of_many_loaders,
        draws_of_many_workers_in_many_passes,
    ],
)
def test_two_parts_of_a_session_take_no_time_for_each_other(made: Callable[[], Session]) -> None:
    """Each took from half a minute to hours for a megabyte or two."""
    session = made()
    began_s = time.process_time()
    diagnose(session)
    assert time.process_time() - began_s < 8


def test_looks_at_one_batch_again_and_again_take_no_memory() -> None:
    """A hundred kilobytes took a gigabyte."""
    session = looks_at_one_batch()
    with at_most(64 << 20):
        diagnose(session)


def test_spans_say_what_their_sum_says() -> None:
    rng = random.Random(6)
    for count in (0, 1, 3, 60):
        pairs = [(begin := rng.randrange(100) / 4, begin + rng.choice([-1, 0, 0.25, 3, 30])) for _ in range(count)]
        spans, real = Spans(pairs), [pair for pair in pairs if pair[1] > pair[0]]
        for _ in range(300):
            begin = rng.randrange(120) / 4
            end = begin + rng.choice([-1, 0, 0.25, 2, 50])
            assert spans.within(begin, end) == pytest.approx(sum(overlap_s(begin, end, *pair) for pair in real), abs=1e-9)
            if end >= begin:
                assert spans.touches(begin, end) == any(one < end and other > begin for one, other in real)
