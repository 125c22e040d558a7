"""Settings that cost time on any device: what is said of each, and what is left unsaid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis
from headrace.session.model import Event
from headrace.session.stacks import Stack, StackFrame
from session_factory import MAIN_PID, make_session

GOOD: dict[str, Any] = {
    "steps": 128, "anomaly": False, "deterministic": False, "profiler": False, "find_unused_parameters": False,
    "without_gradient": 0, "learning_rate": 1e-5, "denormals": None,
}  # fmt: skip


def diagnosed(stacks: tuple[Stack, ...] = (), events: tuple[Event, ...] = (), **settings: Any) -> Diagnosis:
    session = make_session(cpu_s=0.004, compute_s=0.04)
    return diagnose(replace(session, stacks=stacks, events=events, facts={"slow_settings": GOOD | settings}))


def test_good_settings_give_no_finding() -> None:
    assert diagnosed().configuration == ()
    assert diagnose(make_session()).configuration == (), "settings were not reported"


@pytest.mark.parametrize(
    ("settings", "kind", "words", "fix"),
    [
        ({"anomaly": True}, "ANOMALY_MODE", "set_detect_anomaly(True) is on", "anomaly_off"),
        ({"profiler": True}, "PROFILER_ON", "after 128 steps", "profiler_off"),
        ({"deterministic": True}, "DETERMINISTIC", "use_deterministic_algorithms(True)", "deterministic_off"),
        ({"find_unused_parameters": True}, "FIND_UNUSED", "every parameter has a gradient", "find_unused_off"),
        ({"find_unused_parameters": True, "without_gradient": 2}, "FIND_UNUSED", "2 parameters have no", "find_unused_off"),
        ({"denormals": {"weights": 0.4, "slower": 28.0}}, "DENORMALS", "40 % of the weights are denormal", "flush_denormal"),
        ({"learning_rate": 1e-12}, "NO_LEARNING", "learning rate is 1e-12 after 128 steps", None),
    ],
)
def test_each_setting_is_named_with_its_fix(settings: dict[str, Any], kind: str, words: str, fix: str | None) -> None:
    found = diagnosed(**settings).configuration
    assert [one.kind for one in found] == [kind]
    assert words in found[0].evidence[0]
    assert [one.id for one in found[0].fixes] == ([fix] if fix else [])


@pytest.mark.parametrize(("slower", "kinds"), [(28.0, ["SLOW_FORMAT"]), (0.6, []), (None, [])])
def test_a_format_that_the_processor_computes_slowly_is_named(slower: float | None, kinds: list[str]) -> None:
    facts = {"slow_settings": GOOD, "configuration": {"device": "cpu", "autocast": "float16", "autocast_slower": slower}}
    found = diagnose(replace(make_session(cpu_s=0.004, compute_s=0.04), facts=facts)).configuration
    assert [one.kind for one in found] == kinds
    assert not kinds or "computes in float16 on the CPU: a product of matrices takes 28 times as long" in found[0].evidence[0]


def test_a_warm_up_and_a_profile_of_the_first_steps_are_meant() -> None:
    assert diagnosed(steps=5, profiler=True, learning_rate=0.0).configuration == ()


def test_denormals_are_no_finding_where_the_processor_takes_them_like_others() -> None:
    assert diagnosed(denormals={"weights": 0.9, "slower": 1.1}).configuration == ()


def test_stacks_that_are_written_down_are_the_cost_of_anomaly_detection() -> None:
    frames = (StackFrame("main", "/job/train.py", 9), StackFrame("format_stack", "traceback.py", 30))
    stacks = (Stack(MAIN_PID, "step", 60, False, frames, 0), Stack(MAIN_PID, "step", 40, False, frames[:1], 0))
    found = diagnosed(stacks, anomaly=True).configuration[0]
    assert found.share == pytest.approx(0.59, abs=0.03)
    assert found.fixes[0].gain == pytest.approx(1 / 0.41, rel=0.1)


def test_compilations_for_new_shapes_are_named_with_the_shapes() -> None:
    reason = "0/1: tensor 'x' size mismatch at index 0. expected 32, actual {}"
    events = tuple(Event(MAIN_PID, "compile", 3.0 + 0.4 * n, 0.2, reason.format(10 + n)) for n in range(4))
    found = diagnosed(events=events).configuration[0]
    assert found.kind == "RECOMPILATION"
    assert "in 4 later steps" in found.evidence[0]
    assert "dimension 0 of x had sizes 10, 11, 12, 13, 32" in found.evidence[0]
    assert found.share is not None and found.fixes[0].command == "torch.compile(model, dynamic=True)"
    assert diagnosed(events=events[:2]).configuration == (), "a last, smaller batch"
