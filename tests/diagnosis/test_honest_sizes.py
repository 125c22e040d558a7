"""Shares and predictions of generated jobs: no second is counted twice, and no prediction exceeds what arithmetic allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from diagnosis_checks import check_agreement, fix
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis, Fix
from headrace.session.model import Event, Session
from headrace.session.stacks import Stack, StackFrame
from hypothesis import given, settings
from hypothesis import strategies as st
from session_factory import FIRST_NEXT_S, MAIN_PID, make_session

INPUT = ("input_storage", "input_cpu", "input_queue", "input_collate")

REMOVED = {
    "num_workers": INPUT,
    "headrace_run": INPUT,
    "pre_resize": INPUT,
    "pack": INPUT,
    "cache": INPUT,
    "spread_workers": INPUT,
    "uint8_batches": (*INPUT, "h2d"),
    "pin_memory": (*INPUT, "h2d"),
    "gc_freeze": (*INPUT, "periodic"),
    "async_checkpoint": (*INPUT, "periodic"),
    "remove_sync": (*INPUT, "sync", "compute"),
}
"""The parts of the step that a fix can take off, whatever the model says."""

SECONDS = st.sampled_from([0.0, 0.0005, 0.002, 0.01, 0.03, 0.1, 0.3])
LONGER = st.sampled_from([0.0005, 0.002, 0.01, 0.03, 0.1, 0.3])


@st.composite
def jobs(draw: Any) -> Session:
    """Return a job with any of: workers, slow input, queueing, pauses, waits for the device, other programs, a short epoch."""
    compute_s, pause_s = draw(LONGER), draw(SECONDS)
    name, every = draw(st.sampled_from(["gc", "save"])), draw(st.sampled_from([1, 7]))
    cores = draw(st.sampled_from([1, 2, 8]))
    options: dict[str, Any] = {
        "workers": draw(st.sampled_from([0, 1, 2, 5])),
        "steps": 60,
        "compute_s": compute_s,
        "cpu_s": draw(LONGER),
        "queue_s": draw(SECONDS),
        "blocked_s": draw(SECONDS),
        "transfer_s": draw(st.sampled_from([0.0002, 0.003])),
        "main_cpu_share": draw(st.sampled_from([0.05, 0.95])),
        "compute_queue_s": draw(st.sampled_from([0.0, 0.2, 0.8])) * compute_s,
        "sync_s": draw(st.sampled_from([0.0, 0.3])) * compute_s,
        "sync_count": 3,
        "h2d_s": draw(st.sampled_from([0.0, 0.2])) * compute_s,
        "cores": cores,
        "foreign_cores": draw(st.sampled_from([0.0, 0.3, 0.8])) * cores,
        "queue_share": draw(st.sampled_from([0.0, 0.5])),
        "seed": draw(st.integers(0, 99)),
    }
    plain = make_session(**options)
    starts = [step.start_s + step.wait_s for step in plain.steps[::every]]
    shifted = [start + number * pause_s for number, start in enumerate(starts)]
    events = tuple(Event(MAIN_PID, name, start + 1e-5, pause_s) for start in shifted) if pause_s else ()
    session = make_session(**options, events=events)
    length = draw(st.sampled_from([3, 12, 1000])) * 32
    loaders = tuple(replace(loader, dataset_length=length) for loader in session.loaders)
    return replace(session, loaders=loaders, facts=draw(st.sampled_from([{}, BENCHMARK])))


BENCHMARK = {"image_benchmark": {"plain_s": 0.0025, "headrace_s": 0.0006, "pre_resized_s": 0.0012}}


def most_img_s(diagnosis: Diagnosis, fix: Fix) -> float | None:
    """Return the rate if the parts that a fix can take off were gone; None for a fix that changes how the rest is computed."""
    parts = REMOVED.get(fix.id.partition("=")[0])
    if parts is None or diagnosis.img_s is None:
        return None
    left = 1 - sum(diagnosis.share_of_step[name] for name in parts)
    return diagnosis.img_s / max(left, 1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(jobs())
def test_no_second_is_counted_twice_and_no_prediction_exceeds_what_its_parts_allow(session: Session) -> None:
    diagnosis = check_agreement(session)
    shares = {found.kind: found.share or 0.0 for found in diagnosis.findings}
    verdict = shares.pop(diagnosis.verdict)
    if diagnosis.verdict != "COMPUTE_BOUND":
        shares.pop("COMPUTE_BOUND", None)
        assert verdict >= max(shares.values(), default=0.0)
    else:
        assert verdict > max(shares.values(), default=0.0)
    for item in diagnosis.fixes:
        most = most_img_s(diagnosis, item)
        if item.predicted_img_s is None or item.gain is None or item.interval is None:
            continue
        low, high = item.interval
        assert low <= item.predicted_img_s <= high
        if most is not None:
            assert item.predicted_img_s <= 1.005 * most, item
        if item.id.startswith("num_workers="):
            length = session.loaders[0].dataset_length or 0
            assert int(item.id.partition("=")[2]) <= max(60, length // 32)


def test_a_collection_in_each_step_is_taken_off_once_though_its_thread_waits_for_a_core() -> None:
    """250 ms of collections, 50 of them without a core, beside 25 ms of work: 3.4 ms a step were predicted."""
    starts = [FIRST_NEXT_S + 0.01 + 0.2755 * number for number in range(120)]
    events = tuple(Event(MAIN_PID, "gc", start, 0.25) for start in starts)
    session = make_session(workers=1, cpu_s=0.001, compute_s=0.025, compute_queue_s=0.03, events=events, jitter=0.0)
    found = fix(diagnose(session), "gc_freeze")
    assert found.predicted_img_s is not None
    assert found.predicted_img_s == pytest.approx(32 / 0.0255, rel=0.03)


@pytest.mark.parametrize("batches", [5, 8])
def test_no_more_workers_are_advised_than_an_epoch_has_batches(batches: int) -> None:
    session = make_session(workers=1, cpu_s=0.001, blocked_s=0.4, compute_s=0.02, cores=8, steps=60, jitter=0.0)
    epochs = tuple(replace(step, epoch=number // batches) for number, step in enumerate(session.steps))
    loaders = tuple(replace(loader, dataset_length=batches * 32) for loader in session.loaders)
    found = fix(diagnose(replace(session, steps=epochs, loaders=loaders)), "num_workers")
    assert found.id == f"num_workers={batches}"
    assert f"no more: an epoch has {batches} batches" in found.change
    whole_epoch_s = 0.4 + batches * 0.02
    assert found.predicted_img_s == pytest.approx(batches * 32 / whole_epoch_s, rel=0.1)


def test_workers_beyond_the_batches_of_an_epoch_are_said_to_have_no_work() -> None:
    session = make_session(workers=8, cpu_s=0.001, blocked_s=0.2, compute_s=0.3, cores=8, steps=60, jitter=0.0)
    loaders = tuple(replace(loader, dataset_length=8 * 32) for loader in session.loaders)
    epochs = tuple(replace(step, epoch=number // 8) for number, step in enumerate(session.steps))
    diagnosis = diagnose(replace(session, steps=epochs, loaders=loaders))
    assert not any(item.id.startswith("num_workers") for item in diagnosis.fixes)
    assert "not one more loader worker would have work: an epoch has 8 batches" in str(diagnosis.findings)


def refusing(*, refused: int = 12, backoff: bool = True, workers: int = 4) -> Session:
    """Return a job of a store that serves 60 images a second: its client waits 0.5 s of each batch before it asks again."""
    session = make_session(
        workers=workers, cpu_s=0.005, blocked_s=0.5, compute_s=0.01, batch_size=8, cores=2, read_bytes=0, jitter=0.0
    )
    batches = tuple(replace(batch, refused=refused, socket_s=0.02) for batch in session.batches)
    waits = StackFrame("Retry._sleep_backoff", "urllib3/util/retry.py", 377) if backoff else StackFrame("recv", "socket.py", 9)
    frames = (StackFrame("Objects.__getitem__", "/work/train.py", 58), waits)
    stacks = tuple(Stack(MAIN_PID + 1 + number, "batch", 20, False, frames, 0) for number in range(workers))
    return replace(session, batches=batches, stacks=stacks)


@pytest.mark.parametrize(("refused", "backoff"), [(12, True), (12, False), (0, True)], ids=["both", "answers", "waits"])
def test_a_store_that_refuses_requests_bounds_every_number_of_workers(refused: int, backoff: bool) -> None:
    diagnosis = diagnose(refusing(refused=refused, backoff=backoff))
    assert diagnosis.verdict == "STORAGE_BANDWIDTH"
    assert [item.id for item in diagnosis.fixes] == ["pack"], "fewer, larger requests; their limit is not known"
    assert diagnosis.fixes[0].gain is None
    words = " ".join(diagnosis.findings[0].evidence)
    assert ("refuses 12 requests a batch" in words) == bool(refused)
    assert ("100 % of making a batch: Retry._sleep_backoff (urllib3/util/retry.py:377)" in words) == backoff
    assert "more workers would only be refused more often" in words
    assert "cause not seen" not in words


def test_a_store_that_refuses_nothing_is_offered_more_workers() -> None:
    assert any(item.id.startswith("num_workers=") for item in diagnose(refusing(refused=0, backoff=False)).fixes)


def test_the_first_worker_beside_a_store_that_refuses_requests_gains_the_overlap_only() -> None:
    found = fix(diagnose(refusing(workers=0)), "num_workers")
    assert found.predicted_img_s == pytest.approx(8 / 0.5, rel=0.05)


def test_a_store_that_serves_a_batch_alone_faster_than_its_turn_gives_no_more_to_more_workers() -> None:
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.12, compute_s=0.002, cores=2, jitter=0.0)
    (last,) = [batch for batch in session.batches if batch.worker == 0][-1:]
    alone = replace(last, start_s=last.start_s + 9.0, wall_s=0.021, cpu_s=0.001, alone=1)
    found = fix(diagnose(replace(session, batches=(*session.batches, alone))), "num_workers")
    assert found.gain == pytest.approx(1.0, abs=0.03), "alone six times faster, beside one other worker"


def test_interval_allows_that_more_workers_get_more_of_the_cores_that_other_programs_use_too() -> None:
    """One worker beside two busy programs has two thirds of a core; three have 1.2 cores, if all are served alike."""
    session = make_session(workers=1, cpu_s=0.03, queue_s=0.015, compute_s=0.005, cores=2, foreign_cores=1.35, queue_share=0.33)
    samples = tuple(replace(sample, own_cores=0.66) for sample in session.samples)
    busy = fix(diagnose(replace(session, samples=samples)), "num_workers=")
    assert busy.interval is not None and busy.predicted_img_s is not None
    assert busy.interval[1] > 2 * busy.predicted_img_s
