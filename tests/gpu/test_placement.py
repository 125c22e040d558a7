"""Placement on simulated machines: the share that is chosen, and when it is changed."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from headrace.gpu.placement import HOLD, Placement, Rates, Seen, best_share, predicted_step_s

BATCH = 256


@dataclass
class Machine:
    """A simulated machine: the true rates, of which a placement sees noisy measurements."""

    cpu_img_s: float
    compute_s: float
    decoder_img_s: float = 8000.0
    cost_s: float = 2e-5
    noise: float = 0.02

    def run(self, placement: Placement, batches: int, seed: int = 0) -> float:
        """Run batches and return the mean seconds of the last quarter."""
        noise = random.Random(seed)
        periods = []
        for _ in range(batches):
            on_gpu = placement.on_gpu(BATCH)
            around = lambda value: value * noise.uniform(1 - self.noise, 1 + self.noise)  # noqa: E731
            compute_s = around(self.compute_s + on_gpu * self.cost_s)
            period_s = max((BATCH - on_gpu) / self.cpu_img_s, compute_s, on_gpu / self.decoder_img_s)
            periods.append(around(period_s))
            placement.see(Seen(periods[-1], compute_s, around(self.cpu_img_s), around(self.decoder_img_s) if on_gpu else None))
        last = periods[-batches // 4 :]
        return sum(last) / len(last)

    def best_s(self) -> float:
        rates = Rates(self.cpu_img_s, self.compute_s, self.decoder_img_s, self.cost_s)
        return predicted_step_s(best_share(BATCH, rates), BATCH, rates)


def test_the_model_takes_the_largest_of_three_terms() -> None:
    rates = Rates(cpu_img_s=1000, compute_s=0.1, decoder_img_s=2000, cost_s=0.0005)
    assert predicted_step_s(0, 200, rates) == pytest.approx(0.2)
    assert predicted_step_s(0.5, 200, rates) == pytest.approx(0.15)
    assert predicted_step_s(1, 200, rates) == pytest.approx(0.2)
    assert predicted_step_s(1, 200, Rates(1000, 0.01, 500, 0.0)) == pytest.approx(0.4)


def test_a_cpu_that_keeps_up_decodes_everything() -> None:
    placement = Placement("auto", BATCH)
    Machine(cpu_img_s=12000, compute_s=0.05).run(placement, 300)
    assert placement.share == 0
    assert not placement.decisions


@pytest.mark.parametrize(
    "machine",
    [
        Machine(cpu_img_s=1500, compute_s=0.05),  # two cores and a fast GPU
        Machine(cpu_img_s=3000, compute_s=0.05),
        Machine(cpu_img_s=1500, compute_s=0.05, decoder_img_s=2500),  # a slow decoder
        Machine(cpu_img_s=500, compute_s=0.02, decoder_img_s=30000, cost_s=1e-5),
        Machine(cpu_img_s=2560, compute_s=0.09, cost_s=2e-4),  # decoding costs nearly what it saves
    ],
)
def test_a_short_cpu_is_relieved_to_within_a_tenth_of_the_best(machine: Machine) -> None:
    placement = Placement("auto", BATCH)
    assert machine.run(placement, 600) <= 1.1 * machine.best_s()
    alone = BATCH / machine.cpu_img_s
    assert placement.share > 0 or machine.best_s() > 0.9 * alone


def test_the_share_goes_back_when_the_step_becomes_longer() -> None:
    placement = Placement("auto", BATCH)
    machine = Machine(cpu_img_s=2500, compute_s=0.03)
    machine.run(placement, 300)
    assert placement.share > 0
    machine.compute_s = 0.3  # larger images: the CPU keeps up again
    machine.run(placement, 600)
    assert placement.share == 0


def test_the_share_follows_a_cpu_that_other_programs_take() -> None:
    placement = Placement("auto", BATCH)
    machine = Machine(cpu_img_s=9000, compute_s=0.05)
    machine.run(placement, 200)
    assert placement.share == 0
    machine.cpu_img_s = 1800
    assert machine.run(placement, 600) <= 1.1 * machine.best_s()
    assert placement.share > 0.3


def test_noise_does_not_make_the_share_move() -> None:
    placement = Placement("auto", BATCH)
    machine = Machine(cpu_img_s=2500, compute_s=0.05, noise=0.1)
    machine.run(placement, 300)
    before = len(placement.decisions)
    machine.run(placement, 1000, seed=1)
    assert len(placement.decisions) - before <= 8


def test_a_change_that_does_not_help_is_taken_back_and_not_repeated_soon() -> None:
    """The GPU's part takes cores from the CPU's: the model is wrong, and measuring the time per batch shows that."""
    placement = Placement("auto", BATCH)
    changes = []
    for batch in range(400):
        on_gpu = placement.on_gpu(BATCH)
        placement.see(Seen(0.1, 0.05, 2560.0, 8000.0 if on_gpu else None))
        if placement.decisions and (not changes or changes[-1][1] != placement.share):
            changes.append((batch, placement.share))
    assert changes[0][1] > 0
    assert changes[1][1] == 0
    assert changes[2][0] - changes[1][0] >= HOLD
    assert changes[4][0] - changes[3][0] >= 2 * HOLD, "the pause doubles"
    assert "not less than" in placement.decisions[1].reason


def test_gpu_and_cpu_modes_never_change() -> None:
    machine = Machine(cpu_img_s=1500, compute_s=0.05)
    for mode, share in (("cpu", 0.0), ("gpu", 1.0)):
        placement = Placement(mode, BATCH)
        machine.run(placement, 100)
        assert placement.share == share


def test_split_balances_both_sides_from_the_first_batch() -> None:
    placement = Placement("split", BATCH)
    assert 0 < placement.on_gpu(BATCH) < BATCH
    machine = Machine(cpu_img_s=2000, compute_s=0.01, decoder_img_s=6000, cost_s=1e-5)
    assert machine.run(placement, 300) <= 1.1 * machine.best_s()
    assert placement.share == pytest.approx(0.75, abs=0.13)


def test_shares_of_a_batch_are_carried_over() -> None:
    placement = Placement("split", 5)
    placement.share = 0.3
    assert sum(placement.on_gpu(5) for _ in range(100)) == pytest.approx(150, abs=2)


def test_failures_pause_the_gpu_longer_each_time() -> None:
    placement = Placement("gpu", BATCH)
    pauses, pause = [], 0
    for _ in range(200):
        if placement.on_gpu(BATCH):
            pauses.append(pause)
            pause = 0
            assert placement.fail("out of memory") == (len(pauses) == 1)
        else:
            pause += 1
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 64]


def test_the_reason_and_the_rates_are_told() -> None:
    placement = Placement("auto", BATCH)
    assert placement.describe(None)[-1] == "  not decided yet: rates are not measured"
    Machine(cpu_img_s=1500, compute_s=0.05).run(placement, 13)
    words = "\n".join(placement.describe("a decoder"))
    assert "by a decoder" in words
    assert "CPU 1,5" in words or "CPU 1,4" in words
    assert "(measured)" in words and "(estimated)" in words
    assert placement.describe(None)[-1].startswith("  after batch")
    assert "no NVRTC" in Placement("auto", BATCH, refusal="no NVRTC").describe(None)[0]
