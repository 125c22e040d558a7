"""The clock of the training loop, on a made-up time."""

from __future__ import annotations

import types

import pytest
from headrace.training import devices
from headrace.training.devices import Device, StepTimer

A100 = Device("simulated", "simulated A100", "cpu", 2470.0, "source")
CPU = Device("cpu", "CPU", "cpu")


class Clock:
    """Time that passes only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        fake = types.SimpleNamespace(perf_counter=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(devices, "time", fake)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def run_steps(pace: StepTimer, clock: Clock, steps: int, *, wait_s: float, compute_s: float, images: int = 247) -> None:
    for _ in range(steps):
        pace.ask()
        clock.sleep(wait_s)
        pace.begin()
        clock.sleep(compute_s)
        pace.end(images)


def test_a_simulated_device_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), StepTimer(A100, warm_up_steps=0)
    run_steps(pace, clock, 10, wait_s=0.0, compute_s=0.02)
    assert pace.read() == (pytest.approx(2470.0), pytest.approx(0.0))  # 247 images a 0.1 s, of which 0.02 s were work


def test_waiting_for_input_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), StepTimer(A100, warm_up_steps=0)
    run_steps(pace, clock, 10, wait_s=0.3, compute_s=0.02)
    assert pace.read() == (pytest.approx(247 / 0.4), pytest.approx(0.75))


def test_slow_compute_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), StepTimer(A100, warm_up_steps=0)
    run_steps(pace, clock, 10, wait_s=0.0, compute_s=0.5)
    assert pace.read()[0] == pytest.approx(247 / 0.5)


def test_warm_up_and_what_lies_between_passes_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), StepTimer(CPU, warm_up_steps=3)
    assert pace.read() == (None, None)
    run_steps(pace, clock, 3, wait_s=9.0, compute_s=1.0)
    assert pace.read() == (None, None)
    run_steps(pace, clock, 5, wait_s=0.1, compute_s=0.9, images=50)
    clock.sleep(60)  # an evaluation
    run_steps(pace, clock, 5, wait_s=0.1, compute_s=0.9, images=50)
    assert pace.read() == (pytest.approx(50), pytest.approx(0.1))


def test_names_of_devices() -> None:
    pytest.importorskip("torch")
    assert devices.open_device("sim:a100").name == "simulated A100"
    assert devices.open_device("sim:1200").name == "simulated GPU (1200 img/s)"
    assert devices.open_device("cpu").kind == "cpu"
