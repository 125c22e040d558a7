"""The rules for `next()` itself: a slow sampler, pinning, a thread that holds the interpreter, an iterator for each batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from diagnosis_checks import check, check_agreement, fix
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.kinds import KINDS
from headrace.report.text import terminal
from headrace.session.model import Event, Session
from headrace.session.stacks import Stack, StackFrame
from hypothesis import given, settings
from hypothesis import strategies as st
from session_factory import MAIN_PID, make_session

LOADER, QUEUES, PINNING = "torch/utils/data/dataloader.py", "multiprocessing/queues.py", "torch/utils/data/_utils/pin_memory.py"
NEXT = (StackFrame("_BaseDataLoaderIter.__next__", LOADER, 720),)
DRAW = (
    *NEXT,
    StackFrame("_BaseDataLoaderIter._next_index", LOADER, 714),
    StackFrame("BatchSampler.draw_batch", "/work/project/sampler.py", 41),
)
WAIT = (*NEXT, StackFrame("Queue.get", QUEUES, 98), StackFrame("wait", "multiprocessing/connection.py", 920))
PIN = (
    StackFrame("_pin_memory_loop", "torch/utils/data/_utils/pin_memory.py", 18),
    StackFrame("pin_memory", "torch/utils/data/_utils/pin_memory.py", 58),
)
LOG = (StackFrame("Thread.run", "threading.py", 975), StackFrame("compress_logs", "/work/project/logs.py", 12))


def sampled(session: Session, *stacks: tuple[str, int, bool, tuple[StackFrame, ...]]) -> Session:
    """Return the session with stacks of the training process: role, count, whether it waits, frames."""
    return replace(
        session, stacks=tuple(Stack(MAIN_PID, role, count, waits, frames, 0) for role, count, waits, frames in stacks)
    )


def slow_next(seconds: float = 0.06, *, workers: int = 2) -> Session:
    """The session of a job whose `next()` takes that long where the batch is ready."""
    return make_session(workers=workers, cpu_s=0.005, compute_s=0.02, transfer_s=seconds, jitter=0.0)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_slow_sampler_is_named_with_its_function_and_time(workers: int) -> None:
    session = sampled(slow_next(workers=workers), ("next", 60, False, DRAW), ("next", 4, True, WAIT))
    diagnosis = check(session, "IN_NEXT")
    assert diagnosis.summary.startswith("the sampler takes ")
    assert diagnosis.summary.endswith("in next(), in the training process: BatchSampler.draw_batch (sampler.py:41)")
    assert diagnosis.share_of_step["input_next"] > 0.5
    assert [found.kind for found in diagnosis.findings if found.kind in ("STORAGE_LATENCY", "COLLATE_IPC", "CPU_PREP")] == []
    check_agreement(session)
    assert fix(diagnosis, "shorter_next").gain == pytest.approx(3.3, rel=0.3)
    assert "The sampler takes" in terminal.render(diagnosis, width=80).plain


def test_more_workers_are_not_predicted_to_help_a_slow_sampler() -> None:
    session = make_session(workers=0, cpu_s=0.008, compute_s=0.02, transfer_s=0.06, jitter=0.0)
    diagnosis = diagnose(sampled(session, ("next", 60, False, DRAW), ("batch", 8, False, ())))
    assert diagnosis.verdict == "IN_NEXT"
    for proposed in diagnosis.fixes:
        assert not proposed.id.startswith("num_workers") or (proposed.gain or 1.0) < 1.15


def test_pinning_is_named_where_its_thread_works() -> None:
    diagnosis = check(sampled(slow_next(), ("next", 50, False, PIN), ("next", 10, True, WAIT)), "IN_NEXT")
    assert "copying batches into pinned memory" in diagnosis.findings[0].evidence[0]


def test_waiting_for_workers_and_taking_batches_over_stay_what_they_are() -> None:
    """The time in which the training thread waits, or unpickles, is no time of its own."""
    unpickling = (*NEXT, StackFrame("Queue.get", QUEUES, 98), StackFrame("Box.__setstate__", "/work/project/boxes.py", 7))
    late = make_session(workers=1, cpu_s=0.06, compute_s=0.02)
    plain = diagnose(late)
    watched = diagnose(sampled(late, ("next", 90, True, WAIT), ("next", 5, False, unpickling)))
    assert (watched.verdict, watched.share_of_step) == (plain.verdict, plain.share_of_step)
    handed = make_session(workers=2, cpu_s=0.04, collate_s=0.038, compute_s=0.005, transfer_s=0.03, jitter=0.0)
    assert diagnose(sampled(handed, ("next", 90, False, unpickling))).verdict == "COLLATE_IPC"


def test_few_samples_divide_nothing_unless_nearly_all_agree() -> None:
    session = slow_next()
    mixed = sampled(session, ("next", 11, False, DRAW), ("next", 7, True, WAIT))
    assert diagnose(mixed).share_of_step == diagnose(session).share_of_step
    assert diagnose(sampled(session, ("next", 9, False, DRAW))).share_of_step == diagnose(session).share_of_step
    check(sampled(session, ("next", 14, False, DRAW), ("next", 2, True, WAIT)), "IN_NEXT")


def test_a_thread_that_holds_the_interpreter_is_named() -> None:
    session = sampled(slow_next(), ("next", 60, True, WAIT), ("holder", 50, False, LOG))
    diagnosis = check(session, "GIL_HELD")
    assert diagnosis.summary.endswith("while next() needs it: compress_logs (logs.py:12)")
    assert diagnosis.share_of_step["input_next"] > 0.5
    assert fix(diagnosis, "own_process").gain > 2
    rarely = sampled(slow_next(), ("next", 60, True, WAIT), ("holder", 20, False, LOG))
    assert diagnose(rarely).verdict != "GIL_HELD"


def test_a_held_interpreter_that_delays_no_batch_is_no_finding() -> None:
    session = sampled(make_session(workers=2, cpu_s=0.005), ("next", 60, True, WAIT), ("holder", 60, False, LOG))
    assert "GIL_HELD" not in [found.kind for found in diagnose(session).findings]


def with_new_iterators(workers: int, start_s: float, stop_s: float) -> Session:
    """Each step has an iterator of its own: its workers start, make the batch while the script waits, and end."""
    one = make_session(workers=workers, cpu_s=0.02, compute_s=0.02, jitter=0.0)
    steps, batches, events, now_s = [], [], [], 2.0
    for number, (step, batch) in enumerate(zip(one.steps, one.batches, strict=True)):
        next_s = now_s + start_s
        if workers:
            events.append(Event(MAIN_PID, "workers_start", now_s, start_s, "loader 0"))
            events.append(Event(MAIN_PID, "workers_stop", next_s + 0.021, stop_s, "loader 0"))
        steps.append(replace(step, epoch=number, start_s=next_s, wait_s=0.02, compute_s=0.02 + stop_s, ready=0))
        batches.append(replace(batch, start_s=next_s))
        now_s = next_s + 0.04 + stop_s
    return replace(one, steps=tuple(steps), batches=tuple(batches), events=tuple(events), duration_s=now_s)


def test_an_iterator_for_each_batch_is_named_with_the_cost_of_its_workers() -> None:
    diagnosis = check(with_new_iterators(4, 0.05, 0.03), "NEW_ITERATORS")
    words = " ".join(diagnosis.findings[0].evidence)
    assert "120 iterators gave one batch each" in words
    assert "starting 4 workers takes 50 ms and ending them 30 ms" in words
    assert diagnosis.step_s == pytest.approx(0.12, rel=0.03)
    assert diagnosis.share_of_step["input_next"] == pytest.approx(0.1 / 0.12, abs=0.05), "a kept one makes batches ahead"
    assert diagnosis.share_of_step["input_next"] == pytest.approx(diagnosis.findings[0].share, abs=1e-3), "the verdict's share"
    assert diagnosis.share_of_step["compute"] == pytest.approx(0.02 / 0.12, abs=0.05)
    kept = fix(diagnosis, "keep_iterator")
    assert kept.gain == pytest.approx(0.12 / 0.02, rel=0.25)
    assert not any(one.id.startswith("num_workers") and (one.gain or 0) > 1.03 for one in diagnosis.fixes)
    assert "STARTUP" not in [found.kind for found in diagnosis.findings]


def test_short_epochs_of_a_small_dataset_are_no_new_iterators() -> None:
    session = with_new_iterators(4, 0.05, 0.03)
    ends = tuple(Event(MAIN_PID, "epoch_end", step.start_s + step.step_s, 0.0, "loader 0") for step in session.steps)
    assert diagnose(replace(session, events=(*session.events, *ends))).verdict == "STARTUP"


def test_an_iterator_for_each_batch_without_workers_costs_what_its_sampler_takes() -> None:
    order = (*DRAW[:2], StackFrame("RandomSampler.__iter__", "torch/utils/data/sampler.py", 150))
    session = sampled(with_new_iterators(0, 0.0, 0.0), ("next", 60, False, order), ("batch", 20, False, NEXT))
    diagnosis = check(session, "NEW_ITERATORS")
    assert "each draws a new order: RandomSampler.__iter__" in " ".join(diagnosis.findings[0].evidence)


def test_iterators_of_varied_batches_without_workers_cost_what_they_take_themselves() -> None:
    """The spread of the batches was taken for a cost of the iterators: 64 % of a step that waits 40 %."""
    one = make_session(workers=0, cpu_s=0.03, compute_s=0.05, jitter=0.0)
    made = [0.005 + 0.0005 * (number * 37 % 110) for number in range(len(one.steps))]
    steps, batches, now_s = [], [], 2.0
    for number, (step, batch, wall_s) in enumerate(zip(one.steps, one.batches, made, strict=True)):
        steps.append(replace(step, start_s=now_s, wait_s=wall_s + 0.001, epoch=number))
        batches.append(replace(batch, pid=MAIN_PID, start_s=now_s + 0.001, wall_s=wall_s, cpu_s=wall_s))
        now_s += wall_s + 0.051
    diagnosis = diagnose(replace(one, steps=tuple(steps), batches=tuple(batches), duration_s=now_s))
    assert [found.kind for found in diagnosis.findings] == ["NO_OVERLAP"]
    assert diagnosis.findings[0].share == pytest.approx(diagnosis.wait_share, abs=1e-3)
    assert diagnosis.step_s is not None
    assert fix(diagnosis, "num_workers=1").gain == pytest.approx(diagnosis.step_s / 0.05, rel=0.03)


def test_a_kept_iterator_without_workers_is_not_said_to_have_any() -> None:
    order = (*DRAW[:2], StackFrame("RandomSampler.__iter__", "torch/utils/data/sampler.py", 150))
    session = sampled(with_new_iterators(0, 0.0, 0.0), ("next", 60, False, order), ("batch", 20, False, NEXT))
    diagnosis = diagnose(session)
    assert fix(diagnosis, "keep_iterator").change == "one iterator for the whole epoch (for batch in loader)"
    assert diagnosis.share_of_step["input_next"] == pytest.approx(diagnosis.findings[0].share, abs=1e-3)


def test_new_iterators_cost_no_more_than_the_device_waits() -> None:
    """The GPU hides 100 of 120 ms in next()."""
    session = with_new_iterators(4, 0.05, 0.03)
    steps = tuple(replace(step, compute_s=0.1, gpu_wait_s=0.01, gpu_step_s=0.1) for step in session.steps)
    moved, now_s = [], 2.0
    for step in steps:
        moved.append(replace(step, start_s=now_s + 0.05))
        now_s += 0.05 + step.step_s
    shifts = [new.start_s - old.start_s for new, old in zip(moved, steps, strict=True)]
    events = tuple(replace(event, start_s=event.start_s + shifts[at // 2]) for at, event in enumerate(session.events))
    diagnosis = check_agreement(replace(session, steps=tuple(moved), events=events, duration_s=now_s))
    assert diagnosis.wait_share is not None
    shares = {found.kind: found.share or 0.0 for found in diagnosis.findings}
    assert shares.get("NEW_ITERATORS", 0.0) <= diagnosis.wait_share + 1e-3
    assert shares.get("NEW_ITERATORS", diagnosis.share_of_step["input_next"]) == pytest.approx(
        diagnosis.share_of_step["input_next"], abs=1e-3
    )


def test_a_shorter_part_of_next_leaves_the_other_parts() -> None:
    """15 ms of sampler and 13.5 ms of pinning in a step of 90 ms: all of both were taken off, for the sampler alone."""
    session = make_session(workers=8, compute_s=0.06, cpu_s=0.05, transfer_s=0.03, cores=16, jitter=0.0)
    both = sampled(session, ("next", 50, False, DRAW), ("next", 45, False, PIN), ("next", 5, True, WAIT))
    assert fix(diagnose(both), "shorter_next").gain == pytest.approx(0.09 / 0.075, rel=0.02)
    held = sampled(session, ("next", 35, False, DRAW), ("next", 65, True, WAIT), ("holder", 60, False, LOG))
    diagnosis = diagnose(held)
    assert diagnosis.verdict == "GIL_HELD"
    held_s = 0.03 * 0.65
    assert fix(diagnosis, "own_process").gain == pytest.approx(0.09 / (0.09 - held_s), rel=0.02)


def test_what_a_gpu_hides_of_next_it_hides_of_each_part() -> None:
    """Pinning is 30 % of next(), workers that are late 70 %: all of the wait was called pinning, and no worker was offered."""
    session = make_session(workers=4, compute_s=0.05, cpu_s=0.32, gpu_wait_share=0.25, gpu_busy=0.9, cores=16)
    diagnosis = check_agreement(sampled(session, ("next", 70, True, WAIT), ("next", 30, False, PIN)))
    assert diagnosis.wait_share is not None
    assert diagnosis.share_of_step["input_next"] == pytest.approx(0.3 * diagnosis.wait_share, rel=0.05)
    assert [(found.kind, found.share) for found in diagnosis.findings[1:]] == [
        ("CPU_PREP", pytest.approx(diagnosis.share_of_step["input_cpu"], abs=0.002))
    ], "the larger part of a wait that counts"
    assert fix(diagnosis, "num_workers").gain == pytest.approx(1.07, abs=0.02)
    handed = make_session(workers=4, compute_s=0.05, cpu_s=0.01, transfer_s=0.04, gpu_wait_share=0.25, gpu_busy=0.9)
    found = check_agreement(handed)
    assert found.ceiling_img_s is not None and found.img_s is not None
    assert found.ceiling_img_s == pytest.approx(found.img_s, rel=0.01), "each batch is ready; the hand-over is hidden as well"


def test_a_worker_that_shortens_the_wait_is_not_said_to_help_nothing() -> None:
    session = make_session(workers=2, compute_s=0.04, cpu_s=0.12, transfer_s=0.03, cores=8, jitter=0.0)
    late = replace(session, steps=tuple(replace(step, ready=0, wait_cpu_s=0.03) for step in session.steps))
    diagnosis = diagnose(sampled(late, ("next", 60, True, WAIT), ("next", 60, False, DRAW)))
    assert fix(diagnosis, "num_workers=3").gain > 1.03
    words = " ".join(diagnosis.findings[0].evidence)
    assert "no worker shortens this part" in words and "more workers do not help" not in words


@pytest.mark.parametrize("workers", [2, 0])
def test_other_programs_take_nothing_off_what_next_itself_takes(workers: int) -> None:
    """Workers queue beside a sampler of 15 ms: IN_NEXT fell to 0 %, and EXTERNAL_CPU stood above its parts of the bar."""
    session = make_session(
        workers=workers, compute_s=0.04, cpu_s=0.08 if workers else 0.02, queue_s=0.06 if workers else 0.015, cores=4,
        transfer_s=0.03 if workers else 0.02, foreign_cores=1.5, queue_share=0.3, compute_queue_s=0.005, jitter=0.0,
    )  # fmt: skip
    diagnosis = check_agreement(sampled(session, ("next", 60, True, WAIT), ("next", 60, False, DRAW)))
    shares, parts = {found.kind: found.share or 0.0 for found in diagnosis.findings}, diagnosis.share_of_step
    assert shares["IN_NEXT"] == pytest.approx(parts["input_next"], abs=0.002)
    assert shares["EXTERNAL_CPU"] == pytest.approx(parts["input_queue"] + parts["core_wait"], abs=0.002)
    assert sum(shares.values()) == pytest.approx((diagnosis.wait_share or 0.0) + parts["core_wait"], abs=0.01)
    assert min(shares.values()) >= 0.07


@st.composite
def jobs(draw: Any) -> Session:
    """Return a job whose next() waits for workers, samples, pins and queues for a core, with or without a GPU's clock."""
    gpu = draw(st.sampled_from([None, 1.0, 0.3]))
    session = make_session(
        workers=draw(st.sampled_from([0, 1, 2, 4])),
        steps=60,
        compute_s=draw(st.sampled_from([0.01, 0.04, 0.1])),
        cpu_s=draw(st.sampled_from([0.005, 0.03, 0.1])),
        queue_s=draw(st.sampled_from([0.0, 0.01, 0.04])),
        blocked_s=draw(st.sampled_from([0.0, 0.05])),
        transfer_s=draw(st.sampled_from([0.001, 0.02, 0.06])),
        compute_queue_s=draw(st.sampled_from([None, 0.0, 0.005])),
        next_queue_s=draw(st.sampled_from([0.0, 0.003])),
        foreign_cores=draw(st.sampled_from([0.0, 1.5, 3.0])),
        queue_share=0.3,
        gpu_wait_share=gpu,
        gpu_busy=None if gpu is None else 0.5,
    )
    counts = [draw(st.sampled_from([0, 10, 60])) for _ in range(4)]
    stacks = [("next", False, DRAW), ("next", True, WAIT), ("next", False, PIN), ("holder", False, LOG)]
    return sampled(
        session, *((role, count, waits, frames) for (role, waits, frames), count in zip(stacks, counts, strict=True))
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(jobs())
def test_each_second_of_next_counts_for_one_cause(session: Session) -> None:
    diagnosis = check_agreement(session)
    parts = diagnosis.share_of_step
    shares = {found.kind: found.share or 0.0 for found in diagnosis.findings if KINDS[found.kind].is_input}
    foreign = next((found.share or 0.0 for found in diagnosis.findings if found.kind == "EXTERNAL_CPU"), None)
    assert sum(shares.values()) <= (diagnosis.wait_share or 0.0) + (parts["core_wait"] if foreign is None else 0.0) + 0.003
    if foreign is not None:
        assert foreign == pytest.approx(parts["input_queue"] + parts["core_wait"], abs=0.01), "EXTERNAL_CPU is the bar's"
        for kind in shares.keys() & {"IN_NEXT", "GIL_HELD"}:
            assert shares[kind] == pytest.approx(parts["input_next"], abs=0.003)


def test_a_held_interpreter_blocks_batches_that_the_training_process_makes() -> None:
    made = make_session(workers=0, cpu_s=0.005, blocked_s=0.06, compute_s=0.02, read_bytes=0)
    assert "cause not seen" in " ".join(diagnose(made).findings[0].evidence)
    session = sampled(made, ("batch", 40, False, NEXT), ("holder", 36, False, LOG))
    diagnosis = check(session, "GIL_HELD")
    assert diagnosis.share_of_step["input_next"] == pytest.approx(0.06 / 0.085, abs=0.05)
    assert diagnosis.share_of_step["input_storage"] == 0
    check_agreement(session)
    assert fix(diagnosis, "own_process").gain == pytest.approx(0.085 / 0.025, rel=0.03), "the lock is no part of the batch too"
    assert diagnosis.confidence > 0.9, "the model explains the measured step"


def test_a_wait_that_no_batch_explains_is_no_slow_hand_over() -> None:
    """A sampler of 90 ms beside batches of 1 ms, before its stacks were sampled: COLLATE_IPC, 77 %, confidence 0.65."""
    session = make_session(workers=2, cpu_s=0.001, compute_s=0.015, transfer_s=0.09, jitter=0.0)
    small = replace(session, steps=tuple(replace(step, batch_bytes=10_000) for step in session.steps))
    diagnosis = check(small, "IN_NEXT")
    assert diagnosis.confidence <= 0.5 and "was not seen" in diagnosis.summary
    assert "do not explain 8" in diagnosis.findings[0].evidence[0]
    assert "COLLATE_IPC" not in [found.kind for found in diagnosis.findings if (found.share or 0) > 0.1]
    check(session, "COLLATE_IPC")
    steps_held = Stack(MAIN_PID, "step", 40, False, NEXT, 0), Stack(MAIN_PID, "step holder", 36, False, LOG, 0)
    held = check(replace(small, stacks=steps_held), "GIL_HELD")
    assert held.summary.endswith("compress_logs (logs.py:12)")
    assert fix(held, "own_process").gain > 3
