"""The rules for pauses: garbage collection, periodic stalls, gaps between epochs, slow starts of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from diagnosis_checks import check, fix
from headrace.diagnosis.diagnose import diagnose
from headrace.report.text.screen import first_screen
from headrace.session.model import Event, Session, Step
from session_factory import MAIN_PID, make_session

STEPS = 120


def pauses(every: int, duration_s: float, name: str, steps: Iterable[Step]) -> tuple[Event, ...]:
    return tuple(
        Event(MAIN_PID, name, step.start_s + step.wait_s + 0.001, duration_s)
        for number, step in enumerate(steps)
        if number % every == every - 1
    )


def with_pause(steps: tuple[Step, ...], every: int, duration_s: float) -> tuple[Step, ...]:
    """Add a pause to the compute of every n-th step; the steps after it start later."""
    paused: list[Step] = []
    for number, step in enumerate(steps):
        pause_s = duration_s if number % every == every - 1 else 0.0
        late_s = number // every * duration_s
        paused.append(replace(step, start_s=step.start_s + late_s, compute_s=step.compute_s + pause_s))
    return tuple(paused)


def steps_length_s(session: Session) -> float:
    return sum(step.step_s for step in session.steps)


def in_epochs(session: Session, epochs: int, between_s: float, first_wait_s: float = 0.0) -> Session:
    length_s = steps_length_s(session) + between_s
    steps = [
        replace(step, epoch=epoch, start_s=step.start_s + epoch * length_s)
        for epoch in range(epochs)
        for number, step in enumerate(session.steps)
    ]
    return replace(session, steps=tuple(steps))


def test_periodic_saves_are_a_periodic_stall_with_their_period() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=STEPS)
    paused = with_pause(plain.steps, 40, 1.0)
    session = replace(plain, steps=paused, events=pauses(40, 1.0, "save", paused))
    diagnosis = check(session, "PERIODIC_STALL")
    assert any("every 40 steps" in words for words in diagnosis.findings[0].evidence)
    assert any("torch.save" in words for words in diagnosis.findings[0].evidence)
    gained = fix(diagnosis, "async_checkpoint").gain
    assert gained == pytest.approx((40 * 0.0255 + 1) / (40 * 0.0255), rel=0.1)


def test_pauses_of_torch_compile_are_called_so_and_get_its_fix() -> None:
    """The advice was once to validate and save less often."""
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=STEPS)
    paused = with_pause(plain.steps, 40, 1.0)
    diagnosis = check(replace(plain, steps=paused, events=pauses(40, 1.0, "compile", paused)), "PERIODIC_STALL")
    assert diagnosis.summary.startswith("torch.compile compiles again")
    assert fix(diagnosis, "dynamic_shapes").gain == pytest.approx((40 * 0.0255 + 1) / (40 * 0.0255), rel=0.1)
    assert first_screen(diagnosis).advice is None
    saved = diagnose(replace(plain, steps=paused, events=pauses(40, 1.0, "save", paused)))
    assert not any(one.id == "dynamic_shapes" for one in saved.fixes)


def test_two_long_pauses_of_unknown_cause_are_a_periodic_stall() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=90)
    check(replace(plain, steps=with_pause(plain.steps, 40, 1.0)), "PERIODIC_STALL")


def test_irregular_short_delays_are_not_reported() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=STEPS)
    slow = {7, 18, 22, 51, 60, 83, 111}
    steps = tuple(replace(s, compute_s=s.compute_s + (0.03 if n in slow else 0)) for n, s in enumerate(plain.steps))
    check(replace(plain, steps=steps), "COMPUTE_BOUND")


def test_garbage_collection_is_gc_pause_and_gc_freeze_removes_it() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.01, steps=STEPS)
    paused = with_pause(plain.steps, 13, 0.4)
    session = replace(plain, steps=paused, events=pauses(13, 0.4, "gc", paused))
    diagnosis = check(session, "GC_PAUSE")
    step_s, lost_s = 0.0105, 0.4 / 13
    assert fix(diagnosis, "gc_freeze").gain == pytest.approx((step_s + lost_s) / step_s, rel=0.1)


def test_slow_starts_of_epochs_are_startup() -> None:
    one = make_session(cpu_s=0.005, compute_s=0.02, steps=40)
    steps: list[Step] = []
    for epoch in range(4):
        shift_s = epoch * (steps_length_s(one) + 2.0)
        for number, step in enumerate(one.steps):
            extra_s = 2.0 if number == 0 else 0.0
            steps.append(replace(step, epoch=epoch, start_s=step.start_s + shift_s, wait_s=step.wait_s + extra_s))
    diagnosis = check(replace(one, steps=tuple(steps)), "STARTUP")
    assert fix(diagnosis, "persistent_workers").gain == pytest.approx(2, rel=0.3)


def test_long_gaps_between_epochs_are_a_periodic_stall_of_the_run() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.02, steps=40)
    check(in_epochs(plain, 4, 0.1), "COMPUTE_BOUND")
    session = in_epochs(plain, 4, 0.8)
    steps = [step for step in session.steps if step.epoch < 3]
    ends = [max(step.start_s + step.step_s for step in steps if step.epoch == epoch) for epoch in range(3)]
    validation = tuple(replace(steps[0], loader=1, start_s=end, compute_s=0.6, optimizer_steps=0) for end in ends)
    session = replace(
        session, steps=(*session.steps, *validation), loaders=(*session.loaders, replace(session.loaders[0], loader=1))
    )
    diagnosis = check(session, "PERIODIC_STALL")
    assert diagnosis.findings[0].share_of == "run"
    assert any("validation" in words for words in diagnosis.findings[0].evidence)
    assert (diagnosis.wasted_gpu_hours_per_100 or 0) > 30


def test_short_epochs_without_workers_are_not_startup() -> None:
    session = in_epochs(make_session(workers=0, cpu_s=0.05, compute_s=0.01, steps=5), 12, 0.0)
    assert [found.kind for found in check(session, "NO_OVERLAP").findings] == ["NO_OVERLAP"]


def test_async_checkpoint_is_not_proposed_without_a_save() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=STEPS)
    diagnosis = check(replace(plain, steps=with_pause(plain.steps, 20, 0.5)), "PERIODIC_STALL")
    assert not any(item.id == "async_checkpoint" for item in diagnosis.fixes)


def test_async_checkpoint_shortens_the_checkpoints_only() -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, steps=STEPS)
    paused = with_pause(plain.steps, 40, 1.0)
    half = tuple(replace(event, duration_s=0.5) for event in pauses(40, 1.0, "save", paused))
    diagnosis = check(replace(plain, steps=paused, events=half), "PERIODIC_STALL")
    step_s = 0.0255 + 1 / 40
    assert fix(diagnosis, "async_checkpoint").gain == pytest.approx(step_s / (step_s - 0.5 / 40), rel=0.1)


def test_workers_of_a_validation_loader_that_is_made_anew_are_a_part_of_its_pauses() -> None:
    session = make_session(cpu_s=0.005, compute_s=0.02, steps=120, jitter=0.0)
    steps, events, shift_s = [], [], 0.0
    for number, step in enumerate(session.steps):
        begin_s = step.start_s + shift_s
        pause_s = 0.3 if number % 20 == 19 else 0.0
        steps.append(replace(step, start_s=begin_s, compute_s=step.compute_s + pause_s))
        if pause_s:
            at_s = begin_s + step.step_s
            events.append(Event(MAIN_PID, "workers_start", at_s, 0.1, "loader 1"))
            events.append(Event(MAIN_PID, "workers_stop", at_s + 0.2, 0.05, "loader 1"))
            steps.append(Step(MAIN_PID, 1, number, at_s + 0.1, 0.1, 0.05, items=32))
        shift_s += pause_s
    validation = replace(session.loaders[0], loader=1)
    session = replace(session, steps=tuple(steps), events=tuple(events), loaders=(*session.loaders, validation))
    diagnosis = check(session, "PERIODIC_STALL")
    assert diagnosis.summary == "every 20 steps a step takes up to 300 ms longer, mostly in another loader (validation)"
    waiting = diagnosis.findings[0].evidence[2]
    assert waiting.endswith("% of its steps is waiting for its input")
    alone = replace(session, loaders=(session.loaders[0], replace(validation, num_workers=0)))
    assert f"{waiting}; it has no workers" in diagnose(alone).findings[0].evidence
    assert any("take 1.00 s in all" in one for one in diagnosis.findings[0].evidence), "and not 1e+03 ms"
    words = "another loader makes 6 iterators, and its workers take"
    assert any(one.startswith(words) for one in diagnosis.findings[0].evidence), diagnosis.findings[0].evidence


def test_the_scripts_own_collection_is_named_by_its_line_and_its_removal_predicted_once() -> None:
    """On a busy machine: 150 ms of each 175 ms are the collection, and half of all that waits for a core."""
    plain = make_session(cpu_s=0.005, compute_s=0.35, steps=40, compute_queue_s=0.175)
    events = tuple(
        Event(MAIN_PID, "gc", step.start_s + step.wait_s, 0.3, "generation 2, called at /work/project/train.py:33")
        for step in plain.steps
    )
    diagnosis = check(replace(plain, events=events), "GC_PAUSE")
    assert diagnosis.summary == "the script's own gc.collect() at train.py:33 stops the training process"
    assert [item.id for item in diagnosis.findings[0].fixes] == ["remove_gc_collect"]
    assert fix(diagnosis, "remove_gc_collect").gain == pytest.approx(7, rel=0.15)
    assert diagnosis.share_of_step["compute"] == pytest.approx(0.025 / 0.35, abs=0.02)


def growing(times: float, session: Session, *, every_byte: bool = False) -> Session:
    """The steps become longer, the last one `times` as long as the first."""
    count, bytes_each = len(session.steps), session.steps[0].batch_bytes
    grown = [1 + (times - 1) * number / count for number in range(count)]
    steps = tuple(
        replace(step, compute_s=step.compute_s * factor, batch_bytes=int(bytes_each * (factor if every_byte else 1)))
        for step, factor in zip(session.steps, grown, strict=True)
    )
    return replace(session, steps=steps)


def test_steps_that_take_longer_and_longer_are_the_verdict() -> None:
    diagnosis = check(growing(4.0, make_session(cpu_s=0.005, compute_s=0.025)), "GROWING_STEP")
    assert diagnosis.summary == "a step takes longer and longer: 34 ms at the start, 94.7 ms at the end"
    assert diagnosis.findings[0].share == pytest.approx(0.45, abs=0.08)


@pytest.mark.parametrize("seed", range(10))
def test_steps_of_uneven_length_larger_batches_and_a_slower_phase_do_not_grow(seed: int) -> None:
    plain = make_session(cpu_s=0.005, compute_s=0.025, jitter=0.5, seed=seed)
    half = len(plain.steps) // 2
    slower = tuple(replace(step, compute_s=step.compute_s * (1 if at < half else 3)) for at, step in enumerate(plain.steps))
    sessions = plain, replace(plain, steps=slower), growing(3.0, plain, every_byte=True), growing(1.2, plain)
    assert not [found for each in sessions for found in diagnose(each).findings if found.kind == "GROWING_STEP"]


def test_a_function_of_the_script_that_takes_longer_and_longer_says_so() -> None:
    plain = growing(4.0, make_session(cpu_s=0.005, compute_s=0.025))
    steps = tuple(replace(step, after_s=step.compute_s - 0.02, after_cpu_s=step.compute_s - 0.02) for step in plain.steps)
    diagnosis = check(replace(plain, steps=steps), "SCRIPT_BOUND")
    assert any("longer and longer" in words for words in diagnosis.findings[0].evidence)
    assert "GROWING_STEP" not in [found.kind for found in diagnosis.findings]


def test_pauses_are_as_many_steps_apart_as_the_script_takes() -> None:
    """The first steps of each epoch are not steady: a validation every 20 steps was called one every 15."""
    plain = make_session(workers=2, cpu_s=0.005, compute_s=0.025, steps=240)
    paused = with_pause(plain.steps, 20, 1.0)
    steps = tuple(replace(step, epoch=number // 25) for number, step in enumerate(paused))
    loader = replace(plain.loaders[0], persistent_workers=False)
    session = replace(plain, steps=steps, loaders=(loader,), events=pauses(20, 1.0, "save", steps))
    assert "every 20 steps" in check(session, "PERIODIC_STALL").summary


def test_a_compilation_in_every_step_is_a_pause_too() -> None:
    """No step stands out where each one compiles, so the whole was called computation."""
    plain = make_session(cpu_s=0.005, compute_s=0.3, steps=60)
    events = tuple(Event(MAIN_PID, "compile", step.start_s + step.wait_s + 0.01, 0.25, "x size 3") for step in plain.steps)
    diagnosis = check(replace(plain, events=events), "PERIODIC_STALL")
    assert diagnosis.findings[0].share == pytest.approx(0.82, abs=0.03)
    assert "compiles again" in diagnosis.summary
    assert fix(diagnosis, "dynamic_shapes").gain == pytest.approx(0.3 / 0.05, rel=0.15)


def test_short_batches_that_nothing_overlaps_are_no_verdict_beside_computing() -> None:
    diagnosis = check(make_session(workers=0, cpu_s=0.009, compute_s=0.09), "COMPUTE_BOUND")
    assert [found.kind for found in diagnosis.findings] == ["COMPUTE_BOUND", "NO_OVERLAP"]
    check(make_session(workers=0, cpu_s=0.03, compute_s=0.09), "NO_OVERLAP")
