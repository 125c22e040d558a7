"""Temporary folders: removed at the end, and after a kill by the next process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace.system.files.scratch_folder import LEAST_AGE_S, LOCK_FILE, scratch_folder

HOLDER = """
import sys, time
from headrace.system.files.scratch_folder import scratch_folder
with scratch_folder("test") as folder:
    (folder / "data").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path


@pytest.fixture
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that uses a folder, and that folder, which looks older than it is."""
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        age(folder)
        yield process, folder
        process.kill()


def age(folder: Path) -> None:
    then = time.time() - 2 * LEAST_AGE_S
    os.utime(folder / LOCK_FILE, (then, then))


def test_the_folder_is_private_and_removed_also_after_an_error(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch_folder("test") as folder:
        assert folder.parent == temporary and folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("x")
        raise ZeroDivisionError
    assert not list(temporary.iterdir())


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(holder: tuple[subprocess.Popen[str], Path]) -> None:
    process, abandoned = holder
    with scratch_folder("test"):
        assert (abandoned / "data").exists(), "a folder in use was removed"
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    with scratch_folder("other"):
        assert abandoned.exists(), "a folder of another purpose was removed"
    with scratch_folder("test"):
        assert not abandoned.exists()


def test_folders_without_a_lock_file_young_ones_and_links_are_left_alone(temporary: Path) -> None:
    foreign, young, elsewhere = temporary / "headrace-test-foreign", temporary / "headrace-test-young", temporary / "else"
    for folder in (foreign, young, elsewhere):
        folder.mkdir()
    for folder in (young, elsewhere):
        (folder / LOCK_FILE).touch()
    os.mkfifo(foreign / LOCK_FILE)  # must neither be taken for a lock nor wait for a writer
    age(foreign)
    age(elsewhere)
    link = temporary / "headrace-test-link"
    link.symlink_to(elsewhere)
    with scratch_folder("test"):
        assert foreign.exists() and young.exists() and elsewhere.exists() and link.is_symlink()
