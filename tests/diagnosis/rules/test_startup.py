"""The parts of a job's start, from made-up sessions and from a real script."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.profiling.command import watch
from headrace.session.model import Event, Session
from headrace.session.standstill import StandingProcess, Standstill, StandstillSample
from session_factory import MAIN_PID, make_session

SCRIPT = """
import http.server, threading, time, urllib.request
import slow_to_import
import torch
from torch.utils.data import DataLoader, TensorDataset

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "3000000"); self.end_headers()
        for _ in range(3): time.sleep(0.1); self.wfile.write(bytes(1000000))
    def log_message(self, *_): pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
assert len(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read()) == 3000000
for batch, in DataLoader(TensorDataset(torch.zeros(80, 4)), batch_size=4):
    time.sleep(0.002)
assert "headrace" not in type(slow_to_import.__loader__).__module__
"""


def slow_start(*events: tuple[str, float, float], exit_code: int | None = 0, first_batch_s: float = 40.0) -> Session:
    """A job whose first batch comes late. `events`: name, start and duration in seconds of each."""
    session = make_session(cpu_s=0.004, compute_s=0.03, steps=300)
    late = tuple(replace(step, start_s=step.start_s + first_batch_s) for step in session.steps)
    return replace(
        session,
        steps=late,
        batches=tuple(replace(batch, start_s=batch.start_s + first_batch_s) for batch in session.batches),
        samples=tuple(replace(sample, time_s=sample.time_s + first_batch_s) for sample in session.samples),
        events=tuple(Event(MAIN_PID, *event, detail="torch 9.0 s" if event[0] == "imports" else None) for event in events),
        duration_s=late[-1].start_s + 1.0,
        exit_code=exit_code,
    )


def test_long_start_is_the_verdict_and_is_split_into_parts() -> None:
    diagnosis = diagnose(slow_start(("imports", 1.0, 10.0), ("download", 12.0, 20.0), ("compile", 42.1, 6.0)))
    assert diagnosis.verdict == "STARTUP"
    assert diagnosis.startup_s["imports"] == 10.0
    assert diagnosis.startup_s["download"] == 20.0
    assert all(seconds > 0 for seconds in diagnosis.startup_s.values())
    assert diagnosis.primary is not None
    evidence = " ".join(diagnosis.primary.evidence)
    assert "20.00 s downloading" in evidence
    assert "torch 9.0 s" in evidence
    assert [fix.id for fix in diagnosis.primary.fixes] == ["cache"]
    assert diagnosis.primary.fixes[0].predicted_img_s is None


def test_a_long_set_up_names_the_line_where_the_script_was_seen() -> None:
    session = slow_start(("imports", 1.0, 10.0), first_batch_s=100.0)
    main, scan = ("main", "/work/project/train.py", 30), ("Photos.__init__", "/work/project/photos.py", 12)
    frames = (main, scan), (main, scan, ("open", "PIL/Image.py", 3600)), (main,)
    samples = tuple(
        StandstillSample(60.0 + 2 * number, (StandingProcess(MAIN_PID, phase="nothing", frames=one),))
        for number, one in enumerate(frames)
    )
    found = diagnose(replace(session, standstills=(Standstill(1.0, samples, over=True),)))
    assert found.verdict == "STARTUP" and found.primary is not None
    words = "before the first batch, 2 of 3 stacks of the script were at photos.py:12 in Photos.__init__"
    assert words in found.primary.evidence


def test_start_of_an_unfinished_run_has_no_share() -> None:
    cut = diagnose(slow_start(("imports", 1.0, 10.0), exit_code=-15))
    assert cut.verdict == "COMPUTE_BOUND"
    assert not any(found.kind == "STARTUP" for found in cut.findings), "40 s are no long start"
    long = diagnose(slow_start(("imports", 1.0, 10.0), exit_code=-15, first_batch_s=90.0))
    assert long.verdict == "COMPUTE_BOUND"
    assert next(found.share for found in long.findings if found.kind == "STARTUP") is None


def test_recompilation_during_the_run_is_named_as_a_pause() -> None:
    session = make_session(cpu_s=0.005, compute_s=0.02, steps=120)
    again = [step for number, step in enumerate(session.steps) if number % 40 == 39]
    steps = tuple(replace(step, compute_s=step.compute_s + 2.0) if step in again else step for step in session.steps)
    events = tuple(Event(MAIN_PID, "compile", step.start_s + step.wait_s, 2.0) for step in again)
    found = diagnose(replace(session, steps=steps, events=events)).findings[0]
    assert found.kind == "PERIODIC_STALL"
    assert any("torch.compile" in words for words in found.evidence)


def test_imports_and_downloads_of_a_real_script_are_timed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\n")
    assert watch([sys.executable, str(tmp_path / "train.py")], tmp_path / "s").returncode == 0
    assert "headrace" not in capfd.readouterr().err
    diagnosis = diagnose(Session.load(tmp_path / "s"))
    assert 0.25 < diagnosis.startup_s["download"] < 60
    assert diagnosis.startup_s["imports"] > 0.5
    names = [event.detail or "" for event in Session.load(tmp_path / "s").events if event.name == "imports"]
    assert "torch " in names[0]
    assert "slow_to_import 0." in names[0]
