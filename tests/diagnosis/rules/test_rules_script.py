"""The rule for the script's own functions beside the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from diagnosis_checks import check, fix
from headrace.diagnosis.diagnose import diagnose
from headrace.session.model import Event, Session, Step
from headrace.session.stacks import Stack, StackFrame
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
    assert diagnosis.summary == "log_metrics (train.py:12) takes 66 % of each step, after the optimizer's step"
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


def test_a_function_before_the_step_may_be_the_loss_and_is_not_to_be_called_less_often() -> None:
    loss = called(("ComputeLoss.__call__", "/job/loss.py", 61), count=60, after=False)
    model = called(("Linear.forward", "torch/nn/modules/linear.py", 9), count=90, after=False)
    diagnosis = check(with_stacks(loss, model, after_s=0.001), "SCRIPT_BOUND")
    assert diagnosis.summary.endswith("before the optimizer's step: a loss, or work beside the model")
    assert diagnosis.confidence <= 0.5
    assert not [one.id for one in diagnosis.fixes if one.id == "less_often"]


@pytest.mark.parametrize(
    ("file", "function", "after"),
    [
        ("horovod/torch/optimizer.py", "_DistributedOptimizer.synchronize", False),
        ("deepspeed/runtime/engine.py", "DeepSpeedEngine.allreduce_gradients", False),
        ("accelerate/accelerator.py", "Accelerator.clip_grad_norm_", False),
        ("timm/utils/model_ema.py", "ModelEmaV2.update", True),
        ("torch_xla/core/xla_model.py", "mark_step", True),
    ],
)
def test_what_a_library_of_training_does_beside_the_model_is_the_trainings(file: str, function: str, *, after: bool) -> None:
    stacks = called((function, file, 100), count=60, after=after), called(count=60, after=False)
    after_s = 0.04 if after else 0.001
    check(with_stacks(*stacks, after_s=after_s, after_cpu_s=after_s), "COMPUTE_BOUND")


def test_the_gain_is_that_of_the_one_function_named() -> None:
    logs = [called((f"log_{name}", "/job/train.py", line), count=20) for name, line in (("a", 10), ("b", 11), ("c", 12))]
    diagnosis = check(with_stacks(*logs, called(count=75, after=False), after_s=0.04, after_cpu_s=0.04), "SCRIPT_BOUND")
    rarer = fix(diagnosis, "less_often")
    assert rarer.change.startswith("log_a (train.py:10)")
    assert rarer.gain == pytest.approx(90 / (90 - 13.3), rel=0.03)


def every(session: Session, period: int, seconds: float, *, after: bool = True) -> Session:
    """The session with a longer step each `period` steps, after the optimizer's step or before it."""
    steps: list[Step] = []
    shift_s = 0.0
    for number, step in enumerate(session.steps):
        more_s = seconds if number % period == period - 1 else 0.0
        after_s = (step.after_s or 0.0) + (more_s if after else 0.0)
        steps.append(replace(step, compute_s=step.compute_s + more_s, after_s=after_s, start_s=step.start_s + shift_s))
        shift_s += more_s
    return replace(session, steps=tuple(steps), duration_s=(session.duration_s or 0.0) + shift_s)


def test_what_runs_in_some_steps_only_is_advised_more_rarely_than_now() -> None:
    pictures = called(("sample_images", "/job/train.py", 12), count=90)
    session = with_stacks(pictures, called(count=130, after=False), after_s=0.0, steps=420)
    diagnosis = check(every(session, 100, 5.0), "SCRIPT_BOUND")
    rarer = fix(diagnosis, "less_often")
    assert "every 1000 steps" in rarer.change
    assert rarer.command == "if step % 1000 == 0: ..."
    assert rarer.gain == pytest.approx(140 / 95, rel=0.06)


def test_what_takes_long_in_some_steps_without_a_period_has_no_figure() -> None:
    pictures = called(("sample_images", "/job/train.py", 12), count=90)
    session = with_stacks(pictures, called(count=130, after=False), after_s=0.0, steps=420)
    steps = every(session, 100, 5.0).steps
    order = [number for number in range(len(steps)) if number % 100 != 99]
    for at, number in zip((30, 101, 290, 310), (99, 199, 299, 399), strict=True):
        order.insert(at, number)
    begins = [step.start_s for step in steps]
    uneven = tuple(replace(steps[number], start_s=begin_s) for number, begin_s in zip(order, begins, strict=True))
    diagnosis = check(replace(session, steps=uneven), "SCRIPT_BOUND")
    rarer = fix(diagnosis, "less_often")
    assert (rarer.gain, rarer.command) == (None, None)
    assert rarer.change.startswith("sample_images (train.py:12) less often")


def test_an_unseen_stall_stays_beside_a_steady_function() -> None:
    stacks = called(("log", "/job/train.py", 12), count=20), called(count=90, after=False)
    session = with_stacks(*stacks, after_s=0.02, after_cpu_s=0.02, steps=200)
    diagnosis = check(every(session, 20, 0.4, after=False), "COMPUTE_BOUND")
    assert diagnosis.share_of_step["periodic"] == pytest.approx(0.18, abs=0.02)
    assert diagnosis.share_of_step["script"] == pytest.approx(0.18, abs=0.02)
    changes = [one.change for finding in diagnosis.findings for one in finding.fixes]
    assert any(change.startswith("log (train.py:12) every 50 steps") for change in changes)


def with_collections(session: Session, behind_s: float, seconds: float, called_at: str = "") -> Session:
    detail = f"generation 2{called_at and f', called at {called_at}'}"
    begins = (step.start_s + step.wait_s + behind_s for step in session.steps)
    return replace(session, events=tuple(Event(MAIN_PID, "gc", begin_s, seconds, detail) for begin_s in begins))


def test_collections_in_the_model_take_nothing_off_the_script() -> None:
    stacks = called(("render", "/job/train.py", 12), count=60), called(count=220, after=False)
    session = with_collections(with_stacks(*stacks, after_s=0.02, after_cpu_s=0.02), 0.01, 0.012)
    assert check(session, "SCRIPT_BOUND").share_of_step["script"] == pytest.approx(0.22, abs=0.01)


def test_the_call_of_gc_collect_is_offered_once_and_the_other_function_named() -> None:
    cleanup, log = (called((name, "/job/train.py", line), count=40) for name, line in (("cleanup", 13), ("log", 14)))
    session = with_stacks(cleanup, log, called(count=100, after=False), after_s=0.04, after_cpu_s=0.04)
    diagnosis = check(with_collections(session, 0.055, 0.02, "/job/train.py:13"), "GC_PAUSE")
    assert diagnosis.share_of_step["script"] == pytest.approx(0.22, abs=0.01)
    changes = [one.change for finding in diagnosis.findings for one in finding.fixes]
    assert sum("train.py:13" in change for change in changes) == 1
    assert any(change.startswith("log (train.py:14)") for change in changes)


def test_saving_that_counts_as_a_pause_is_no_part_of_the_function_that_saves() -> None:
    keep = called(("keep", "/job/train.py", 12), ("save", "torch/serialization.py", 900), count=50)
    log = called(("log", "/job/train.py", 14), count=50)
    session = every(with_stacks(keep, log, called(count=180, after=False), after_s=0.02, steps=200), 20, 0.4)
    long = [step for step in session.steps if step.compute_s > 0.3]
    saves = tuple(Event(MAIN_PID, "save", step.start_s + step.step_s - 0.4, 0.4, "last.pt") for step in long)
    diagnosis = check(replace(session, events=saves), "COMPUTE_BOUND")
    assert diagnosis.share_of_step["periodic"] == pytest.approx(0.18, abs=0.02)
    assert diagnosis.share_of_step["script"] == pytest.approx(0.18, abs=0.03)
    words = [words for one in diagnosis.findings if one.kind == "SCRIPT_BOUND" for words in one.evidence]
    assert "log (train.py:14) takes 20 ms per step" in words
    assert not [one for one in words if one.startswith("keep")]


def test_a_device_whose_use_is_unknown_may_be_what_a_function_waits_for() -> None:
    session = with_stacks(called(("update_metrics", "/job/train.py", 12)), called(count=20, after=False), after_s=0.07)
    steps = tuple(replace(step, gpu_wait_s=0.0, gpu_step_s=step.compute_s) for step in session.steps)
    diagnosis = check(replace(session, steps=steps), "COMPUTE_BOUND")
    assert any(words.startswith("the script's own functions:") for words in diagnosis.not_measured)
    apple = replace(session, facts={**session.facts, "configuration": {"device": "mps"}})
    check(apple, "COMPUTE_BOUND")


LIGHTNING = (
    ("Trainer.fit", "lightning/pytorch/trainer/trainer.py", 5),
    ("_TrainingEpochLoop.advance", "lightning/pytorch/loops/training_epoch_loop.py", 5),
    ("Optimizer.profile_hook_step.wrapper", "torch/optim/optimizer.py", 5),
    ("Adam.step", "torch/optim/adam.py", 5),
    ("Closure.__call__", "lightning/pytorch/loops/optimization/automatic.py", 5),
    ("Lit.training_step", "/job/train.py", 20),
)


@pytest.mark.parametrize("pictures", [50, 120])
def test_work_in_the_training_step_of_lightning_is_seen_inside_the_optimizers_step(pictures: int) -> None:
    forward = called(*LIGHTNING, ("Net.forward", "/job/model.py", 3), count=130 - pictures, after=False)
    drawn = called(*LIGHTNING, ("Lit.log_pictures", "/job/train.py", 33), count=pictures, after=False)
    diagnosis = check(with_stacks(forward, drawn, after_s=0.0), "SCRIPT_BOUND")
    assert diagnosis.share_of_step["script"] == pytest.approx(pictures / 130, abs=0.03)
    assert diagnosis.summary.startswith("Lit.log_pictures (train.py:33)")
    assert diagnosis.confidence <= 0.5


def test_an_optimizer_of_the_scripts_own_is_no_closure() -> None:
    own = called(*LIGHTNING[:3], ("Lion.step", "/job/lion.py", 9), ("Lion._update", "/job/lion.py", 30), after=False)
    check(with_stacks(own, called(count=20, after=False), after_s=0.0), "COMPUTE_BOUND")


def held(count: int, *, main_cpu_share: float = 0.3, **options: Any) -> Session:
    """A job of 90 ms steps beside a thread that holds the interpreter in `count` of 100 samples of them."""
    log = StackFrame("Thread.run", "threading.py", 975), StackFrame("compress_logs", "/job/logs.py", 12)
    stacks = called(count=100, after=False), Stack(MAIN_PID, "step holder", count, False, log, 0)
    return with_stacks(*stacks, after_s=0.0, main_cpu_share=main_cpu_share, **options)


def test_a_thread_that_holds_the_interpreter_in_the_step_is_named() -> None:
    diagnosis = check(held(80, cpu_s=0.001), "GIL_IN_STEP")
    assert diagnosis.summary.endswith("while the training step needs it: compress_logs (logs.py:12)")
    assert diagnosis.findings[0].share == pytest.approx(0.7, abs=0.02)
    assert diagnosis.share_of_step["script"] == pytest.approx(diagnosis.findings[0].share, abs=0.01)
    assert fix(diagnosis, "own_process").gain == pytest.approx(1 / 0.3, rel=0.05)


@pytest.mark.parametrize(
    ("count", "options"), [(30, {}), (80, {"main_cpu_share": 0.97}), (80, {"sync_s": 0.06, "sync_count": 1})]
)
def test_a_step_that_works_or_waits_for_a_device_is_held_by_no_thread(count: int, options: dict[str, Any]) -> None:
    diagnosis = diagnose(held(count, cpu_s=0.001, **options))
    assert "GIL_IN_STEP" not in [found.kind for found in diagnosis.findings]
