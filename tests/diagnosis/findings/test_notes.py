"""Notes: a loss that does not move, only where that is certain; what a larger batch does to the training."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.session.model import Event, Loss, Session
from session_factory import MAIN_PID, make_session


def with_losses(values: list[float], **options: float) -> Session:
    session = make_session(**{"steps": 120, **options})
    times = [2.0 + 0.05 * number for number in range(len(values))]
    return replace(session, losses=tuple(Loss(MAIN_PID, time_s, value) for time_s, value in zip(times, values, strict=True)))


def noisy(begin: float, end: float, noise: float, count: int = 90, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [begin + (end - begin) * number / count + rng.gauss(0, noise) for number in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_a_still_loss_is_noted(seed: int) -> None:
    (note,) = diagnose(with_losses(noisy(2.303, 2.303, 0.02, seed=seed))).notes
    assert "does not move over 120 watched steps: 2." in note.text and note.kind == "loss_still"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("begin", "end", "noise"), [(7.0, 6.8, 0.05), (2.3, 2.0, 0.2), (0.9, 1.1, 0.05), (6.9, 6.7, 0.0)])
def test_a_loss_that_moves_or_may_move_is_not_noted(seed: int, begin: float, end: float, noise: float) -> None:
    assert diagnose(with_losses(noisy(begin, end, noise, seed=seed))).notes == ()


def folds(count: int, length: int, fall: float, noise: float) -> list[float]:
    rng = random.Random(0)
    return [2.3 - fall * step / length + rng.gauss(0, noise) for _ in range(count) for step in range(length)]


def test_the_losses_of_models_that_follow_one_another_are_not_compared() -> None:
    still = with_losses(folds(6, 15, 0.01, 0.02))
    assert [note.kind for note in diagnose(still).notes] == ["loss_still"]
    begins = tuple(Event(MAIN_PID, "new_weights", 1.99 + 0.75 * fold, 0.0) for fold in range(6))
    assert diagnose(replace(still, events=begins)).notes == ()
    assert len(diagnose(replace(still, events=begins[:1])).notes) == 1, "an optimizer begins in every training"


def test_a_loss_that_falls_again_and_again_is_not_called_still() -> None:
    assert diagnose(with_losses(folds(6, 15, 0.2, 0.02))).notes == ()


def test_few_values_very_noisy_ones_and_other_processes_give_no_note() -> None:
    assert diagnose(with_losses([2.3] * 20)).notes == ()
    assert diagnose(with_losses(noisy(2.3, 2.3, 1.5))).notes == ()
    other = with_losses([2.3] * 90)
    assert diagnose(replace(other, losses=tuple(replace(loss, pid=7) for loss in other.losses))).notes == ()
    assert diagnose(make_session(steps=120)).notes == ()


def test_one_step_without_a_number_is_told_from_a_broken_run() -> None:
    values = noisy(2.3, 1.0, 0.01)
    values[40] = float("inf")
    (note,) = diagnose(with_losses(values)).notes
    assert note.text.startswith("the loss is infinite in step ")


def small_batches(optimizer: str | None) -> Session:
    session = make_session(workers=1, steps=120, batch_size=2, cpu_s=0.001, compute_s=0.006, main_cpu_share=0.95, cores=2)
    settings = {} if optimizer is None else {"configuration": {"device": "cpu", "optimizer": optimizer}}
    return replace(session, facts=settings, events=(Event(MAIN_PID, "operators", 3.0, 0.15),))


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("SGD", "Usual for SGD is 4 times the learning rate for SGD (linear scaling rule, Goyal et al. 2017), with a warm-up"),
        ("AdamW", "Usual for AdamW is 2 times the learning rate (square root scaling), with a warm-up"),
        (None, "4 times the learning rate for SGD (linear scaling rule, Goyal et al. 2017) or 2 times for Adam"),
    ],
)
def test_a_larger_batch_is_noted_with_steps_and_rate(optimizer: str | None, words: str) -> None:
    found = diagnose(small_batches(optimizer))
    fix = next(fix for fix in found.fixes if fix.id.startswith("batch_size="))
    assert fix.id == "batch_size=8"
    assert "4 times fewer steps per epoch" in fix.change
    (note,) = found.notes
    assert note.text.startswith("batch_size=8: an epoch has 4 times fewer steps (160,146 instead of 640,584)")
    assert words in note.text
