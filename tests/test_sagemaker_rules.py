"""SageMaker's rules fire above their thresholds, and are silent with too few data points."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.session.machine import GpuProperties, GpuSample, Host, Sample
from headrace.session.model import Session, Step
from session_factory import example_session

RULES_FILE = Path(__file__).parent.parent / "benchmarks" / "scenarios" / "sagemaker_rules.py"
GIB = 1 << 30


def session(
    count: int = 1200,
    *,
    cores: tuple[float, ...] = (0.5, 0.5),
    busy: tuple[float, ...] = (0.9,),
    memory: float = 0.9,
    workers: int = 2,
) -> Session:
    """`count` equal samples of a machine with one GPU per entry of `busy`."""
    gpus = tuple(GpuSample(index, busy=value, memory_used_bytes=int(memory * 16 * GIB)) for index, value in enumerate(busy))
    samples = tuple(Sample(0.5 * (n + 1), 0.5, core_busy=cores, workers=workers, gpus=gpus) for n in range(count))
    host = Host(cores_online=2, gpus=tuple(GpuProperties(index, "A100", 16 * GIB) for index in range(len(busy))))
    return Session(host=host, samples=samples, steps=(Step(1, 0, 0, 3.0, 0.01, 0.01),), duration_s=count / 2)


@pytest.fixture(scope="module", autouse=True)
def rules() -> Any:
    """The module of the benchmark."""
    spec = importlib.util.spec_from_file_location("sagemaker_rules", RULES_FILE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def apply_rules(of: Session) -> Any:
    return sys.modules["sagemaker_rules"].apply_rules(of)


def result(name: str, of: Session) -> Any:
    return next(found for found in apply_rules(of) if found.rule == name)


@pytest.mark.parametrize(
    ("rule", "fires", "silent"),
    [
        ("CPUBottleneck", session(cores=(0.99, 0.1), busy=(0.05,)), session(cores=(0.99, 0.1), busy=(0.35,))),
        ("LowGPUUtilization", session(busy=(0.6,)), session(busy=(0.9,))),
        ("BatchSize", session(busy=(0.5,), memory=0.3), session(busy=(0.5,), memory=0.8)),
        ("LoadBalancing", session(busy=(0.9, 0.1)), session(busy=(0.9, 0.9))),
        ("Dataloader", session(workers=1), session(workers=2)),
        ("MaxInitializationTime", replace(session(), steps=(Step(1, 0, 0, 1300.0, 0.1, 0.1),)), session()),
    ],
)
def test_rule_fires_above_its_threshold_only(rule: str, fires: Session, silent: Session) -> None:
    assert result(rule, fires).outcome == "fires"
    assert result(rule, silent).outcome == "silent"


def test_workers_are_counted_once_training_has_begun() -> None:
    """A script that imports for most of a short run has no workers yet."""
    late = session(1200)
    samples = tuple(replace(one, workers=0 if one.time_s < 400 else 2) for one in late.samples)
    begun = replace(late, samples=samples, steps=(Step(1, 0, 0, 400.0, 0.01, 0.01),))
    assert "100 % of 2 cores" in result("Dataloader", begun).why


def test_rules_are_silent_with_too_few_data_points() -> None:
    short = session(90, cores=(0.99, 0.99), busy=(0.0,), memory=0.1)
    for rule in ("CPUBottleneck", "LowGPUUtilization", "BatchSize"):
        found = result(rule, short)
        assert found.outcome == "silent" and "this run gave 90" in found.why


def test_memory_increase_is_silent_for_a_slow_leak() -> None:
    leaking = session()
    samples = tuple(
        replace(sample, gpus=(replace(sample.gpus[0], memory_used_bytes=int(16 * GIB * n / 1200)),))
        for n, sample in enumerate(leaking.samples)
    )
    assert result("GPUMemoryIncrease", replace(leaking, samples=samples)).outcome == "silent"


def test_step_outlier_fires_for_many_steps_far_from_the_mean() -> None:
    def steps(long: int) -> tuple[Step, ...]:
        return tuple(Step(1, 0, 0, float(n), 0.001, 2.0 if n % 100 == 50 and n < 100 * long else 0.01) for n in range(2000))

    assert result("StepOutlier", replace(session(), steps=steps(12))).outcome == "fires"
    assert result("StepOutlier", replace(session(), steps=steps(3))).outcome == "silent"
    assert "needs more than 100 steps" in result("StepOutlier", session()).why


def test_rules_that_lack_data_tell_nothing() -> None:
    assert not any(found.tells for found in apply_rules(Session()) if found.rule != "MaxInitializationTime")
    assert not result("StepOutlier", session()).tells
    for found in apply_rules(example_session()):
        assert found.tells or found.outcome != "fires"


def test_without_sources_no_rule_fires(rules: Any) -> None:
    outcomes = {found.rule: found.outcome for found in apply_rules(Session())}
    assert outcomes.keys() == {name for name, _ in rules.RULES}
    assert "fires" not in outcomes.values()


def test_no_rule_but_dataloader_fires_for_an_input_bound_job() -> None:
    assert "fires" not in {found.outcome for found in apply_rules(example_session()) if found.rule != "Dataloader"}
