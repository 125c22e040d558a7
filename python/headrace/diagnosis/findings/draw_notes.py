"""Notes on random numbers: generators that draw the same numbers in several workers, or in every epoch.

A generator counts only if its state was the same before the first batch, batches went on drawing from it, and what it drew was
the same: it was seeded neither by the script nor by a library meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.diagnosis.result.model import Note
from headrace.session.batch_contents import GeneratorState, WorkerDraws
from headrace.session.model import Session, owners
from headrace.system.text.sizes import count_text

__all__ = ["draw_notes"]

GLOBAL = ("random", "np.random", "torch")

History = tuple[GeneratorState, GeneratorState, GeneratorState]
"""A generator before the first batch of a worker, after it, and after the second."""


def draw_notes(session: Session, pid: int, loader: int) -> Iterator[Note]:
    """Yield a note for each generator of a loader's workers that draws the same numbers again. pid: of the training process."""
    parents = owners(session.processes)
    lines = [one for one in session.contents.draws if one.loader == loader and parents.get(one.pid) == pid]
    by_process: dict[int, list[WorkerDraws]] = {}
    for one in lines:
        by_process.setdefault(one.pid, []).append(one)
    by_worker: dict[int, list[dict[str, History]]] = {}
    for drawn in by_process.values():  # in order of time: the n-th process of a worker is that of the n-th pass
        by_worker.setdefault(drawn[0].worker, []).append(_histories(drawn))
    names = dict.fromkeys(name for found in by_worker.values() for histories in found for name in histories)
    for name in names:
        yield from _note(name, by_worker)


def _histories(drawn: Sequence[WorkerDraws]) -> dict[str, History]:
    """Return the generators of one worker that its second batch drew from."""
    states = {one.made: {each.name: each for each in one.generators} for one in drawn}
    if not states.keys() >= {0, 1, 2}:
        return {}
    return {
        name: (state, states[1][name], states[2][name])
        for name, state in states[0].items()
        if name in states[1] and name in states[2] and states[1][name].state != states[2][name].state
    }


def _note(name: str, by_worker: dict[int, list[dict[str, History]]]) -> Iterator[Note]:
    passes = max(map(len, by_worker.values()))
    groups = [[found[number].get(name) for found in by_worker.values() if number < len(found)] for number in range(passes)]
    whole = [[one for one in group if one is not None] for group in groups if len(group) == len(by_worker)]
    whole = [group for group in whole if len(group) == len(by_worker)]
    if not whole:
        return
    in_workers = len(by_worker) > 1 and all(_is_one_sequence(group) for group in whole)
    in_epochs = len(whole) > 1 and all(_is_one_sequence([group[place] for group in whole]) for place in range(len(by_worker)))
    if not in_workers and not in_epochs:
        return
    kind = whole[0][0][0].type
    called = f"the global generator {name}" if name in GLOBAL else f"{name} ({kind})"
    workers = f"in {'both' if len(by_worker) == 2 else f'all {len(by_worker)}'} workers"
    where = [words for words, is_so in ((workers, in_workers), ("in every epoch", in_epochs)) if is_so]
    seeded = "worker_init_fn seeds it alike, or the script seeds PyTorch alike before each epoch"
    why = seeded if name in GLOBAL else "each worker begins with a copy of it"
    seen = [count_text(len(by_worker), "worker")] if in_workers else []
    seen += [count_text(len(whole), "epoch")] if in_epochs else []
    evidence = f"its state was the same before the first batch in {' and '.join(seen)}, and the batches drew on from it"
    yield Note("same_draws", f"{called} draws the same random numbers {' and '.join(where)}: {why}", (evidence,))


def _is_one_sequence(histories: Sequence[History]) -> bool:
    """Whether generators begin with one state and go on from it: with the seed of one, or with states that stay the same."""
    if len({before.state for before, _, _ in histories}) > 1:
        return False
    seeds = {after.seed for _, after, _ in histories}
    if len(seeds) == 1 and None not in seeds:
        return {before.seed for before, _, _ in histories} == seeds
    return len({after.state for _, after, _ in histories}) == 1
