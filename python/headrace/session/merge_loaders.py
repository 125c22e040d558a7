"""Merge the loaders of a script that creates its DataLoader again in each epoch: one loader with several epochs.

Iterators that give the script only a few batches are joined afterwards (`headrace.session.short_passes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from headrace.session.model import Batch, Event, ObservedLoader, Session, Step, owners
from headrace.session.short_passes import join_short_passes
from headrace.session.stacks import Stack

__all__ = ["merge_recreated_loaders"]

Key = tuple[int, int]
"""Pid of a process, and the number of a loader in that process."""

Made = TypeVar("Made", Batch, Stack)


def merge_recreated_loaders(session: Session) -> Session:
    """Return the session with alike loaders of a process merged when they were iterated one after the other.

    Loaders are alike when they have the same arguments and the same type of dataset, and when an optimizer took steps with
    all of them or with none. Steps, batches and events get the number of the first loader; epochs are renumbered. Short
    passes are joined.
    """
    return join_short_passes(_merged(session))


def _merged(session: Session) -> Session:
    groups: dict[Key, list[Step]] = {}
    for step in session.steps:
        groups.setdefault((step.pid, step.loader), []).append(step)
    first = _first_of_kind(session.loaders, groups)
    if not first:
        return session
    epochs = _epochs(groups, first)
    steps = [
        replace(step, loader=_loader_number(first, step), epoch=epochs[step.pid, step.loader, step.epoch])
        if (step.pid, step.loader, step.epoch) in epochs
        else step
        for step in session.steps
    ]
    parents = owners(session.processes)
    trained = {pid for pid, _ in groups}
    by_number = {loader: number for (_, loader), number in first.items()}

    def renumbered(made: Made) -> Made:
        owner = parents.get(made.pid, made.pid)  # a fork server owns no loader itself
        number = first.get((owner, made.loader or 0)) if owner in trained else by_number.get(made.loader or 0)
        return made if number is None or made.loader is None else replace(made, loader=number)

    counts = Counter((pid, number) for (pid, _), number in first.items())
    staying = (loader for loader in session.loaders if (loader.pid, loader.loader) not in first)
    return replace(
        session,
        loaders=tuple(replace(loader, remade=counts[loader.pid, loader.loader]) for loader in staying),
        steps=tuple(steps),
        batches=tuple(renumbered(batch) for batch in session.batches),
        stacks=tuple(renumbered(stack) for stack in session.stacks),
        events=tuple(_renumbered_event(event, first) for event in session.events),
        contents=session.contents.renumbered(first, parents),
    )


def _first_of_kind(loaders: Sequence[ObservedLoader], groups: Mapping[Key, Sequence[Step]]) -> dict[Key, int]:
    """Return the number of the first loader, for each loader that continues an earlier one."""
    found: dict[Key, int] = {}
    kinds: dict[tuple[ObservedLoader, bool], tuple[int, float]] = {}
    for loader in sorted(dict.fromkeys(loaders), key=lambda loader: (loader.pid, loader.loader)):
        steps = groups.get((loader.pid, loader.loader))
        if not steps:
            continue
        alike = replace(loader, loader=0, sample_paths=(), transform=None)
        alike = replace(alike, take_over=None, take_over_reason=None, native_part=None)  # not asked about every loader
        kind = alike, any(step.optimizer_steps for step in steps)
        end_s = steps[-1].start_s + steps[-1].step_s
        if kind in kinds and kinds[kind][1] <= steps[0].start_s:
            number = kinds[kind][0]
            found[loader.pid, loader.loader] = number
        else:
            number = loader.loader
        kinds[kind] = number, end_s
    return found


def _epochs(groups: Mapping[Key, Sequence[Step]], first: Mapping[Key, int]) -> dict[tuple[int, int, int], int]:
    """Return the new number of each epoch (pid, loader, epoch) of the merged loaders, in order of time."""
    concerned = {*first, *((pid, number) for (pid, _), number in first.items())}
    passes: dict[Key, list[tuple[float, int, int]]] = {}
    for pid, loader in concerned:
        starts: dict[int, float] = {}
        for step in groups.get((pid, loader), ()):
            starts.setdefault(step.epoch, step.start_s)
        passes.setdefault((pid, first.get((pid, loader), loader)), []).extend(
            (start_s, loader, epoch) for epoch, start_s in starts.items()
        )
    return {
        (pid, loader, epoch): number
        for (pid, _), members in passes.items()
        for number, (_, loader, epoch) in enumerate(sorted(members))
    }


def _loader_number(first: Mapping[Key, int], step: Step) -> int:
    return first.get((step.pid, step.loader), step.loader)


def _renumbered_event(event: Event, first: Mapping[Key, int]) -> Event:
    """Return an event with the new number, when its detail names a merged loader ("loader 3")."""
    word, _, number = (event.detail or "").partition(" ")
    if word != "loader" or not number.isdecimal() or (event.pid, int(number)) not in first:
        return event
    return replace(event, detail=f"loader {first[event.pid, int(number)]}")
