"""Contention of threads inside a process: when it is named, what fewer threads are predicted to bring, when it is not named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from diagnosis_checks import check, fix
from headrace.diagnosis.diagnose import diagnose
from headrace.session.model import Event, Session
from session_factory import MAIN_PID, make_session


def pool_job(
    *, threads: int = 2, useful_s: float | None = 0.016, queue_s: float = 0.6, pool_s: float = 0.09, foreign: float = 1.7
) -> Session:
    """A job that makes its batches itself: 92 ms of CPU an image is spent, `useful_s` per image is needed (batches of 8)."""
    session = make_session(
        workers=0, cpu_s=0.37, queue_s=queue_s, compute_s=0.01, batch_size=8, cores=2, foreign_cores=foreign, queue_share=0.6
    )
    main = replace(session.processes[0], torch_threads=threads, thread_settings={"OMP_NUM_THREADS": "2", "torch": threads})
    batches = tuple(replace(batch, pid=MAIN_PID, pool_cpu_s=8 * pool_s / 2, preempted=60) for batch in session.batches)
    steps = tuple(
        replace(step, wait_cpu_s=0.37, wait_queue_s=queue_s, cpu_s=0.001, queue_s=0.0001, process_cpu_s=0.37 + 8 * pool_s / 2)
        for step in session.steps
    )
    measured = json.dumps({"low_s": 8 * (useful_s or 0), "high_s": 8 * 1.3 * (useful_s or 0)})
    events = (Event(MAIN_PID, "operator_cpu", 5.0, 0.0, measured),) if useful_s is not None else ()
    return replace(
        session,
        processes=(main, *session.processes[1:]),
        batches=batches,
        steps=steps,
        events=events,
        command=("python", "t.py"),
    )


def test_spinning_threads_beside_other_programs_are_cpu_oversubscribed() -> None:
    diagnosis = check(pool_job(), "CPU_OVERSUBSCRIBED")
    words = " ".join(diagnosis.findings[0].evidence)
    assert "has 2 threads; with other programs 3.7 threads want 2 cores" in words
    assert "91.4 ms of CPU time, of which its work needs 7.25 ms to 20.9 ms" in words
    assert "49 % of the CPU time is that of the pool's other threads" in words
    assert "60 times per batch" in words
    assert "OMP_NUM_THREADS=2, torch has 2 threads" in words
    first, *others = (found.share or 0.0 for found in diagnosis.findings)
    assert first >= max(others)
    assert first + max(others) <= 1.001, "other causes keep the time that contention does not explain"


def two_ranks(**options: float) -> Session:
    """Two ranks with the same numbers on one machine; no other program runs."""
    first = pool_job(foreign=0.0, **options)
    other = MAIN_PID + 100

    def both(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*rows, *(replace(row, pid=other) for row in rows))

    mains = tuple(replace(process, rank=rank, world_size=2, pid=MAIN_PID + 100 * rank) for rank in (0, 1)
                  for process in first.processes[:1])  # fmt: skip
    return replace(
        first,
        processes=mains,
        loaders=both(first.loaders),
        steps=both(first.steps),
        batches=both(first.batches),
        events=both(first.events),
    )


def test_the_threads_of_all_ranks_of_a_machine_want_its_cores() -> None:
    assert not any(found.kind == "CPU_OVERSUBSCRIBED" for found in diagnose(pool_job(foreign=0.0)).findings)
    diagnosis = check(two_ranks(), "CPU_OVERSUBSCRIBED")
    words = " ".join(diagnosis.findings[0].evidence)
    assert "each of 2 ranks has 2 threads; with other programs 4 threads want 2 cores" in words
    assert fix(diagnosis, "threads=1").gain is not None


def test_threads_fix_is_predicted_from_the_useful_cpu_time() -> None:
    diagnosis = diagnose(pool_job())
    found = fix(diagnosis, "threads=1")
    assert found.command == "OMP_NUM_THREADS=1 python t.py"
    ratio, rest_s = 0.6 / 0.37, 0.01 + 0.0005
    longest_s = 8 * 1.3 * 0.016 * (1 + 0.85 * ratio) + rest_s
    shortest_s = 8 * 0.45 * 0.016 * (1 + 0.1 * ratio) + rest_s
    assert found.interval is not None
    assert found.interval == pytest.approx((0.9 * 8 / longest_s, 1.1 * 8 / shortest_s), rel=0.05)
    assert found.predicted_img_s == pytest.approx(8 / math.sqrt(longest_s * shortest_s), rel=0.05)


def test_workers_are_not_called_useless_where_their_one_thread_ends_the_contention() -> None:
    found = fix(diagnose(pool_job()), "num_workers")
    assert found.predicted_img_s is None and "≈ 0" not in found.change
    assert found.basis is not None and "one thread" in found.basis


def test_useful_work_of_a_pool_is_not_reported() -> None:
    session = pool_job(useful_s=0.09)  # nearly all of the CPU time is needed
    assert not any(found.kind == "CPU_OVERSUBSCRIBED" for found in diagnose(session).findings)


def test_without_a_measurement_of_the_useful_work_nothing_is_claimed() -> None:
    assert not any(item.id.startswith("threads") for item in diagnose(pool_job(useful_s=None)).fixes)


def partly_quiet(share: float, cheap: float, *, batch_size: int = 8) -> Session:
    """A job whose operators were measured while every call spun; `share` of its later batches take `cheap` of the mean CPU."""
    session = pool_job(useful_s=0.09)
    steps = tuple(replace(step, items=batch_size) for step in session.steps)
    least = int(1 / share)
    batches = tuple(
        replace(batch, cpu_s=cheap * (batch.cpu_s or 0), pool_cpu_s=cheap * (batch.pool_cpu_s or 0))
        if at % least == 1
        else batch
        for at, batch in enumerate(session.batches)
    )
    return replace(session, batches=batches, steps=steps)


def test_batches_that_did_not_spin_tell_the_useful_work() -> None:
    """Seen in a real job: the six measured batches all spun for 1.2 s, later ones took 17 ms."""
    diagnosis = check(partly_quiet(0.25, 0.05), "CPU_OVERSUBSCRIBED")
    assert fix(diagnosis, "threads=1").gain is not None


@pytest.mark.parametrize(("share", "cheap", "batch_size"), [(0.25, 0.6, 8), (0.02, 0.05, 8), (0.25, 0.05, 1)])
def test_batches_that_differ_by_their_images_tell_nothing(share: float, cheap: float, batch_size: int) -> None:
    found = diagnose(partly_quiet(share, cheap, batch_size=batch_size)).findings
    assert not any(one.kind == "CPU_OVERSUBSCRIBED" for one in found)


def test_a_pool_on_free_cores_is_not_reported() -> None:
    session = pool_job(queue_s=0.004, foreign=0.0)
    assert not any(found.kind == "CPU_OVERSUBSCRIBED" for found in diagnose(session).findings)


def cpu_model(*, queue_s: float, undisturbed_s: float, foreign: float) -> Session:
    """A model trained on the CPU with two threads; every tenth step is undisturbed and takes `undisturbed_s` of CPU time."""
    session = make_session(workers=1, cpu_s=0.004, compute_s=0.1 + queue_s, cores=2, foreign_cores=foreign, batch_size=8)
    main = replace(session.processes[0], torch_threads=2, thread_settings={"torch": 2})
    steps = tuple(
        replace(
            step,
            cpu_s=undisturbed_s if number % 10 == 0 else 0.1,
            queue_s=queue_s,
            wait_cpu_s=0.0005,
            wait_queue_s=0.0,
            process_cpu_s=0.2,
        )
        for number, step in enumerate(session.steps)
    )
    return replace(session, processes=(main, *session.processes[1:]), steps=steps)


def test_a_model_trained_on_the_cpu_keeps_its_threads() -> None:
    for foreign, queue_s in ((0.0, 0.002), (0.0, 0.015), (1.5, 0.3)):
        diagnosis = diagnose(cpu_model(queue_s=queue_s, undisturbed_s=0.095, foreign=foreign))
        assert not any(item.id.startswith("threads") for item in diagnosis.fixes), (foreign, queue_s)


def test_a_small_model_that_spins_beside_other_programs_is_named() -> None:
    session = cpu_model(queue_s=0.3, undisturbed_s=0.005, foreign=1.5)
    diagnosis = check(session, "CPU_OVERSUBSCRIBED")
    assert (fix(diagnosis, "threads=1").gain or 0) > 5


def test_fewer_threads_of_the_model_make_no_batch_cheaper_in_the_training_process() -> None:
    """Batches take 60 ms of CPU and wait 120 ms for a core; the model spins. Without its threads only waits can end."""
    session = make_session(
        workers=0, cpu_s=0.06, queue_s=0.12, compute_s=0.11, batch_size=16, cores=2, foreign_cores=1.6, queue_share=0.6
    )
    main = replace(session.processes[0], torch_threads=2, thread_settings={"torch": 2})
    steps = tuple(
        replace(
            step,
            wait_cpu_s=0.06,
            wait_queue_s=0.12,
            cpu_s=0.002 if number % 10 == 0 else 0.03,
            queue_s=0.08,
            process_cpu_s=0.12,
        )
        for number, step in enumerate(session.steps)
    )
    diagnosis = diagnose(replace(session, processes=(main, *session.processes[1:]), steps=steps))
    found = fix(diagnosis, "threads=1")
    assert found.predicted_img_s is not None and found.interval is not None
    assert found.predicted_img_s < 16 / 0.06 and found.interval[1] < 1.2 * 16 / 0.06
    assert found.predicted_img_s > 1.1 * (diagnosis.img_s or 0)
    assert any("computing on an image takes" in words for words in diagnosis.findings[0].evidence)


def worker_pools(cv2_threads: int, *, workers: int = 4, foreign: float = 0.0, library: str = "cv2") -> Session:
    """Workers whose OpenCV (or another library) has a pool each, on four cores."""
    session = make_session(
        workers=workers, cpu_s=0.06, queue_s=0.12, compute_s=0.005, cores=4, foreign_cores=foreign, batch_size=8
    )
    processes = tuple(
        replace(each, torch_threads=1, thread_settings={"torch": 1, library: cv2_threads}) if each.role == "worker" else each
        for each in session.processes
    )
    batches = tuple(
        replace(batch, pool_cpu_s=0.06, other_cpu_s=0.0602, cpu_s=0.015 if number % 8 == 0 else 0.06)
        if number % 8
        else replace(batch, pool_cpu_s=0.003, other_cpu_s=0.0032, cpu_s=0.015)
        for number, batch in enumerate(session.batches)
    )
    return replace(session, processes=processes, batches=batches)


def test_pools_of_workers_on_an_idle_machine_are_named() -> None:
    diagnosis = check(worker_pools(4), "CPU_OVERSUBSCRIBED")
    assert "each of 4 workers has 4 threads" in diagnosis.findings[0].evidence[0]
    assert fix(diagnosis, "threads=1").gain is not None
    assert "cv2.setNumThreads(1)" in fix(diagnosis, "threads=1").change
    command = fix(diagnosis, "threads=1").command or ""
    assert command.startswith("OPENCV_FOR_THREADS_NUM=1 "), "OpenCV's own pool does not follow OMP_NUM_THREADS"
    assert not any(found.kind == "CPU_OVERSUBSCRIBED" for found in diagnose(worker_pools(1)).findings)


def test_pools_of_numpys_blas_are_named_with_the_variables_that_limit_them() -> None:
    session = worker_pools(4, library="blas")
    found = fix(check(session, "CPU_OVERSUBSCRIBED"), "threads=1")
    assert "worker_init_fn" not in found.change and (found.command or "").startswith("OMP_NUM_THREADS=1 ")
    assert "settings: torch has 1 thread, blas has 4 threads" in diagnose(session).findings[0].evidence


def test_fewer_threads_of_the_training_process_never_beat_the_making_of_batches_by_workers() -> None:
    session = make_session(
        workers=2, cpu_s=0.12, queue_s=0.05, compute_s=0.03, batch_size=16, cores=2, foreign_cores=1.0, queue_share=0.6
    )
    main = replace(session.processes[0], torch_threads=2, thread_settings={"torch": 2})
    steps = tuple(
        replace(step, cpu_s=0.008 if number % 10 else 0.001, queue_s=0.02, process_cpu_s=0.02, wait_cpu_s=0.0005)
        for number, step in enumerate(session.steps)
    )
    session = replace(session, processes=(main, *session.processes[1:]), steps=steps)
    diagnosis = diagnose(session)
    floor_s = (0.12 + 0.0005) / 2  # CPU of a batch over two workers
    for item in diagnosis.fixes:
        if item.id.startswith("threads") and item.predicted_img_s is not None and item.interval is not None:
            assert item.predicted_img_s <= 1.05 * 16 / floor_s
            assert item.interval[1] <= 1.2 * 16 / floor_s
    assert diagnosis.findings[0].kind != "CPU_OVERSUBSCRIBED"
