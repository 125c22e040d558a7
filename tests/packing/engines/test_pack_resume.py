"""A pack that is interrupted at any point and resumed gives the same bytes as an uninterrupted one."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from file_digests import file_digests
from headrace.cli.main import main
from headrace.errors import HeadraceError, UsageError
from headrace.packing import pack
from headrace.packing.engines.work import WORK, WorkFolder
from PIL import Image
from sample_images import jpeg


class Crash(BaseException):
    """The end of the process; not an Exception, so that no code handles it."""


class Fuse:
    """A counter of the steps that change the disk, which ends the pack at a chosen step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1  # never
        self.steps = 0
        monkeypatch.setattr(os, "fsync", self._before(lambda _: None))  # the real one is slow and changes nothing here
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


@pytest.mark.slow
def test_a_pack_resumes_after_a_crash_at_any_disk_step(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = image_folder(classes=2, per_class=4)
    (source / "class_0" / "bad.jpg").write_text("no image")
    fuse = Fuse(monkeypatch)
    pack(source, tmp_path / "undisturbed", shard_size=65536, workers=1, sync=True)
    expected, steps = file_digests(tmp_path / "undisturbed"), fuse.steps
    assert "errors.jsonl" in expected and steps > 20
    for step in range(steps):
        out = tmp_path / f"crash{step}"
        fuse.left = step
        with pytest.raises(Crash):
            pack(source, out, shard_size=65536, workers=1, sync=True)
        fuse.left = -1
        pack(source, out, shard_size=65536, workers=1)
        assert file_digests(out) == expected, f"stopped before step {step} of {steps}"


SHARD_SIZE = 100_000  # bytes; small, for many shards and so many points of interruption


def command(source: Path, out: Path, workers: int) -> list[str]:
    options = ["--shard-size", str(SHARD_SIZE), "--workers", str(workers)]
    return [sys.executable, "-m", "headrace", "pack", str(source), str(out), *options]


def run_until(source: Path, out: Path, workers: int, reached: Callable[[], bool], delay_s: float) -> bool:
    """Pack until `reached` plus `delay_s`, then kill; return whether the pack was still running."""
    process = subprocess.Popen(command(source, out, workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 60
        while not reached() and process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.0005)
        time.sleep(delay_s)
        return process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def done_units(out: Path) -> int:
    return sum(1 for _ in (out / WORK).glob("unit-*.json"))


def kill_and_resume(source: Path, out: Path, kills: int, workers: int, units: int) -> int:
    """Kill the pack at `kills` random points, then let it finish; return the number of kills that met a running pack."""
    drawn = random.Random(workers)
    met = 0
    for after in sorted(drawn.choices(range(units), k=kills)):
        met += run_until(source, out, workers, lambda after=after: done_units(out) >= after, drawn.uniform(0, 0.004))
    subprocess.run(command(source, out, workers), check=True, capture_output=True, timeout=120)
    return met


def folder_of(root: Path, images: int) -> Path:
    """Make a folder of images of several sizes and subsamplings in ten classes, and one file that is no image."""
    made = [jpeg(150 + 9 * (i % 11), 120 + 7 * (i % 13), i, subsampling=("4:4:4", "4:2:0")[i % 2]) for i in range(100)]
    for number in range(images):
        path = root / f"class_{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made[number % 100])
    (root / "class_3" / "none.jpg").write_text("no image")
    return root


@pytest.mark.parametrize(
    ("images", "kills", "workers"),
    [
        (300, 3, 2),
        pytest.param(1200, 6, 1, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(1200, 6, 2, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_a_killed_pack_resumes_with_the_same_bytes(tmp_path: Path, images: int, kills: int, workers: int) -> None:
    source = folder_of(tmp_path / "in", images)
    whole = pack(source, tmp_path / "undisturbed", shard_size=SHARD_SIZE)
    assert (whole.records, whole.errors) == (images, 1)
    met = kill_and_resume(source, tmp_path / "killed", kills, workers, whole.shards)
    assert met >= kills - 2
    assert file_digests(tmp_path / "killed") == file_digests(tmp_path / "undisturbed")


def exchange(path: Path, data: bytes) -> None:
    """Replace a file by another one of the same name and size, as an editor or a download does."""
    assert len(data) == path.stat().st_size
    path.with_name("new").write_bytes(data)
    path.with_name("new").replace(path)


def flipped(data: bytes) -> bytes:
    """Return the JPEG with one bit of its header changed: same size, still valid."""
    at = data.index(b"JFIF") + 7  # the units of the density
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("kind", ["folder", "tar", "lst"])
def test_shards_of_changed_files_are_packed_again(tmp_path: Path, kind: str) -> None:
    """A file is replaced by one of the same size; only the shards that hold it are packed again."""
    folder = folder_of(tmp_path / "in", 60)
    first = folder / "class_0" / "0.jpg"
    source = folder
    if kind == "tar":
        source = tmp_path / "in.tar"
        subprocess.run(["tar", "cf", source, "."], cwd=folder, check=True)
    elif kind == "lst":
        source = tmp_path / "in.lst"
        source.write_text("".join(f"{i}\t{i % 10}\tin/class_{i % 10}/{i}.jpg\n" for i in range(60)))
    begun = pack(source, tmp_path / "out", shard_size=SHARD_SIZE, unit=(0, 2))
    assert not begun.complete and begun.shards > 2
    if kind == "tar":
        exchange(first, flipped(first.read_bytes()))
        subprocess.run(["tar", "cf", source, "."], cwd=folder, check=True)
    else:
        exchange(first, flipped(first.read_bytes()))
        exchange(folder / "class_9" / "59.jpg", flipped((folder / "class_9" / "59.jpg").read_bytes()))
    again = pack(source, tmp_path / "out", shard_size=SHARD_SIZE)
    whole = pack(source, tmp_path / "undisturbed", shard_size=SHARD_SIZE)
    assert file_digests(tmp_path / "out") == file_digests(tmp_path / "undisturbed")
    last = whole.shards % 2  # 1 if the last shard was already packed
    assert again.repacked == (begun.shards if kind == "tar" else 1 + last)
    assert whole.repacked == 0


def test_an_array_job_keeps_the_shards_of_other_jobs(tmp_path: Path) -> None:
    """Each machine may have a copy of the source with other times of change."""
    source = folder_of(tmp_path / "in", 60)
    pack(source, tmp_path / "undisturbed", shard_size=SHARD_SIZE)
    assert not pack(source, tmp_path / "out", shard_size=SHARD_SIZE, unit=(0, 2)).complete
    for path in source.rglob("*.jpg"):
        os.utime(path, (1, 1))
    other = pack(source, tmp_path / "out", shard_size=SHARD_SIZE, unit=(1, 2))
    assert other.complete and not other.repacked
    assert file_digests(tmp_path / "out") == file_digests(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_pack_killed_during_the_commit_resumes(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", 100)
    whole = pack(source, tmp_path / "undisturbed", shard_size=SHARD_SIZE)
    assert not pack(source, tmp_path / "begun", shard_size=SHARD_SIZE, unit=(0, 2)).complete
    drawn = random.Random(5)
    for attempt in range(3):
        out = tmp_path / f"killed{attempt}"
        shutil.copytree(tmp_path / "begun", out)

        def committing(out: Path = out) -> bool:
            return done_units(out) == whole.shards or (out / "headrace.json").exists()

        run_until(source, out, 2, committing, drawn.uniform(0, 0.006))
        subprocess.run(command(source, out, 2), check=True, capture_output=True, timeout=120)
        assert file_digests(out) == file_digests(tmp_path / "undisturbed")


def test_two_processes_do_not_write_the_same_shard(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source, out = image_folder(), tmp_path / "out"

    def second(_: int) -> None:
        with pytest.raises(UsageError, match="another process"):
            pack(source, out)
        raise KeyboardInterrupt  # the first pack stops in the middle of its shard

    with pytest.raises(KeyboardInterrupt):
        pack(source, out, on_progress=lambda count, _: second(count) if count else None)
    assert pack(source, out).complete


def test_a_pack_resumes_after_a_full_disk(
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


def test_a_truncated_shard_is_packed_again(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source, out = image_folder(), tmp_path / "out"
    pack(source, tmp_path / "undisturbed", shard_size=65536)
    pack(source, out, shard_size=65536, unit=(0, 2))
    with open(out / "shard-000000.tar", "r+b") as file:
        file.truncate(100)
    (out / WORK / "unit-000002.json").write_bytes(b"")
    assert pack(source, out, shard_size=65536).complete
    assert file_digests(out) == file_digests(tmp_path / "undisturbed")


@pytest.mark.parametrize("quality", [80, 70])
def test_two_jobs_that_begin_together_follow_one_plan(image_folder: Callable[..., Path], tmp_path: Path, quality: int) -> None:
    """The first job of an array has written a shard before the second job has measured its estimate."""
    source, out = image_folder(), tmp_path / "out"
    options = {"shard_size": 65536, "quality": 80}

    def meanwhile(_: object) -> None:
        assert not pack(source, out, **options, unit=(0, 2)).complete

    def second() -> object:
        return pack(source, out, **(options | {"quality": quality}), unit=(1, 2), on_estimate=meanwhile)

    if quality == 80:
        assert second().complete
        pack(source, tmp_path / "undisturbed", **options)
        assert file_digests(out) == file_digests(tmp_path / "undisturbed")
    else:
        with pytest.raises(UsageError, match="quality was 80 and is 70 now"):
            second()


def test_a_pack_survives_a_commit_by_another_process(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = image_folder(), tmp_path / "out"
    pack(source, out, shard_size=65536, unit=(0, 2))
    begun, first = WorkFolder.open_part, True

    def overtaken(work: WorkFolder, unit: int) -> object:
        nonlocal first
        if first:
            first = False
            pack(source, out, shard_size=65536)
        return begun(work, unit)

    monkeypatch.setattr(WorkFolder, "open_part", overtaken)
    assert pack(source, out, shard_size=65536).complete
    pack(source, tmp_path / "undisturbed", shard_size=65536)
    assert file_digests(out) == file_digests(tmp_path / "undisturbed")


@pytest.mark.parametrize("layout", ["shards", "folder"])
def test_a_repeated_pack_prints_no_rate(
    image_folder: Callable[..., Path], tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records that an earlier run packed are counted at once: 26,000 img/s were printed for them."""
    words = ["pack", str(image_folder()), str(tmp_path / "out"), "--layout", layout]
    assert main(words) == 0
    assert "img/s" in capsys.readouterr().err
    assert main(words) == 0
    errors = capsys.readouterr().err
    assert "12/12 img" in errors and "img/s" not in errors


def test_a_pack_of_many_shards_needs_few_open_files(tmp_path: Path) -> None:
    source = tmp_path / "source" / "noise"
    source.mkdir(parents=True)
    for number in range(40):
        Image.effect_noise((300, 300 + number), 100).save(source / f"{number}.jpg", quality=95)  # more than half a shard each
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 25, limits[1])
    )
    try:
        result = pack(source.parent, tmp_path / "out", workers=2, shard_size=1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (result.records, result.shards) == (40, 40)
