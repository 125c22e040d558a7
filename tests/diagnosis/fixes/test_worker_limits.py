"""The advice `num_workers=N`: bounded by memory per worker, /dev/shm and cores, and it says which bound applied."""

from __future__ import annotations

from dataclasses import replace

from diagnosis_checks import fix
from headrace.diagnosis.diagnose import diagnose
from headrace.report.pages import html
from headrace.session.model import Event, Session
from session_factory import MAIN_PID, make_session

GIB = 1 << 30


def waiting(*, worker_gib: float | None = None, free_gib: float = 12.0, shm_gib: float = 8.0, batch_mb: float = 1.0) -> Session:
    """A job of two workers on two cores, whose reads take 120 ms per batch beside a step of 2 ms."""
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.12, compute_s=0.002, cores=2, jitter=0.0)
    samples = tuple(
        replace(
            sample,
            memory_used_bytes=int((16 - free_gib) * GIB),
            memory_limit_bytes=16 * GIB,
            shared_memory_free_bytes=int(shm_gib * GIB),
        )
        for sample in session.samples
    )
    steps = tuple(replace(step, batch_bytes=int(batch_mb * 1e6)) for step in session.steps)
    held = () if worker_gib is None else tuple(
        Event(MAIN_PID + 1 + number, "worker_memory", 3.0, 0.0, str(int(worker_gib * GIB))) for number in range(2)
    )  # fmt: skip
    return replace(session, samples=samples, steps=steps, events=held)


def test_a_latency_bound_job_may_have_more_workers_than_cores_and_is_told_what_they_need() -> None:
    found = fix(diagnose(waiting(worker_gib=0.1)), "num_workers")
    assert found.id == "num_workers=32"
    assert "more than the 2 cores: they mostly wait, not compute" in found.change
    assert "3.2 GiB of memory" in found.change and "of /dev/shm" in found.change


def test_memory_bounds_the_workers() -> None:
    found = fix(diagnose(waiting(worker_gib=1.5)), "num_workers")
    assert found.id == "num_workers=8", "2 and 0.8 of 12 GiB, 1.5 GiB each"
    assert "no more: 12.0 GiB of memory are left, and a worker holds 1.5 GiB" in found.change


def test_shared_memory_bounds_the_workers() -> None:
    found = fix(diagnose(waiting(worker_gib=0.1, shm_gib=0.0625, batch_mb=3.2)), "num_workers")
    assert found.id == "num_workers=7", "2 and 0.8 of 64 MiB, three batches of 3.2 MB each"
    assert "of /dev/shm are free, and the batches of a worker take" in found.change


def test_no_more_workers_are_proposed_where_not_one_fits() -> None:
    found = diagnose(waiting(worker_gib=20.0))
    assert not any(item.id.startswith("num_workers") for item in found.fixes)
    words = "not one more loader worker fits: 12.0 GiB of memory are left, and a worker holds 20.0 GiB"
    assert found.primary is not None and words in found.primary.evidence
    assert words[1:] in html.render(found).replace("\xa0", " ")
    assert "not one more" not in str(diagnose(waiting(worker_gib=1.5)).findings)


def test_memory_that_other_programs_hold_is_not_left() -> None:
    """A job's control group without a limit shows only what the job itself holds: MemAvailable tells of the others."""
    session = waiting(worker_gib=1.5)
    samples = tuple(replace(one, memory_left_bytes=4 * GIB) for one in session.samples)
    found = fix(diagnose(replace(session, samples=samples)), "num_workers")
    assert found.id == "num_workers=4", "2 and 0.8 of 4 GiB, 1.5 GiB each"
    assert "no more: 4.0 GiB of memory are left, and a worker holds 1.5 GiB" in found.change
    assert found.change in html.render(diagnose(replace(session, samples=samples))).replace("\xa0", " ")


def test_cores_bound_the_workers_where_they_bind() -> None:
    session = make_session(workers=1, cpu_s=0.08, compute_s=0.01, cores=4)
    samples = tuple(replace(sample, core_busy=(0.3,) * 4) for sample in session.samples)
    found = fix(diagnose(replace(session, samples=samples)), "num_workers")
    assert int(found.id.partition("=")[2]) <= 5
    assert "no more: 4 cores bind" in found.change
