"""The rules for the training process and its device: copies, waits, overhead, computation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis_checks import check, fix
from headrace.diagnosis.diagnose import diagnose
from headrace.session.model import Event, Session, Step
from session_factory import MAIN_PID, make_session


def test_healthy_job_is_compute_bound_without_another_finding() -> None:
    diagnosis = check(make_session(compute_s=0.04, cpu_s=0.008, workers=1), "COMPUTE_BOUND")
    assert len(diagnosis.findings) == 1
    assert fix(diagnosis, "num_workers").gain == pytest.approx(1, abs=0.03)
    assert fix(diagnosis, "num_workers").change.startswith("≈ 0")


def test_compute_bound_job_reports_how_much_faster_the_input_could_go() -> None:
    diagnosis = check(make_session(compute_s=0.04, cpu_s=0.036, workers=1, jitter=0.02), "COMPUTE_BOUND")
    assert any("faster than the model takes it" in words for words in diagnosis.findings[0].evidence)


def test_several_waits_for_the_device_per_step_are_sync_bound() -> None:
    session = make_session(cpu_s=0.002, compute_s=0.03, sync_s=0.02, sync_count=5, main_cpu_share=0.3)
    diagnosis = check(session, "SYNC_BOUND")
    assert fix(diagnosis, "remove_sync").predicted_img_s == pytest.approx(32 / 0.0205, rel=0.1)


def test_one_wait_for_the_device_per_step_is_not_reported() -> None:
    check(make_session(cpu_s=0.002, compute_s=0.03, sync_s=0.02, sync_count=1), "COMPUTE_BOUND")


def test_little_time_in_operators_is_overhead_bound() -> None:
    session = make_session(cpu_s=0.001, compute_s=0.006, batch_size=2, main_cpu_share=0.98)
    session = replace(session, events=(Event(MAIN_PID, "operators", 3.0, 0.15),))
    diagnosis = check(session, "OVERHEAD_BOUND")
    assert fix(diagnosis, "batch_size=8").gain == pytest.approx(4 / (0.85 + 4 * 0.15), rel=0.15)


def test_idle_gpu_beside_a_busy_training_thread_is_overhead_bound() -> None:
    session = make_session(cpu_s=0.001, compute_s=0.006, batch_size=2, main_cpu_share=0.98, gpu_busy=0.2)
    steps = tuple(replace(step, gpu_wait_s=0.0001, gpu_step_s=0.006, drained=1) for step in session.steps)
    check(replace(session, steps=steps), "OVERHEAD_BOUND")


def test_long_copies_to_the_gpu_are_h2d_bound_and_pinning_hides_them() -> None:
    session = make_session(cpu_s=0.001, compute_s=0.03, gpu_busy=0.7)
    steps = tuple(replace(step, gpu_wait_s=0.0001, gpu_step_s=0.03, h2d_s=0.012) for step in session.steps)
    diagnosis = check(replace(session, steps=steps), "H2D_BOUND")
    assert fix(diagnosis, "pin_memory").gain == pytest.approx(0.0305 / (0.0305 - 0.8 * 0.012), rel=0.05)
    assert not any(item.id == "pin_memory" for item in diagnose(with_pinned_batches(session, steps)).fixes)


def with_pinned_batches(session: Session, steps: tuple[Step, ...]) -> Session:
    return replace(session, steps=steps, loaders=tuple(replace(loader, pin_memory=True) for loader in session.loaders))


def test_idle_gpu_of_the_machine_is_not_taken_for_the_jobs() -> None:
    session = make_session(cpu_s=0.002, compute_s=0.03, sync_s=0.02, sync_count=5, gpu_busy=0.0)
    diagnosis = check(session, "SYNC_BOUND")
    assert not any("GPU's clock" in words for words in diagnosis.not_measured)
    used = replace(session, samples=make_session(cpu_s=0.002, compute_s=0.03, gpu_busy=0.3).samples)
    assert any("GPU's clock" in words for words in diagnose(used).not_measured)
