"""Notes on the contents of batches: each stands only where it is certain, and healthy jobs that look alike get none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.findings.batch_notes import batch_notes
from headrace.diagnosis.result.model import NOTES, Note
from headrace.session.batch_contents import Contents, GeneratorState, LoaderContents, LookedBatch, Pass, WorkerDraws
from headrace.session.model import Session
from session_factory import MAIN_PID, make_session

NUMBERS = (1, 2, 4, 8, 16, 32)


def an_epoch(epoch: int, order: str, *, ended: bool = True, items: int = 1024, records: int = 1024) -> Pass:
    looks = tuple((number, f"{order}{number}") for number in NUMBERS)
    return Pass(epoch, looks, batches=32, items=items, records=records, ended=ended)


HEALTHY = LoaderContents(
    MAIN_PID,
    0,
    sampler="RandomSampler",
    classes=10,
    batches=96,
    batch_records=32,
    record_set="a",
    record_looks=7,
    same_record_looks=1,
    label_looks=7,
    labels=224,
    label=3,
    label_kinds=10,
    expected_single=0.0,
    vector_looks=7,
    same_vector_looks=1,
    image_looks=7,
    format="float32",
    low=-2.1,
    high=2.6,
    comparable_looks=7,
    first=tuple(LookedBatch(number, f"r{number}", f"l{number}", f"v{number}") for number in NUMBERS),
    passes=(an_epoch(0, "a"), an_epoch(1, "b"), an_epoch(2, "c")),
)


def session_of(*loaders: LoaderContents, draws: tuple[WorkerDraws, ...] = (), **loader: Any) -> Session:
    made = make_session(steps=120)
    observed = replace(made.loaders[0], **{"dataset_length": 1024, **loader})
    return replace(made, loaders=(observed,), contents=Contents(loaders, draws))


def notes_on(changes: dict[str, Any], **loader: Any) -> list[Note]:
    return list(batch_notes(session_of(replace(HEALTHY, **changes), **loader), MAIN_PID))


ODD: dict[str, dict[str, Any]] = {
    "same_records": {"same_record_looks": 7},
    "one_label": {"label_kinds": 1, "single_label_looks": 7, "expected_single": 1.0},
    "one_label_a_batch": {"label_looks": 10, "labels": 320, "single_label_looks": 9},
    "same_labels": {"same_vector_looks": 7},
    "zero_images": {"zero_looks": 7, "equal_looks": 7, "low": 0.0, "high": 0.0},
    "equal_images": {"equal_looks": 7},
    "not_finite": {"not_finite_looks": 1, "not_finite": (4, 12, 4096)},
    "values_to_255": {"low": 0.0, "high": 255.0},
    "same_order": {"passes": tuple(an_epoch(number, "a") for number in range(3))},
}

ALIKE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "few looks at the same records": {"record_looks": 3, "same_record_looks": 3},
    "few labels": {"label_looks": 7, "labels": 28, "label_kinds": 1, "single_label_looks": 7},
    "rare class in small batches": {"label_kinds": 2, "single_label_looks": 7, "label_looks": 7, "expected_single": 0.92},
    "batches of one image": {"label_looks": 50, "labels": 50, "single_label_looks": 50},
    "labels that changed once": {"same_vector_looks": 6},
    "some black batches": {"zero_looks": 6, "equal_looks": 6, "low": 0.0, "high": 1.0},
    "values from 0 to 1": {"low": 0.0, "high": 1.0},
    "bytes": {"format": "uint8", "low": 0.0, "high": 255.0},
    "normalised without the 255": {"low": -124.0, "high": 151.0},
    "metres": {"low": 0.0, "high": 4095.0},
    "one epoch": {"passes": (an_epoch(0, "a"),)},
    "an order that changed once": {"passes": (an_epoch(0, "a"), an_epoch(1, "a"), an_epoch(2, "b"))},
    "one batch an epoch": {"passes": tuple(Pass(number, ((1, "a"),), 1, 32, 32, True) for number in range(9))},
}


def test_a_healthy_job_has_no_note() -> None:
    assert diagnose(session_of(HEALTHY)).notes == ()


@pytest.mark.parametrize("kind", ODD)
def test_what_is_odd_is_noted_once_with_its_evidence(kind: str) -> None:
    (note,) = notes_on(ODD[kind])
    assert note.kind == kind and note.evidence and note.is_in_batches


@pytest.mark.parametrize("alike", ALIKE)
def test_what_looks_alike_is_not_noted(alike: str) -> None:
    assert notes_on(ALIKE[alike]) == []


def test_a_batch_that_is_the_whole_dataset_is_not_noted() -> None:
    assert notes_on(ODD["same_records"], dataset_length=32) == []
    assert notes_on(ODD["same_records"], dataset_length=None) == []


def test_the_same_records_give_no_second_note_on_order_or_labels() -> None:
    found = notes_on(ODD["same_records"] | ODD["same_order"] | ODD["same_labels"])
    assert [note.kind for note in found] == ["same_records"]


def test_a_next_of_a_new_iterator_in_each_step_is_named() -> None:
    passes = tuple(Pass(number, ((1, "a"),), 1, 32, 32) for number in range(8))
    (note,) = notes_on(ODD["same_records"] | {"passes": passes})
    assert note.text == "every batch holds the same 32 records, of 1,024 in the dataset"
    assert "next(iter(loader))" in note.evidence[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": 1, "class_name": "train"}, "one class: 'train'"),
        ({"sampler": "SequentialSampler", "passes": (an_epoch(0, "a", ended=False),)}, "other labels may follow"),
        ({}, "needs no labels"),
    ],
)
def test_one_label_says_how_many_were_seen_and_what_may_be_behind(changes: dict[str, Any], words: str) -> None:
    (note,) = notes_on(ODD["one_label"] | changes)
    assert note.text.startswith("every label is 3: 224 labels in 7 batches looked at, of 96")
    assert words in note.evidence[0]


@pytest.mark.parametrize(
    ("sampler", "words"), [("DistributedSampler", "set_epoch"), ("SequentialSampler", "does not shuffle"), ("Mine", "Mine")]
)
def test_the_same_order_names_what_chooses_the_records(sampler: str, words: str) -> None:
    (note,) = notes_on(ODD["same_order"] | {"sampler": sampler})
    assert note.text.endswith("in every epoch: 3 epochs compared")
    assert words in note.evidence[0]
    assert note.evidence[1].startswith("batches 1, 2, 4, 8, 16, 32 of each hold the same records")


def test_loaders_made_anew_in_each_epoch_are_compared() -> None:
    parts = [replace(HEALTHY, passes=(an_epoch(0, "a"),)) for _ in range(3)]
    (note,) = batch_notes(session_of(*parts), MAIN_PID)
    assert note.kind == "same_order"
    parts[1] = replace(HEALTHY, passes=(an_epoch(0, "b"),))
    assert batch_notes(session_of(*parts), MAIN_PID) == ()


def test_a_note_on_one_of_several_loaders_names_the_loader() -> None:
    odd = replace(HEALTHY, **ODD["one_label"])
    made = session_of(odd, replace(odd, loader=1))
    both = replace(made, loaders=(made.loaders[0], replace(made.loaders[0], loader=1, dataset="mine.Data")))
    first, second = batch_notes(both, MAIN_PID)
    assert first.text == second.text and second.evidence[-1] == "seen in loader 2, of mine.Data"


def stream(**changes: Any) -> list[Note]:
    unknown: dict[str, Any] = {"record_looks": 0, "same_record_looks": 0, "sampler": "", "passes": ()}
    return notes_on(unknown | changes, iterable=True, num_workers=2, dataset_length=1024, batch_size=32)


def test_an_iterable_dataset_that_workers_do_not_divide() -> None:
    (note,) = stream(digests=("a", "a", "b", "b", "c", "c"))
    assert note.text.startswith("each of the 2 workers gives all records")
    assert note.evidence[0] == "of the first 6 batches, 3 differ: each came 2 times"
    (note,) = stream(passes=(Pass(0, (), 64, 2048, 2048, ended=True),))
    assert note.evidence[0] == "an epoch gave 2,048 records, and the dataset's length is 1,024"
    for digests in (("a", "b", "c", "d", "e", "f"), ("a",) * 6, ("a", "a"), ("a", "a", "b", "c", "d", "d")):
        assert stream(digests=digests) == []
    for items, ended in ((1024, True), (2048, False), (1500, True)):
        assert stream(passes=(Pass(0, (), 64, items, items, ended=ended),)) == []


def ranks(first: LoaderContents, second: LoaderContents, *, parallel: bool = True, **loader: Any) -> list[Note]:
    sessions = []
    for rank, seen in enumerate((first, second)):
        made = make_session(steps=120, rank=rank, world_size=2)
        pid = made.processes[0].pid
        steps = tuple(replace(step, forward_s=0.01 if parallel else None) for step in made.steps)
        observed = replace(made.loaders[0], **{"dataset_length": 1024, **loader})
        sessions.append(replace(made, steps=steps, loaders=(observed,), contents=Contents((replace(seen, pid=pid),))))
    one, two = sessions
    both = replace(
        one,
        processes=one.processes + two.processes,
        loaders=one.loaders + two.loaders,
        steps=one.steps + two.steps,
        contents=Contents(one.contents.loaders + two.contents.loaders),
    )
    return list(batch_notes(both, MAIN_PID))


def looked(values: str, records: str, labels: str) -> tuple[LookedBatch, ...]:
    return tuple(LookedBatch(number, f"{records}{number}", f"{labels}{number}", f"{values}{number}") for number in NUMBERS)


def test_ranks_that_read_the_same_records() -> None:
    (note,) = ranks(HEALTHY, HEALTHY)
    assert note.text == "ranks 0 and 1 train on the same records in the same order"
    augmented = replace(HEALTHY, first=looked("x", "r", "l"))
    (note,) = ranks(HEALTHY, augmented)
    assert "the same indices and the same labels" in note.evidence[0]


def test_ranks_of_which_that_is_not_certain_are_not_noted() -> None:
    assert ranks(HEALTHY, HEALTHY, parallel=False) == []  # no gradients are averaged: tensor or pipeline parallel
    own: dict[str, Any] = {"dataset": "mine.Data"}
    assert ranks(HEALTHY, replace(HEALTHY, first=looked("x", "x", "x")), **own) == []
    assert ranks(HEALTHY, replace(HEALTHY, first=looked("x", "r", "x")), **own) == []  # the same indices of other datasets
    one_label = tuple(LookedBatch(number, f"r{number}", "l", f"v{number}") for number in NUMBERS)
    other = tuple(replace(one, values=f"x{one.number}") for one in one_label)
    assert ranks(replace(HEALTHY, first=one_label), replace(HEALTHY, first=other), **own) == []


def test_ranks_that_each_read_all_records_in_an_order_of_their_own() -> None:
    other = replace(HEALTHY, first=looked("x", "x", "x"))
    (note,) = ranks(HEALTHY, other, dataset="torchvision.datasets.cifar.CIFAR10")
    assert note.text == "each of 2 ranks reads all 1,024 records in an epoch, in its own order"
    half = replace(other, sampler="DistributedSampler", passes=(an_epoch(0, "b", records=512),))
    assert ranks(replace(half, first=HEALTHY.first), half, dataset="torchvision.datasets.cifar.CIFAR10") == []
    assert ranks(HEALTHY, other, dataset="torch.utils.data.dataset.Subset") == []


def drawn(pid: int, worker: int, *states: str, name: str = "dataset.rng", seed: str | None = None) -> list[WorkerDraws]:
    return [
        WorkerDraws(pid, 0, worker, pid + made / 10, made, (GeneratorState(name, "numpy Generator", state, seed),))
        for made, state in enumerate(states)
    ]


def draw_notes_of(*lines: list[WorkerDraws]) -> list[Note]:
    draws = tuple(one for line in lines for one in line)
    made = session_of(HEALTHY, draws=draws)
    worker = made.processes[1]
    more = tuple(replace(worker, pid=pid) for pid in {one.pid for one in draws} - {one.pid for one in made.processes})
    return list(batch_notes(replace(made, processes=made.processes + more), MAIN_PID))


def test_a_generator_that_was_copied_into_the_workers() -> None:
    (note,) = draw_notes_of(drawn(1001, 0, "a", "b", "c"), drawn(1002, 1, "a", "b", "c"))
    assert note.text.startswith("dataset.rng (numpy Generator) draws the same random numbers in both workers: each worker")
    (note,) = draw_notes_of(drawn(1001, 0, "a", "b", "c", seed="s"), drawn(1002, 1, "a", "x", "y", seed="s"))
    assert "in both workers" in note.text  # the same sequence, drawn from more often by one
    (note,) = draw_notes_of(drawn(1001, 0, "a", "b", "c", name="np.random"), drawn(1002, 1, "a", "b", "c", name="np.random"))
    assert "the global generator np.random" in note.text and "worker_init_fn" in note.text


def test_a_generator_that_begins_anew_in_each_epoch() -> None:
    epochs = [
        drawn(1001, 0, "a", "b", "c"),
        drawn(1002, 1, "x", "y", "z"),
        drawn(1003, 0, "a", "b", "c"),
        drawn(1004, 1, "x", "y", "z"),
    ]
    (note,) = draw_notes_of(*epochs)
    assert "draws the same random numbers in every epoch" in note.text and "workers" not in note.text.partition(":")[0]
    assert "in 2 epochs" in note.evidence[0]
    assert draw_notes_of(*epochs[:3]) == []


def test_generators_that_do_not_repeat_are_not_noted() -> None:
    assert draw_notes_of(drawn(1001, 0, "a", "b", "c"), drawn(1002, 1, "x", "y", "z")) == []  # seeded by worker
    assert draw_notes_of(drawn(1001, 0, "a", "a", "a"), drawn(1002, 1, "a", "a", "a")) == []  # nobody draws
    assert draw_notes_of(drawn(1001, 0, "a", "b", "b"), drawn(1002, 1, "a", "b", "b")) == []  # drawn from once, at the start
    assert draw_notes_of(drawn(1001, 0, "a", "b", "c"), drawn(1002, 1, "a", "x", "y")) == []  # seeded by record
    seeded_late = drawn(1001, 0, "a", "b", "c", seed="s"), drawn(1002, 1, "a", "x", "y", seed="t")
    assert draw_notes_of(*seeded_late) == []
    assert draw_notes_of(drawn(1001, 0, "a", "b", "c"), drawn(1002, 1, "a", "b")) == []


def test_all_kinds_that_are_made_are_listed() -> None:
    assert {kind for kind, is_in_batches in NOTES.items() if is_in_batches} >= set(ODD)


def test_a_session_keeps_the_contents(tmp_path: Any) -> None:
    made = session_of(HEALTHY, draws=tuple(drawn(1001, 0, "a", "b", "c", seed="s")))
    assert Session.load(made.save(tmp_path)).contents == made.contents
