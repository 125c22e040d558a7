"""Placement on simulated machines: the share that is chosen, and when it is changed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Container
from dataclasses import dataclass

import pytest
from headrace.gpu.placement import EASE, HOLD, MOST_PAUSE, Placement, Rates, Seen, best_augmented, predicted_step_s

BATCH = 256


@dataclass
class Machine:
    """A simulated machine: the true rates, of which a placement sees noisy measurements."""

    cpu_img_s: float
    compute_s: float
    decoder_img_s: float = 8000.0
    cost_s: float = 2e-5
    noise: float = 0.02
    crop_share: float = 1.0  # of the CPU's time, where the GPU augments
    augmenter_img_s: float = 20000.0
    augment_cost_s: float = 1e-5
    failing: Container[int] = ()  # batches, in which the GPU fails if it takes part
    ahead: int = 0  # batches that are begun before one is handed over

    def run(self, placement: Placement, batches: int, seed: int = 0) -> float:
        """Run batches and return the mean seconds of the last quarter."""
        noise = random.Random(seed)
        periods: list[float] = []
        begun: deque[Seen] = deque()
        for batch in range(batches):
            on_gpu = placement.on_gpu(BATCH)
            cropped = placement.on_cpu_augmented(BATCH - on_gpu)
            if batch in self.failing and on_gpu + cropped:
                placement.fail("out of GPU memory")
                on_gpu = cropped = 0
            around = lambda value: value * noise.uniform(1 - self.noise, 1 + self.noise)  # noqa: E731
            compute_s = around(self.compute_s + on_gpu * self.cost_s + cropped * self.augment_cost_s)
            cpu_s = (BATCH - on_gpu - cropped * (1 - self.crop_share)) / self.cpu_img_s
            period_s = max(cpu_s, compute_s, on_gpu / self.decoder_img_s + cropped / self.augmenter_img_s)
            periods.append(around(period_s))
            seen = Seen(
                periods[-1],
                compute_s,
                around((BATCH - on_gpu) / cpu_s) if on_gpu < BATCH else None,
                around(self.decoder_img_s) if on_gpu else None,
                around(self.augmenter_img_s) if cropped else None,
            )
            begun.append(seen)
            if len(begun) > self.ahead:
                placement.see(begun.popleft())
        last = periods[-batches // 4 :]
        return sum(last) / len(last)

    def rates(self) -> Rates:
        costs = (self.decoder_img_s, self.cost_s, self.crop_share, self.augmenter_img_s, self.augment_cost_s)
        return Rates(self.cpu_img_s, self.compute_s, *costs)

    def best_s(self, *, decodes: bool = True, augments: bool = False) -> float:
        """Return the shortest step, over all shares that the GPU may take."""
        shares = [number / 16 for number in range(17)]
        return min(
            predicted_step_s(share, BATCH, self.rates(), augmented)
            for share in (shares if decodes else [0.0])
            for augmented in (shares if augments else [0.0])
        )


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


def failing_at(failures: Container[int], batches: int) -> list[int]:
    """Batches that the CPU made alone after each failure of a GPU that fails in these of its own batches."""
    placement, pauses, made = Placement("gpu", BATCH), [0], 0
    for _ in range(batches):
        if not placement.on_gpu(BATCH):
            pauses[-1] += 1
            placement.see(Seen(0.1))
        elif (made := made + 1) in failures:
            placement.fail("out of memory")
            pauses.append(0)
            placement.see(Seen(0.1))
        else:
            placement.see(Seen(0.1, decoder_img_s=8000.0))
    return pauses[1:]


def test_the_pause_after_a_failure_shrinks_while_the_gpu_does_its_part() -> None:
    """A training of days meets a moment without memory now and then: the GPU must not stay away for 1,024 batches."""
    early = range(1, 9)
    assert failing_at(early, 1000) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert failing_at([*early, 2000], 4000)[-1] == 1, "long ago"
    assert failing_at([*early, 8 + 1 + 2 * EASE], 4000)[-1] == 64, "256, halved twice"
    assert failing_at(range(1, 10**6, EASE // 2), 10**5)[-2] == MOST_PAUSE, "a GPU that fails again and again"


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


AUGMENTING = [
    Machine(cpu_img_s=1500, compute_s=0.05, crop_share=0.3),  # RandAugment costs twice what decoding costs
    Machine(cpu_img_s=3000, compute_s=0.04, crop_share=0.6),
    Machine(cpu_img_s=4500, compute_s=0.05, crop_share=0.8),  # a little short
    Machine(cpu_img_s=1500, compute_s=0.02, crop_share=0.3, augmenter_img_s=2200, augment_cost_s=4e-4),  # a slow GPU
    Machine(cpu_img_s=1000, compute_s=0.05, crop_share=0.97),  # nothing to gain
]


@pytest.mark.parametrize("machine", AUGMENTING)
@pytest.mark.parametrize("mode", ["cpu", "auto"])
def test_a_cpu_short_by_augmentation_is_relieved_of_it(machine: Machine, mode: str) -> None:
    """Without a decoder the GPU augments what the CPU decodes, to within a tenth of the best step."""
    placement = Placement(mode, BATCH, "no decoder", None)  # type: ignore[arg-type]
    assert machine.run(placement, 900) <= 1.1 * machine.best_s(decodes=False, augments=True)
    assert placement.share == 0
    alone_s = BATCH / machine.cpu_img_s
    assert placement.augmented > 0 or machine.best_s(decodes=False, augments=True) > 0.9 * alone_s


@pytest.mark.parametrize("machine", AUGMENTING)
@pytest.mark.parametrize("mode", ["auto", "split"])
def test_decoding_and_augmenting_share_the_gpu(machine: Machine, mode: str) -> None:
    placement = Placement(mode, BATCH, None, None)  # type: ignore[arg-type]
    assert machine.run(placement, 1500) <= 1.15 * machine.best_s(augments=True)


def test_a_cpu_that_keeps_up_augments_everything() -> None:
    placement = Placement("auto", BATCH, "no decoder", None)
    Machine(cpu_img_s=12000, compute_s=0.05, crop_share=0.3).run(placement, 300)
    assert placement.augmented == 0 and not placement.decisions
    assert placement.on_cpu_augmented(BATCH) == 0


def test_the_time_without_augmentation_is_measured_and_the_share_goes_back() -> None:
    placement = Placement("cpu", BATCH, "as asked", None)
    machine = Machine(cpu_img_s=1500, compute_s=0.05, crop_share=0.3)
    machine.run(placement, 400)
    assert placement.augmented > 0.8
    rates = placement.rates()
    assert rates is not None and "crop" in rates.measured
    assert rates.crop_share == pytest.approx(0.3, abs=0.06)
    assert rates.cpu_img_s == pytest.approx(1500, rel=0.1)
    machine.compute_s = 0.5
    machine.run(placement, 400)
    assert placement.augmented == 0


def test_augmenting_that_does_not_help_is_taken_back_and_not_repeated_soon() -> None:
    """Augmentation costs the CPU nothing, which is measured once."""
    placement = Placement("cpu", BATCH, "as asked", None)
    machine = Machine(cpu_img_s=1500, compute_s=0.05, crop_share=1.0)
    machine.run(placement, 600)
    assert placement.augmented == 0
    assert len(placement.decisions) <= 6
    assert any("not less than" in one.reason or one.augmented == 0 for one in placement.decisions)


def test_the_gpu_that_decodes_all_has_nothing_left_to_augment() -> None:
    placement = Placement("gpu", BATCH, None, None)
    AUGMENTING[0].run(placement, 200)
    assert placement.share == 1 and placement.augmented == 0 and not placement.decisions
    assert placement.on_gpu(BATCH) == BATCH and placement.on_cpu_augmented(0) == 0


def test_what_augments_is_told() -> None:
    placement = Placement("cpu", BATCH, "as asked", None)
    assert placement.describe(None) == [
        "decoded on the CPU (decode='cpu'): as asked",
        "  what the CPU decodes is augmented by the CPU, with the same pixels",
        "  not decided yet: rates are not measured",
    ]
    AUGMENTING[0].run(placement, 400)
    words = "\n".join(placement.describe(None))
    assert "what the CPU decodes is augmented by the GPU" in words or "% by the GPU" in words
    assert "of its time (measured), GPU augmentation" in words
    assert "of the rest" in words and "GPU decoder" not in words
    placement.refuse_augmenting("hue on this GPU gives other pixels than the CPU")
    assert placement.on_cpu_augmented(BATCH) == 0
    assert (
        placement.describe(None)[1]
        == "  what the CPU decodes it also augments: hue on this GPU gives other pixels than the CPU"
    )
    assert len(Placement("cpu", BATCH, "as asked").describe(None)) == 1, "nothing is augmented"


def test_failures_pause_augmenting_too() -> None:
    placement = Placement("cpu", BATCH, "as asked", None, augmented=1.0)
    assert (placement.on_gpu(BATCH), placement.on_cpu_augmented(BATCH)) == (0, BATCH)
    assert placement.fail("out of GPU memory")
    assert (placement.on_gpu(BATCH), placement.on_cpu_augmented(BATCH)) == (0, 0)
    assert (placement.on_gpu(BATCH), placement.on_cpu_augmented(BATCH)) == (0, BATCH)
    assert "the GPU failed in 1 batch," in "\n".join(placement.describe(None))


def test_the_best_share_to_augment_takes_no_more_than_helps() -> None:
    rates = Rates(cpu_img_s=2000, compute_s=0.1, crop_share=0.5, augmenter_img_s=1e6, augment_cost_s=0.0)
    assert best_augmented(200, rates, 0.0) == 0.0, "the CPU keeps up"
    assert best_augmented(300, rates, 0.0) == pytest.approx(11 / 16)
    assert best_augmented(300, rates, 1.0) == 0.0


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("last", [18, 24, 40, 100])
def test_batches_that_the_cpu_makes_after_a_failure_tell_nothing_of_the_shares(last: int, ahead: int) -> None:
    """They are as slow as before: it would look as if the GPU saved the CPU nothing."""
    placement = Placement("cpu", BATCH, "as asked", None)
    machine = Machine(cpu_img_s=1000, compute_s=0.05, crop_share=0.3, failing=range(8, last), ahead=ahead)
    machine.run(placement, 400)
    assert placement.failures > 0 and placement.augmented == 1
    rates = placement.rates()
    assert rates is not None and "crop" in rates.measured
    assert rates.crop_share == pytest.approx(0.3, abs=0.06)
    assert rates.cpu_img_s == pytest.approx(1000, rel=0.1)


def test_a_pause_takes_no_share_back() -> None:
    """A change has to prove itself by batches in which it was in force."""
    placement = Placement("auto", BATCH)
    machine = Machine(cpu_img_s=1500, compute_s=0.05, failing=range(8, 40))
    assert machine.run(placement, 400) <= 1.1 * machine.best_s()
    assert placement.failures > 0 and placement.share > 0
    assert not any("not less than" in one.reason for one in placement.decisions)


@pytest.mark.parametrize("ahead", [0, 3, 8, 32])
def test_batches_begun_before_a_change_do_not_judge_it(ahead: int) -> None:
    """With `prefetch=32` the next 32 batches were begun under the old shares, and are as slow as those before."""
    placement = Placement("auto", BATCH, prefetch=ahead)
    machine = Machine(cpu_img_s=1500, compute_s=0.05, ahead=ahead)
    assert machine.run(placement, 1200) <= 1.1 * machine.best_s()
    assert placement.share > 0
    assert not any("not less than" in one.reason for one in placement.decisions)
    augmenting = Placement("cpu", BATCH, "as asked", None, prefetch=ahead)
    machine = Machine(cpu_img_s=1500, compute_s=0.05, crop_share=0.3, ahead=ahead)
    assert machine.run(augmenting, 1200) <= 1.1 * machine.best_s(decodes=False, augments=True)
    rates = augmenting.rates()
    assert rates is not None and rates.crop_share == pytest.approx(0.3, abs=0.06)
