"""The read sweep: when it runs, what it records, and how it limits predictions."""

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


def test_only_a_job_that_read_from_a_disk_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_sweep, "SECONDS", 0.05)
    swept = read_sweep.with_read_sweep(with_files(tmp_path, disk_bytes=3_500_000), tmp_path)
    assert list(swept.facts["read_sweep"]) == ["1", "2", "4", "8", "16"]
    assert all(rate > 0 for rate in swept.facts["read_sweep"].values())
    assert Session.load(tmp_path).facts["read_sweep"] == swept.facts["read_sweep"]
    assert "read_sweep" not in read_sweep.with_read_sweep(with_files(tmp_path, disk_bytes=0), tmp_path).facts


def test_files_that_cannot_be_read_give_no_rates(tmp_path: Path) -> None:
    assert read_sweep.sweep([str(tmp_path / "gone")] * 20) == {}


def test_more_workers_are_not_predicted_beyond_the_rate_of_storage(tmp_path: Path) -> None:
    session = with_files(tmp_path, disk_bytes=3_500_000)
    free = next(fix for fix in diagnose(session).fixes if fix.id.startswith("num_workers"))
    limited = replace(session, facts={"read_sweep": {"1": 60e6, "2": 115e6, "4": 175e6, "8": 175e6, "16": 170e6}})
    bound = next(fix for fix in diagnose(limited).fixes if fix.id.startswith("num_workers"))
    assert free.predicted_img_s is not None
    assert bound.predicted_img_s is not None
    assert bound.predicted_img_s == pytest.approx(32 * 175e6 / 3.5e6, rel=0.05), (
        "20 ms for a batch, whatever the number of workers"
    )
    evidence = " ".join(sentence for found in diagnose(limited).findings for sentence in found.evidence)
    assert "one reader gets 60 MB/s" in evidence and "4 readers get the most, 175 MB/s" in evidence
    assert bound.predicted_img_s < 0.75 * free.predicted_img_s
