"""More GPUs: whether they would wait for input as the present one does, with the number."""

from __future__ import annotations

from typing import Any

import pytest
from headrace.cli.main import main
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.gpu_gate import gpu_gate
from headrace.report.text import terminal
from session_factory import make_session


def notes(**make: Any) -> tuple[str, ...]:
    return tuple(note.text for note in diagnose(make_session(**make)).notes if note.kind == "more_gpus")


def test_a_gpu_that_waits_for_input_has_no_use_for_another() -> None:
    found = diagnose(make_session(workers=2, cpu_s=0.09, compute_s=0.01, cores=3, gpu_busy=0.2))
    note = next(note.text for note in found.notes if note.kind == "more_gpus")
    assert "the GPU waits for input 7" in note and "2 would reach" in note and "the CPU cores would set the pace" in note
    assert found.gpu_scaling is not None and found.gpu_scaling < 0.8
    assert "do not add GPUs yet" in terminal.render(found, width=80).plain.replace("Do not", "do not")


def test_a_busy_gpu_with_cores_to_spare_may_get_another() -> None:
    plenty = {"workers": 4, "cpu_s": 0.02, "compute_s": 0.05, "cores": 16, "gpu_busy": 0.95}
    assert notes(**plenty) == ()
    # It keeps up alone: four cores of which one GPU takes more than three.
    few = notes(**(plenty | {"cores": 4, "cpu_s": 0.17}))
    assert few and "waits" not in few[0] and "2 would reach" in few[0]
    assert notes(**(plenty | {"gpu_busy": None, "cpu_s": 0.3})) == (), "a job without a GPU"


def test_the_rule_in_numbers() -> None:
    assert gpu_gate(0.8, gpus=2, wait_share=0.2) is None
    assert gpu_gate(None, gpus=2) is None
    words = gpu_gate(0.55, gpus=8, now=4, limit="storage", wait_share=0.31)
    assert words == (
        "do not add GPUs yet: the GPUs wait for input 31 % of the time, and 8 would reach 1.1 times the rate of 4, 55 % each; "
        "storage would set the pace"
    )


def test_an_estimate_of_cost_says_it_of_its_choice(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path))
    words = ["cost", "--model", "resnet50", "--images", "1281167", "--loader", "pytorch", "--instance"]
    assert main([*words, "p3.16xlarge"]) == 0
    said = capsys.readouterr().out
    assert "Do not add GPUs yet: 8 would reach" in said and "the cpu would set the pace" in said
    assert main([*words, "p3.2xlarge"]) == 0
    assert "add GPUs" not in capsys.readouterr().out
