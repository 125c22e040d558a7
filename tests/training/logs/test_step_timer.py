"""The step timer, on a simulated clock."""

from __future__ import annotations

import types

import pytest
from headrace.training.distributed.devices import Device
from headrace.training.logs import step_timer
from headrace.training.logs.step_timer import StepTimer

A100 = Device("simulated", "simulated A100", "cpu", 2470.0, "source")
CPU = Device("cpu", "CPU", "cpu")


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        fake = types.SimpleNamespace(perf_counter=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(step_timer, "time", fake)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def run_steps(timer: StepTimer, clock: Clock, steps: int, *, wait_s: float, compute_s: float, images: int = 247) -> None:
    for _ in range(steps):
        timer.request_batch()
        clock.sleep(wait_s)
        timer.begin_step()
        clock.sleep(compute_s)
        timer.end_step(images)


def test_a_simulated_device_waits_for_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timer = Clock(monkeypatch), StepTimer(A100, warm_up_steps=0)
    run_steps(timer, clock, 10, wait_s=0.0, compute_s=0.02)
    assert timer.rates() == (pytest.approx(2470.0), pytest.approx(0.0))  # 247 images a 0.1 s, of which 0.02 s were work


def test_the_wait_share_is_the_time_without_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timer = Clock(monkeypatch), StepTimer(A100, warm_up_steps=0)
    run_steps(timer, clock, 10, wait_s=0.3, compute_s=0.02)
    assert timer.rates() == (pytest.approx(247 / 0.4), pytest.approx(0.75))


def test_compute_slower_than_the_simulated_rate_lowers_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timer = Clock(monkeypatch), StepTimer(A100, warm_up_steps=0)
    run_steps(timer, clock, 10, wait_s=0.0, compute_s=0.5)
    assert timer.rates()[0] == pytest.approx(247 / 0.5)


def test_warm_up_steps_and_evaluation_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timer = Clock(monkeypatch), StepTimer(CPU, warm_up_steps=3)
    assert timer.rates() == (None, None)
    run_steps(timer, clock, 3, wait_s=9.0, compute_s=1.0)
    assert timer.rates() == (None, None)
    run_steps(timer, clock, 5, wait_s=0.1, compute_s=0.9, images=50)
    clock.sleep(60)  # an evaluation
    run_steps(timer, clock, 5, wait_s=0.1, compute_s=0.9, images=50)
    assert timer.rates() == (pytest.approx(50), pytest.approx(0.1))
