"""Notes on random numbers: generators that draw the same numbers in several workers, or in every epoch.

A generator counts only if its state was the same before the first batch, batches went on drawing from it, and what it drew was
the same: it was seeded neither by the script nor by a library meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.diagnosis.result.model import Note
from headrace.session.batch_contents import GeneratorState, WorkerDraws
from headrace.system.text.sizes import count_text

__all__ = ["draw_notes"]

GLOBAL = ("random", "np.random", "torch")

History = tuple[GeneratorState, GeneratorState, GeneratorState]
"""A generator before the first batch of a worker, after it, and after the second."""


def draw_notes(lines: Sequence[WorkerDraws]) -> Iterator[Note]:
    """Yield a note for each generator of a loader's workers that draws the same numbers again. lines: of these workers."""
    by_process: dict[int, list[WorkerDraws]] = {}
    for one in lines:
        by_process.setdefault(one.pid, []).append(one)
    by_worker: dict[int, list[dict[str, History]]] = {}
    for drawn in by_process.values():  # in order of time: the n-th process of a worker is that of the n-th pass
        by_worker.setdefault(drawn[0].worker, []).append(_histories(drawn))
    by_name: dict[str, dict[int, list[History]]] = {}  # and by pass: of each worker that has the generator in it
    for found in by_worker.values():
        for number, histories in enumerate(found):
            for name, history in histories.items():
                by_name.setdefault(name, {}).setdefault(number, []).append(history)
    for name, passes in by_name.items():
        yield from _note(name, [group for _, group in sorted(passes.items()) if len(group) == len(by_worker)], len(by_worker))


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


def _note(name: str, whole: Sequence[Sequence[History]], count: int) -> Iterator[Note]:
    """Yield a note on one generator. whole: the passes that show it in each of `count` workers."""
    if not whole:
        return
    in_workers = count > 1 and all(_is_one_sequence(group) for group in whole)
    in_epochs = len(whole) > 1 and all(_is_one_sequence([group[place] for group in whole]) for place in range(count))
    if not in_workers and not in_epochs:
        return
    kind = whole[0][0][0].type
    called = f"the global generator {name}" if name in GLOBAL else f"{name} ({kind})"
    workers = f"in {'both' if count == 2 else f'all {count}'} workers"
    where = [words for words, is_so in ((workers, in_workers), ("in every epoch", in_epochs)) if is_so]
    seeded = "worker_init_fn seeds it alike, or the script seeds PyTorch alike before each epoch"
    why = seeded if name in GLOBAL else "each worker begins with a copy of it"
    seen = [count_text(count, "worker")] if in_workers else []
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
