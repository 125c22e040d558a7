"""Recorded settings of the training process: variables that change its speed, without secrets, and versions of libraries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from headrace.attach.machine.environment import library_versions, speed_variables
from headrace.profiling.command import watch
from headrace.session.model import Session

SCRIPT = """
import torch
from torch.utils.data import DataLoader
for batch in DataLoader(torch.zeros(8, 3), batch_size=2): pass
"""


def test_variables_that_change_the_speed_are_recorded_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("NVIDIA_API_KEY", "nv-secret-1234567890")
    monkeypatch.setenv("TORCH_HOME", "https://me:hunter2@host/cache")
    monkeypatch.setenv("MY_PRIVATE_NOTES", "nothing of headrace")
    monkeypatch.setenv("OMP_LONG", "x" * 5000)
    found = speed_variables()
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert found["NVIDIA_API_KEY"] == "***"
    assert "hunter2" not in found["TORCH_HOME"]
    assert "MY_PRIVATE_NOTES" not in found
    assert len(found["OMP_LONG"]) <= 200


def test_only_imported_libraries_have_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        @property
        def __version__(self) -> str:
            raise RuntimeError("no version")

    monkeypatch.setitem(sys.modules, "timm", Odd())  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    found = library_versions()
    assert "cv2" not in found and "timm" not in found


@pytest.mark.slow
def test_a_watched_process_records_both(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    watch([sys.executable, str(file)], tmp_path / "session", env={"KMP_BLOCKTIME": "0", "HF_TOKEN": "hf_abcdefghijklmnopqrst"})
    session = Session.load(tmp_path / "session")
    (process,) = [process for process in session.processes if process.role == "main"]
    assert process.environment["KMP_BLOCKTIME"] == "0"
    assert process.versions["torch"] == torch.__version__
    assert not any("hf_abc" in path.read_text() for path in (tmp_path / "session").glob("*.jsonl"))
