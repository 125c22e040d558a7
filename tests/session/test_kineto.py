"""Traces of PyTorch's profiler: made-up ones of a job on a GPU, and a real one of a job on the CPU."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import SessionError
from headrace.report.sessions.session_folder import read_session_folder
from headrace.session.kineto import NEXT, read_trace
from traced_memory import at_most


def event(name: str, begin_ms: float, length_ms: float, category: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": 7, "ts": 5e6 + begin_ms * 1e3, "dur": length_ms * 1e3}


def trace(folder: Path, *, wait_ms: float, kernel_ms: float, step_ms: float = 100.0, **more: Any) -> Path:
    """Write a trace of four steps: `next()`, then two kernels. `each`: more events per step (name, begin, length, category)."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}}]
    for number in range(4):
        begin = number * step_ms
        events.append(event(f"ProfilerStep#{number + 3}", begin, step_ms, "user_annotation"))
        events.append(event(f"ProfilerStep#{number + 3}", begin, step_ms, "gpu_user_annotation"))
        events.append(event("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin, wait_ms, "user_annotation"))
        events.append(event("sgemm", begin + wait_ms, kernel_ms / 2, "kernel"))
        events.append(event("cudnn_conv", begin + wait_ms + kernel_ms / 2, kernel_ms / 2, "kernel"))
        events += [event(name, begin + at, length, kind) for name, at, length, kind in more.get("each", ())]
    card = {"name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42_000_000_000}
    document = {"deviceProperties": [card], "distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": events}
    file = folder / "trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps(document).encode()))
    return file


def diagnosed(file: Path) -> Diagnosis:
    diagnosis = diagnose(read_trace(file))
    assert sum(diagnosis.share_of_step.values()) == pytest.approx(1)
    assert diagnosis.img_s is None, "a trace does not say how many images a step has"
    return diagnosis


def test_wait_that_idles_the_gpu_is_input(tmp_path: Path) -> None:
    diagnosis = diagnosed(trace(tmp_path, wait_ms=60, kernel_ms=40))
    assert diagnosis.verdict == "CPU_PREP"
    assert diagnosis.wait_share == pytest.approx(0.6)
    assert diagnosis.confidence < 0.6
    assert diagnosis.primary is not None
    assert any("a trace does not show" in words for words in diagnosis.primary.evidence)
    assert any("workers, storage" in words for words in diagnosis.not_measured)


def test_wait_while_the_gpu_works_is_not_input(tmp_path: Path) -> None:
    queued = trace(tmp_path, wait_ms=60, kernel_ms=40, each=[("queued", 0.0, 60.0, "kernel")])
    assert diagnosed(queued).verdict == "COMPUTE_BOUND"


def test_copies_and_waits_in_a_trace_give_their_verdicts(tmp_path: Path) -> None:
    copies = diagnosed(
        trace(tmp_path, wait_ms=2, kernel_ms=60, each=[("Memcpy HtoD (Pageable -> Device)", 65, 30, "gpu_memcpy")])
    )
    assert copies.verdict == "H2D_BOUND"
    assert copies.share_of_step["h2d"] == pytest.approx(0.3)
    waits = [("cudaStreamSynchronize", at, 8, "cuda_runtime") for at in (10, 20, 30, 40, 50)]
    assert diagnosed(trace(tmp_path, wait_ms=1, kernel_ms=50, each=waits)).verdict == "SYNC_BOUND"


def test_trace_gives_rank_gpu_and_steps(tmp_path: Path) -> None:
    session, _ = read_session_folder(trace(tmp_path, wait_ms=1, kernel_ms=90))
    assert (session.processes[0].rank, session.processes[0].world_size) == (1, 2)
    assert session.host.gpus[0].name == "NVIDIA A100-SXM4-40GB"
    assert len(session.steps) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "is not a trace"),
        ("[1, 2]", "no traceEvents"),
        ('{"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}, 3, null]}', "0 marked steps"),
        ('{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "ts": "x"}]}', "0 marked steps"),
    ],
)
def test_file_that_is_no_trace_raises_session_error(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(SessionError, match=words):
        read_trace(file)


STEPS = [event(f"ProfilerStep#{number}", 10.0 * number, 10.0) for number in range(3)]


@pytest.mark.parametrize(
    "change",
    [
        {"distributedInfo": [1]},
        {"distributedInfo": {"rank": "x"}},
        {"distributedInfo": {"rank": 1e400}},
        {"traceEvents": [*STEPS, {**STEPS[0], "name": NEXT, "dur": "long"}]},
        {"traceEvents": [*STEPS, {**STEPS[0], "name": NEXT, "dur": [1]}]},
        {"traceEvents": [{**step, "ts": 10**400} for step in STEPS]},
    ],
)
def test_wrong_values_in_a_trace_are_errors_in_words(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": STEPS} | change))
    with pytest.raises(SessionError):
        read_trace(file)


def test_a_trace_that_is_damaged_or_grows_without_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.json.gz"
    whole = gzip.compress(json.dumps({"traceEvents": STEPS}).encode())
    for damaged in (whole[:-9], whole[:10] + b"\xff" * 9 + whole[19:], gzip.compress(b"[" * 100_000)):
        file.write_bytes(damaged)
        assert main(["report", str(file)]) == 1
        assert "is not a trace" in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", "1MiB")
    file.write_bytes(gzip.compress(bytes(100 << 20)))
    with at_most(8 << 20), pytest.raises(SessionError, match="more than the limit of"):
        read_trace(file)


def test_a_step_looks_at_its_own_spans_only(tmp_path: Path) -> None:
    """Each step looked at all waits of the trace: those of three megabytes took a quarter of a minute."""
    spans = [
        {"ph": "X", "name": name.format(number), "ts": 100 * number, "dur": 90}
        for name in ("ProfilerStep#{}", "cudaStreamSynchronize")
        for number in range(15_000)
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": spans}))
    began_s = time.process_time()
    assert len(read_trace(tmp_path / "trace.json").steps) == 15_000
    assert time.process_time() - began_s < 4


@pytest.mark.parametrize("piece", [b"[],", b'{"a":1},', b'"ab",', b"1,"])
def test_a_small_packed_trace_takes_no_memory_for_its_values(
    piece: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of these, unpacked to the limit of a gigabyte, took 24 GB when it was parsed."""
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", "1MiB")
    file = tmp_path / "t.json.gz"
    file.write_bytes(gzip.compress(b'{"traceEvents":[' + piece * 120_000 + b"0]}"))
    with at_most(5 << 20), pytest.raises(SessionError, match="values, more than the limit of 65,536"):
        read_trace(file)


REAL = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
from torch.profiler import profile, schedule, ProfilerActivity
torch.set_num_threads(1)
model = torch.nn.Linear(16, 2)
def slowly(samples):
    time.sleep(0.02)
    return torch.utils.data.default_collate(samples)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=6, repeat=1)) as profiler:
    for batch, in DataLoader(TensorDataset(torch.zeros(40, 16)), batch_size=4, collate_fn=slowly):
        model(batch).sum().backward()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.slow
def test_trace_of_a_real_profiler_is_diagnosed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "real.json"
    subprocess.run([sys.executable, "-c", REAL, str(file)], check=True, capture_output=True, timeout=100)
    diagnosis = diagnosed(file)
    assert diagnosis.verdict == "NO_OVERLAP"
    assert diagnosis.steps >= 5
    assert (diagnosis.wait_share or 0) > 0.5
