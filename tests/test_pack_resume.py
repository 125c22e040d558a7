"""A pack that is stopped anywhere, and continued, gives the same bytes as one that nobody disturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headrace.errors import HeadraceError, UsageError
from headrace.packing import pack
from headrace.packing.work import WORK
from sample_images import jpeg
from test_pack import tree


class Crash(BaseException):
    """Not an Exception, so that nothing handles it: as if the process had ended there."""


class Fuse:
    """Counts the steps that change the disk, and ends the pack at a chosen one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1  # never
        self.steps = 0
        monkeypatch.setattr(os, "fsync", self._before(lambda _: None))  # the real one takes long and tests nothing here
        monkeypatch.setattr(Path, "replace", self._before(Path.replace))
        monkeypatch.setattr(Path, "mkdir", self._before(Path.mkdir))

    def _before(self, step: Callable[..., object]) -> Callable[..., object]:
        def burning(*args: object, **named: object) -> object:
            self.steps += 1
            if self.left == 0:
                raise Crash
            self.left -= 1
            return step(*args, **named)

        return burning


def test_a_crash_at_every_step_on_disk(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = image_folder(classes=2, per_class=4)
    (source / "class_0" / "bad.jpg").write_text("no image")
    fuse = Fuse(monkeypatch)
    pack(source, tmp_path / "undisturbed", shard_size=65536, workers=1, sync=True)
    expected, steps = tree(tmp_path / "undisturbed"), fuse.steps
    assert "errors.jsonl" in expected and steps > 20
    for step in range(steps):
        out = tmp_path / f"crash{step}"
        fuse.left = step
        with pytest.raises(Crash):
            pack(source, out, shard_size=65536, workers=1, sync=True)
        fuse.left = -1
        pack(source, out, shard_size=65536, workers=1)
        assert tree(out) == expected, f"stopped before step {step} of {steps}"


def command(source: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "headrace", "pack", str(source), str(out), "--shard-size", "200KB", "--workers", "2"]


def kill_until_done(source: Path, out: Path, delays_s: Iterator[float]) -> int:
    """Starts the pack again and again, killing it after each delay; returns how many kills met a running pack."""
    kills = 0
    for delay_s in delays_s:
        process = subprocess.Popen(command(source, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline_s = time.monotonic() + 60
            while not (out / WORK).exists() and process.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.002)  # the start of Python is not what is tested
            time.sleep(delay_s)
            kills += process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if (out / "headrace.json").exists():
            break
    subprocess.run(command(source, out), check=True, capture_output=True, timeout=120)
    return kills


def test_killed_and_resumed(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=3, per_class=60)
    pack(source, tmp_path / "undisturbed", shard_size=200_000)
    drawn = random.Random(4)
    kills = kill_until_done(source, tmp_path / "killed", (drawn.uniform(0, 0.03) for _ in range(6)))
    assert kills >= 2
    assert tree(tmp_path / "killed") == tree(tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_thousand_images_killed_ten_times(tmp_path: Path) -> None:
    source = tmp_path / "in"
    made = [jpeg(150 + 9 * (i % 11), 120 + 7 * (i % 13), i, subsampling=("4:4:4", "4:2:0")[i % 2]) for i in range(100)]
    for number in range(2000):
        path = source / f"class_{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made[number % 100])
    pack(source, tmp_path / "undisturbed", shard_size=200_000)
    drawn = random.Random(10)
    kills = kill_until_done(source, tmp_path / "killed", (drawn.uniform(0, 0.25) for _ in range(14)))
    assert kills >= 10
    assert tree(tmp_path / "killed") == tree(tmp_path / "undisturbed")


def test_two_processes_do_not_write_the_same_shard(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source, out = image_folder(), tmp_path / "out"

    def second(_: int) -> None:
        with pytest.raises(UsageError, match="another process"):
            pack(source, out)
        raise KeyboardInterrupt  # and the first one stops in the middle of its shard

    with pytest.raises(KeyboardInterrupt):
        pack(source, out, on_progress=lambda count: second(count) if count else None)
    assert pack(source, out).complete


def test_a_full_disk_says_so_and_the_pack_continues(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = image_folder(), tmp_path / "out"

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(HeadraceError, match="no space left"):
            pack(source, out, sync=True)
    assert pack(source, out).records == 12


def test_a_shard_that_a_power_failure_shortened_is_packed_again(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source, out = image_folder(), tmp_path / "out"
    pack(source, tmp_path / "undisturbed", shard_size=65536)
    pack(source, out, shard_size=65536, unit=(0, 2))
    with open(out / "shard-000000.tar", "r+b") as file:
        file.truncate(100)
    (out / WORK / "unit-000002.json").write_bytes(b"")
    assert pack(source, out, shard_size=65536).complete
    assert tree(out) == tree(tmp_path / "undisturbed")
