"""The rule for the script's own functions beside the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from diagnosis_checks import check, fix
from headrace.session.model import Session, Stack, StackFrame
from session_factory import MAIN_PID, make_session

LOOP = StackFrame("main", "/job/train.py", 30)
STEP = StackFrame("SGD.step", "torch/optim/sgd.py", 80)
FORWARD = StackFrame("Linear.forward", "torch/nn/modules/linear.py", 120)


def called(*frames: tuple[str, str, int], count: int = 100, after: bool = True) -> Stack:
    stack = (LOOP, *(StackFrame(*frame) for frame in frames))
    return Stack(MAIN_PID, "step", count, False, stack, 0, after)


def with_stacks(*stacks: Stack, after_s: float | None, after_cpu_s: float = 0.0, **options: Any) -> Session:
    """A job of 90 ms steps; after_s of them pass after the optimizer's step."""
    session = make_session(**{"compute_s": 0.09, "cpu_s": 0.004, "workers": 1, **options})
    steps = tuple(replace(step, after_s=after_s, after_cpu_s=after_cpu_s) for step in session.steps)
    path = [["main", "/job/train.py", 28], ["SGD.step", "torch/optim/sgd.py", 80]]
    return replace(session, steps=steps, stacks=stacks, cwd="/job", facts={"training_path": path})


def test_a_function_after_the_step_is_the_scripts_and_a_wait_in_the_loop_the_models() -> None:
    tracker = called(("log_metrics", "/job/train.py", 12), ("post", "/job/train.py", 7))
    loop = Stack(MAIN_PID, "step", 40, False, (LOOP,), 0)
    diagnosis = check(with_stacks(tracker, loop, after_s=0.06), "SCRIPT_BOUND")
    assert diagnosis.share_of_step["script"] == pytest.approx(0.66, abs=0.03)
    assert diagnosis.share_of_step["compute"] == pytest.approx(0.33, abs=0.03)
    assert diagnosis.summary == "log_metrics (train.py:12) takes 66 % of each step; it is no part of the model's work"
    rarer = fix(diagnosis, "less_often")
    assert rarer.gain == pytest.approx(90 / 31, rel=0.1)
    assert "log_metrics (train.py:12)" in rarer.change


def test_waits_in_the_loop_after_the_step_stand_for_a_device_and_work_there_is_the_scripts() -> None:
    loop = called(count=60)
    before = called(count=60, after=False)
    check(with_stacks(loop, before, after_s=0.06), "COMPUTE_BOUND")
    diagnosis = check(with_stacks(loop, before, after_s=0.06, after_cpu_s=0.058), "SCRIPT_BOUND")
    assert "line 30 after the optimizer's step (train.py:30)" in diagnosis.summary


def test_forward_backward_and_step_are_the_models_whatever_function_calls_them() -> None:
    forward = called(("train_step", "/job/train.py", 12), ("Linear.forward", "torch/nn/modules/linear.py", 9), after=False)
    loss = called(("train_step", "/job/train.py", 13), after=False)
    own = called(("Net.forward", "/job/net.py", 13), ("attention", "/job/net.py", 40), after=False)
    check(with_stacks(forward, loss, own, after_s=0.0), "COMPUTE_BOUND")


def test_validation_in_the_loop_and_calls_of_libraries_are_the_scripts() -> None:
    decorated = ("no_grad", "torch/utils/_contextlib.py", 154), ("validate", "/job/train.py", 12)
    validate = called(*decorated, ("Linear.forward", "torch/nn/modules/linear.py", 9), count=50)
    tracker = called(("Run.log", "wandb/sdk/run.py", 900), ("Connection.send", "multiprocessing/connection.py", 9), count=50)
    diagnosis = check(with_stacks(validate, tracker, called(count=50, after=False), after_s=0.06), "SCRIPT_BOUND")
    evidence = " ".join(diagnosis.findings[0].evidence)
    assert "validate (train.py:12) takes" in evidence
    assert "Run.log (train.py:30) takes" in evidence


def test_few_samples_prove_work_after_the_step_only() -> None:
    diagnosis = check(with_stacks(after_s=0.06, after_cpu_s=0.055), "SCRIPT_BOUND")
    assert any("from the end of the optimizer's step to the next batch" in words for words in diagnosis.findings[0].evidence)
    check(with_stacks(after_s=0.06), "COMPUTE_BOUND")
    check(with_stacks(called(("log", "/job/a.py", 1)), after_s=None), "COMPUTE_BOUND")


def test_what_runs_beside_a_busy_gpu_costs_no_step() -> None:
    stacks = called(("log_metrics", "/job/train.py", 12)), called(count=40, after=False)
    session = with_stacks(*stacks, after_s=0.06, gpu_busy=0.97)
    steps = tuple(replace(step, gpu_wait_s=0.0, gpu_step_s=step.compute_s) for step in session.steps)
    check(replace(session, steps=steps), "COMPUTE_BOUND")


def test_a_smaller_part_of_the_script_is_named_in_a_note() -> None:
    session = with_stacks(called(("log", "/job/train.py", 12)), called(count=40, after=False), after_s=0.03, cpu_s=0.2)
    diagnosis = check(session, "CPU_PREP")
    assert any(note.text.startswith("log (train.py:12) takes 15 % of each step") for note in diagnosis.notes)
