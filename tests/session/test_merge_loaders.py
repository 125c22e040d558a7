"""A DataLoader that a script creates again in each epoch is one loader with several epochs."""

from __future__ import annotations

from dataclasses import replace

from headrace.diagnosis.diagnose import diagnose
from headrace.session.merge_loaders import merge_recreated_loaders
from headrace.session.model import Event, Session
from session_factory import MAIN_PID, make_session

EPOCHS = 4


def recreated_session(*, first_wait_s: float = 0.0, workers: int = 2) -> Session:
    """A session in which each epoch has a loader of its own, as the hooks number them."""
    one = make_session(cpu_s=0.005, compute_s=0.02, steps=40, workers=workers)
    length_s = sum(step.step_s for step in one.steps) + first_wait_s
    steps, batches, loaders, events = [], [], [], []
    for epoch in range(EPOCHS):
        shift_s = epoch * (length_s + 0.5)
        loaders.append(replace(one.loaders[0], loader=epoch))
        events.append(Event(MAIN_PID, "workers_start", 2.0 + shift_s, 0.01, f"loader {epoch}"))
        for number, step in enumerate(one.steps):
            extra_s = first_wait_s if number == 0 else 0.0
            steps.append(replace(step, loader=epoch, start_s=step.start_s + shift_s, wait_s=step.wait_s + extra_s))
        batches += [replace(batch, loader=epoch, start_s=batch.start_s + shift_s) for batch in one.batches]
    return replace(one, steps=tuple(steps), batches=tuple(batches), loaders=tuple(loaders), events=tuple(events))


def test_loader_recreated_per_epoch_is_one_loader_with_all_epochs() -> None:
    session = merge_recreated_loaders(recreated_session())
    assert [loader.loader for loader in session.loaders] == [0]
    assert session.loaders[0].remade == EPOCHS - 1
    assert {step.loader for step in session.steps} == {0}
    assert [step.epoch for step in session.steps] == sorted(step.epoch for step in session.steps)
    assert {step.epoch for step in session.steps} == set(range(EPOCHS))
    assert {batch.loader for batch in session.batches} == {0}
    assert {event.detail for event in session.events} == {"loader 0"}


def test_recreated_loader_is_startup_with_persistent_workers_as_fix() -> None:
    found = diagnose(recreated_session(first_wait_s=1.5))
    assert found.verdict == "STARTUP"
    assert found.findings[0].share_of == "run"
    assert any("made its DataLoader 4 times" in words for words in found.findings[0].evidence)
    persistent = next(fix for fix in found.fixes if fix.id == "persistent_workers")
    assert persistent.change.startswith("one DataLoader")
    assert persistent.gain is not None
    assert persistent.gain > 1.5


def test_validation_loader_is_not_merged_with_the_training_loader() -> None:
    session = recreated_session()
    validating = {1, 3}
    steps = tuple(replace(step, optimizer_steps=0) if step.loader in validating else step for step in session.steps)
    merged = merge_recreated_loaders(replace(session, steps=steps))
    assert [(loader.loader, loader.remade) for loader in merged.loaders] == [(0, 1), (1, 1)]
    assert all((step.optimizer_steps == 0) == (step.loader == 1) for step in merged.steps)


def test_loaders_iterated_at_the_same_time_are_not_merged() -> None:
    session = recreated_session()
    steps = tuple(replace(step, start_s=step.start_s - 40 * 0.02 * step.loader) for step in session.steps)
    assert len(merge_recreated_loaders(replace(session, steps=steps)).loaders) > 1


def test_loader_with_other_arguments_is_not_merged() -> None:
    session = recreated_session()
    loaders = (*session.loaders[:-1], replace(session.loaders[-1], batch_size=64))
    assert [loader.loader for loader in merge_recreated_loaders(replace(session, loaders=loaders)).loaders] == [0, 3]


def test_worker_restarted_in_each_epoch_has_one_row() -> None:
    session = recreated_session()
    one = session.batches[0]
    batches = tuple(replace(batch, pid=batch.pid + 10 * batch.loader) for batch in session.batches)
    started = [
        replace(process, pid=process.pid + 10 * epoch)
        for epoch in range(EPOCHS)
        for process in session.processes
        if process.role == "worker"
    ]
    main = next(process for process in session.processes if process.role == "main")
    rows = diagnose(replace(session, batches=batches, processes=(main, *started))).stages
    assert [row.name for row in rows] == ["worker 0", "worker 1"]
    assert sum(row.batches for row in rows) == len(batches)
    assert rows[0].pid == one.pid
