"""Passes of which a script takes one batch are one pass, and making an iterator counts as waiting."""

from __future__ import annotations

import pytest
from headrace.session.model import Event, ObservedLoader, Session, Step
from headrace.session.short_passes import join_short_passes

PID = 7


def short_passes(*, batches: int = 1, making_s: float = 0.5, passes: int = 6) -> Session:
    """Passes of some batches, each 0.1 s of waiting and 0.2 s of computing; each iterator takes `making_s` to make."""
    steps, now_s = [], 1.0
    for epoch in range(passes):
        now_s += making_s
        for _ in range(batches):
            steps.append(Step(PID, 0, epoch, now_s, 0.1, 0.2))
            now_s += 0.3
    return Session(steps=tuple(steps), loaders=(ObservedLoader(PID, 0, 2, 8), ObservedLoader(PID, 1, 0, 8)))


def with_starts(session: Session, seconds: float) -> Session:
    """Workers of each iterator start that long before its first step."""
    firsts = {step.epoch: step for step in reversed(session.steps)}
    return Session(
        steps=session.steps,
        loaders=session.loaders,
        events=tuple(
            Event(PID, "workers_start", step.start_s - seconds, 0.9 * seconds, "loader 0")
            for step in sorted(firsts.values(), key=lambda step: step.start_s)
        ),
    )


def test_each_step_begins_when_its_iterator_is_made() -> None:
    """Also where workers are kept, and an iterator only resets them."""
    joined = join_short_passes(short_passes())
    assert {step.epoch for step in joined.steps} == {0}
    assert [step.wait_s for step in joined.steps[1:]] == pytest.approx([0.6] * 5)
    assert [step.compute_s for step in joined.steps] == pytest.approx([0.2] * 6)
    assert (joined.loaders[0].passes, joined.loaders[0].pass_start_s) == (6, pytest.approx(0.5))


def test_what_another_loader_does_between_is_no_making() -> None:
    session = short_passes()
    other = Step(PID, 1, 0, session.steps[2].start_s - 0.4, 0.1, 0.1)
    joined = join_short_passes(Session(steps=(*session.steps, other), loaders=session.loaders))
    waits = [step.wait_s for step in joined.steps if step.loader == 0]
    assert waits == pytest.approx([0.1, 0.6, 0.1, 0.6, 0.6, 0.6])


def test_a_start_of_workers_within_the_step_before_ends_that_step() -> None:
    """`batches = iter(loader)`: the iterator before lives until the new one is there."""
    session = with_starts(short_passes(making_s=0.0), 0.05)
    joined = join_short_passes(session)
    assert [step.compute_s for step in joined.steps[:-1]] == pytest.approx([0.15] * 5)
    assert [step.wait_s for step in joined.steps[1:]] == pytest.approx([0.15] * 5)
    assert [event.name for event in joined.events] == ["workers_start"], "the first start is a part of the start-up"


def test_long_and_whole_passes_stay() -> None:
    long = short_passes(batches=9)
    few = short_passes(passes=3)
    whole = short_passes()
    ends = tuple(Event(PID, "epoch_end", step.start_s, 0.0, "loader 0") for step in whole.steps)
    whole = Session(steps=whole.steps, loaders=whole.loaders, events=ends)
    for session in (long, few, whole):
        assert join_short_passes(session) is session
