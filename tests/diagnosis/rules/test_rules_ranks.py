"""The rules for distributed jobs: slow ranks and the exchange of gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis_checks import check, fix
from headrace.diagnosis.diagnose import diagnose
from headrace.session.model import Session, Step
from session_factory import make_session


def two_ranks(slow: dict[str, float], collective_s: float = 0.001) -> Session:
    """A job in which rank 1 is slower in the given phases, and rank 0 waits for it."""
    extra_s = sum(slow.values())
    sessions = [make_session(cpu_s=0.002, compute_s=0.05 + extra_s, rank=rank, world_size=2) for rank in (0, 1)]
    steps: list[Step] = []
    for rank, session in enumerate(sessions):
        for step in session.steps:
            own = {name: slow.get(name, 0.0) * rank for name in ("wait_s", "forward_s", "backward_s")}
            steps.append(
                replace(
                    step,
                    wait_s=step.wait_s + own["wait_s"],
                    compute_s=step.compute_s - own["wait_s"],
                    forward_s=0.015 + own["forward_s"],
                    backward_s=0.03 + own["backward_s"],
                    collective_s=collective_s + (extra_s if rank == 0 else 0.0),
                )
            )
    merged = {name: sum((getattr(session, name) for session in sessions), ()) for name in ("processes", "loaders", "batches")}
    return replace(sessions[0], steps=tuple(sorted(steps, key=lambda step: step.start_s)), **merged)


@pytest.mark.parametrize(("phase", "words"), [("wait_s", "the loader"), ("forward_s", "forward"), ("backward_s", "backward")])
def test_slow_rank_is_reported_with_its_phase(phase: str, words: str) -> None:
    diagnosis = check(two_ranks({phase: 0.02}), "RANK_STRAGGLER")
    assert any("rank 1 needs" in line for line in diagnosis.findings[0].evidence)
    assert any(f"slow in {words}" in line for line in diagnosis.findings[0].evidence)
    assert [row.rank for row in diagnosis.rank_rows] == [0, 1]
    assert diagnosis.rank_rows[1].slow_in == words


def test_all_ranks_short_of_input_are_not_stragglers() -> None:
    sessions = [make_session(cpu_s=0.08, compute_s=0.01, workers=1, rank=rank, world_size=2) for rank in (0, 1)]
    merged = {
        name: sum((getattr(session, name) for session in sessions), ()) for name in ("processes", "loaders", "batches", "steps")
    }
    steps = tuple(replace(step, forward_s=0.003, backward_s=0.004, collective_s=0.001) for step in merged.pop("steps"))
    check(replace(sessions[0], steps=steps, **merged), "CPU_PREP")


def test_waits_of_all_ranks_for_gradients_are_communication() -> None:
    check(two_ranks({}, collective_s=0.02), "COMMUNICATION")


def test_process_that_ran_before_the_training_is_not_a_rank() -> None:
    early, late = (make_session(cpu_s=0.002, compute_s=0.05, rank=rank, steps=steps) for rank, steps in ((0, 60), (1, 120)))
    moved = tuple(replace(step, start_s=step.start_s + 60) for step in late.steps)
    names = ("processes", "loaders", "batches")
    merged = {name: getattr(early, name) + getattr(late, name) for name in names}
    diagnosis = diagnose(replace(early, steps=(*early.steps, *moved), **merged))
    assert diagnosis.ranks == 1
    assert diagnosis.img_s == pytest.approx(32 / 0.0505, rel=0.05)


def test_rank_that_is_slow_in_its_loader_gets_the_fixes_of_its_input() -> None:
    sessions = [
        make_session(workers=2, cpu_s=0.002, blocked_s=blocked_s, compute_s=0.02, rank=rank, world_size=2)
        for rank, blocked_s in enumerate((0.002, 0.1))
    ]
    merged = {name: sum((getattr(one, name) for one in sessions), ()) for name in ("processes", "loaders", "batches")}
    late_s = sum(step.wait_s for step in sessions[1].steps) / len(sessions[1].steps)
    waits = (0.001 + late_s, 0.001)
    steps = [
        replace(step, compute_s=0.02 + waits[rank], forward_s=0.005, backward_s=0.01, collective_s=waits[rank])
        for rank, one in enumerate(sessions)
        for step in one.steps
    ]
    diagnosis = check(
        replace(sessions[0], steps=tuple(sorted(steps, key=lambda step: step.start_s)), **merged), "RANK_STRAGGLER"
    )
    assert any("blocked" in words for words in diagnosis.findings[0].evidence)
    assert fix(diagnosis, "num_workers").gain == pytest.approx(2.3, rel=0.2)
