"""Reading a job's own files with ever more readers: what is measured, when, and what it does to predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.profiling import read_sweep
from headrace.session.model import Session
from session_factory import make_session


def with_files(folder: Path, *, disk_bytes: int) -> Session:
    paths = []
    for number in range(20):
        file = folder / f"{number}.jpg"
        file.write_bytes(bytes(20_000))
        paths.append(str(file))
    session = make_session(workers=2, cpu_s=0.001, blocked_s=0.06, compute_s=0.01, disk_bytes=disk_bytes)
    return replace(session, loaders=(replace(session.loaders[0], sample_paths=tuple(paths)),))


def test_cold_jobs_are_swept_and_warm_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_sweep, "SECONDS", 0.05)
    cold = read_sweep.with_read_sweep(with_files(tmp_path, disk_bytes=3_500_000), tmp_path)
    assert list(cold.facts["read_sweep"]) == ["1", "2", "4", "8", "16"]
    assert all(rate > 0 for rate in cold.facts["read_sweep"].values())
    assert Session.load(tmp_path).facts["read_sweep"] == cold.facts["read_sweep"]
    assert "read_sweep" not in read_sweep.with_read_sweep(with_files(tmp_path, disk_bytes=0), tmp_path).facts


def test_files_that_are_gone_give_nothing(tmp_path: Path) -> None:
    assert read_sweep.sweep([str(tmp_path / "gone")] * 20) == {}


def test_more_workers_are_not_predicted_beyond_what_storage_gave(tmp_path: Path) -> None:
    session = with_files(tmp_path, disk_bytes=3_500_000)
    free = next(fix for fix in diagnose(session).fixes if fix.id.startswith("num_workers"))
    limited = replace(session, facts={"read_sweep": {"1": 60e6, "2": 115e6, "4": 175e6, "8": 175e6, "16": 170e6}})
    bound = next(fix for fix in diagnose(limited).fixes if fix.id.startswith("num_workers"))
    assert free.predicted_img_s is not None
    assert bound.predicted_img_s is not None
    assert bound.predicted_img_s == pytest.approx(32 * 175e6 / 3.5e6, rel=0.05), "20 ms a batch, whoever asks"
    evidence = " ".join(words for found in diagnose(limited).findings for words in found.evidence)
    assert "60 MB/s to one reader, at most at 175 MB/s, to 4" in evidence
    assert bound.predicted_img_s < 0.75 * free.predicted_img_s
