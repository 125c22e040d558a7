"""The rules for the training process and its device: copies, waits, overhead, computation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis_checks import check, fix
from headrace.diagnosis.diagnose import diagnose
from headrace.report.text.screen import first_screen
from headrace.session.model import Event, Session, Step
from headrace.session.stacks import Stack, StackFrame
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


def waits_once(busy: float, *, drained: int) -> Session:
    """The session of a loop that reads its loss in each step. busy: the GPU's share of the time with a kernel."""
    session = make_session(cpu_s=0.002, compute_s=0.1, sync_s=0.045, sync_count=1, gpu_wait_share=0.0, gpu_busy=busy, cores=8)
    return replace(session, steps=tuple(replace(step, drained=drained) for step in session.steps))


def test_one_wait_per_step_counts_where_the_gpu_has_nothing_left_to_do() -> None:
    diagnosis = check(waits_once(0.62, drained=1), "SYNC_BOUND")
    found = diagnosis.findings[0]
    assert found.share == pytest.approx(0.38, abs=0.01) and "once per step" in found.evidence[0]
    assert diagnosis.share_of_step["sync"] == pytest.approx(found.share, abs=1e-3), "the bar and the verdict are one number"
    assert fix(diagnosis, "remove_sync").gain == pytest.approx(1 / (1 - found.share), rel=0.02)


def test_a_gpu_that_idles_for_a_reason_not_seen_is_not_called_busy() -> None:
    session = waits_once(0.62, drained=0)
    diagnosis = check(session, "COMPUTE_BOUND")
    screen = first_screen(diagnosis, session=session)
    assert screen.headline == "The GPU runs kernels 62 % of the time; what it waits for in the rest was not seen."
    assert diagnosis.confidence <= 0.5 and not screen.is_healthy
    busy = waits_once(0.85, drained=0)
    assert first_screen(diagnose(busy), session=busy).headline == "The GPU is kept busy. The input keeps up."


def test_waits_for_the_device_are_one_number_in_bar_verdict_and_fix_beside_a_slow_script() -> None:
    session = make_session(cpu_s=0.002, compute_s=0.1, sync_s=0.04, sync_count=5, cores=8)
    steps = tuple(replace(step, after_s=0.04, after_cpu_s=0.08, after_queue_s=0.0) for step in session.steps)
    loop = StackFrame("<module>", "/work/project/train.py", 50)
    model = (loop, StackFrame("Module._call_impl", "torch/nn/modules/module.py", 1))
    log = (loop, StackFrame("log", "/work/project/train.py", 31))
    stacks = (Stack(MAIN_PID, "step", 60, False, model, 0), Stack(MAIN_PID, "step", 40, False, log, 0, after_optimizer=True))
    diagnosis = diagnose(replace(session, steps=steps, stacks=stacks))
    found = next(one for one in diagnosis.findings if one.kind == "SYNC_BOUND")
    assert found.share == pytest.approx(diagnosis.share_of_step["sync"], abs=1e-3)
    assert fix(diagnosis, "remove_sync").gain == pytest.approx(1 / (1 - (found.share or 0.0)), rel=0.02)
