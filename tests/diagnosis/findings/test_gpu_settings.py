"""Findings about settings, from made-up sessions of a job on a GPU; and how a real process reports its settings."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.kinds import SETTINGS
from headrace.diagnosis.result.model import Diagnosis, Finding
from headrace.profiling.command import watch
from headrace.report.pages import html
from headrace.session.model import Session
from session_factory import make_session

GOOD: dict[str, Any] = {
    "device": "cuda", "parameter_format": "float32", "autocast": "bfloat16", "compiled": False, "convolutions": 53,
    "channels_last": 53, "data_parallel": None, "capability": [8, 0], "architectures": ["sm_70", "sm_80", "sm_90"],
    "cuda": "12.4", "cudnn": 90100, "matmul_precision": "highest",
}  # fmt: skip


def diagnosed(*, pinned: bool = True, used_bytes: int = 30 << 30, driver_cuda: str = "12.4", **facts: Any) -> Diagnosis:
    session = make_session(cpu_s=0.004, compute_s=0.04, gpu_busy=0.97)
    steps = tuple(replace(step, h2d_s=0.004, gpu_step_s=0.038, gpu_wait_s=0.0) for step in session.steps)
    gpus = tuple(replace(gpu, cuda=driver_cuda) for gpu in session.host.gpus)
    samples = tuple(
        replace(sample, gpus=tuple(replace(gpu, memory_used_bytes=used_bytes) for gpu in sample.gpus))
        for sample in session.samples
    )
    loaders = tuple(replace(loader, pin_memory=pinned) for loader in session.loaders)
    host = replace(session.host, gpus=gpus)
    whole = replace(session, steps=steps, samples=samples, loaders=loaders, host=host, facts={"configuration": GOOD | facts})
    return diagnose(whole)


def found(diagnosis: Diagnosis, kind: str) -> Finding:
    assert [one.kind for one in diagnosis.configuration] == [kind]
    assert kind in SETTINGS
    assert diagnosis.verdict == "COMPUTE_BOUND", "a setting is no verdict"
    return diagnosis.configuration[0]


def test_good_settings_give_no_finding_and_no_fix_that_is_already_used() -> None:
    diagnosis = diagnosed()
    assert diagnosis.configuration == ()
    assert not {"amp", "channels_last"} & {fix.id for fix in diagnosis.fixes}
    assert diagnose(make_session()).configuration == (), "settings were not reported"


def test_float32_on_tensor_cores_is_reported_with_amp() -> None:
    fp32 = diagnosed(autocast=None)
    finding = found(fp32, "FP32_ON_TENSOR_CORES")
    assert "matrix products not" in finding.evidence[0]
    assert [fix.id for fix in finding.fixes] == ["amp"]
    assert finding.fixes[0].predicted_img_s is None
    assert (finding.fixes[0].basis or "").startswith("not predicted")
    assert diagnosed(autocast=None, compiled=True).configuration == (), "a compiled region may enter autocast unseen"
    assert diagnosed(autocast=None, capability=[6, 1], architectures=["sm_61"]).configuration == ()
    assert diagnosed(autocast=None, parameter_format="bfloat16").configuration == ()


def test_channels_first_is_reported_with_channels_last() -> None:
    assert [fix.id for fix in found(diagnosed(channels_last=0), "CHANNELS_FIRST").fixes] == ["channels_last"]
    assert diagnosed(channels_last=0, convolutions=0).configuration == ()


def test_unpinned_batches_are_reported_with_a_prediction() -> None:
    fix = found(diagnosed(pinned=False), "NOT_PINNED").fixes[0]
    assert fix.id == "pin_memory"
    assert fix.predicted_img_s is not None
    assert fix.interval is not None


def test_data_parallel_is_reported_with_torchrun() -> None:
    fix = found(diagnosed(data_parallel=4), "DATA_PARALLEL").fixes[0]
    assert fix.id == "more_gpus"
    assert fix.command == "torchrun --nproc-per-node 4 train.py"


def test_small_batch_is_reported_when_gpu_memory_is_free() -> None:
    finding = found(diagnosed(used_bytes=4 << 30), "SMALL_BATCH")
    assert "90 %" in finding.evidence[0]
    assert finding.fixes[0].id == "batch_size=128"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"capability": [9, 0], "cudnn": 8700}, "cuDNN 8.7 has no kernels"),
        ({"capability": [10, 0], "cudnn": 90700}, "none for sm_100"),
        ({"capability": [8, 6], "cudnn": 8902}, None),  # sm_80's code runs on 8.6
    ],
)
def test_old_software_is_reported_for_a_newer_gpu(facts: dict[str, Any], words: str | None) -> None:
    if words is None:
        assert diagnosed(**facts).configuration == ()
    else:
        assert words in found(diagnosed(**facts), "OLD_SOFTWARE").evidence[0]


def test_driver_older_than_the_cuda_of_torch_is_reported() -> None:
    assert "built for CUDA 12.4, the driver offers 12.2" in found(diagnosed(driver_cuda="12.2"), "DRIVER_MISMATCH").evidence[0]


def test_report_shows_findings_about_settings(tmp_path: Path) -> None:
    diagnosis = diagnosed(autocast=None)
    html.write(diagnosis, tmp_path / "r.html", session=Session())
    assert "torch.autocast" in (tmp_path / "r.html").read_text()


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
before = torch.amp.autocast_mode.autocast.__enter__, torch.nn.DataParallel.forward
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
model = model.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, in DataLoader(TensorDataset(torch.randn(40, 3, 8, 8)), batch_size=4):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(images).sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
after = torch.amp.autocast_mode.autocast.__enter__, torch.nn.DataParallel.forward
assert "headrace" in before[0].__module__ and "headrace" not in after[0].__module__
assert "headrace" in before[1].__module__ and "headrace" not in after[1].__module__
"""


@pytest.mark.slow
def test_settings_of_a_real_job_are_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    assert watch([sys.executable, str(tmp_path / "train.py")], tmp_path / "s").returncode == 0
    assert "headrace" not in capfd.readouterr().err
    facts = Session.load(tmp_path / "s").facts["configuration"]
    assert facts["device"] == "cpu"
    assert facts["parameter_format"] == "float32"
    assert facts["autocast"] == "bfloat16"
    assert (facts["convolutions"], facts["channels_last"]) == (1, 1)
