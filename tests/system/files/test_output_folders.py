"""Folders that headrace writes: no link is followed, and what another user has left there is not taken over."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace.cli.main import main
from headrace.cli.shared.unnamed_folder import unnamed_folder
from headrace.errors import HeadraceError, SessionError, UsageError
from headrace.inspection.inspect import inspect_dataset
from headrace.packing.engines.work import WORK, WorkFolder
from headrace.profiling import in_process
from headrace.system.files.atomic_write import atomic_write, write_output
from headrace.system.files.private_files import make_output_folder, output_opener
from headrace.training import preflight
from headrace.training.logs.loggers import TensorBoard
from headrace.training.logs.metrics import Metrics
from headrace.training.settings import options_file
from headrace.training.settings.options import Options
from headrace.trials.measuring import processes
from headrace.trials.measuring.runner import only_run

STRANGER = 54321
SHARD_SIZE = 65536
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A document of the user, at which planted links point."""
    path = tmp_path / "document"
    path.write_text("mine")
    return path


def stopped_pack(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack, but for the commit: all units are done."""
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "commit", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            headrace.pack(source, out, shard_size=SHARD_SIZE)


@pytest.mark.parametrize("name", ["shard-000000.tar.part", "lock"])
def test_a_link_in_the_place_of_a_shard_is_refused(
    name: str, image_folder: Callable[..., Path], tmp_path: Path, victim: Path
) -> None:
    (tmp_path / "packed" / WORK).mkdir(parents=True, mode=0o700)
    (tmp_path / "packed" / WORK / name).symlink_to(victim)
    with pytest.raises(HeadraceError, match="is a link, which is not followed"):
        headrace.pack(image_folder(), tmp_path / "packed")
    assert victim.read_text() == "mine"


def test_a_link_in_the_place_of_the_state_of_a_pack_is_refused(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "packed" / WORK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link, which is not followed"):
        headrace.pack(image_folder(), tmp_path / "packed")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_pipe_in_the_state_of_a_pack_is_not_waited_for(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = image_folder(), tmp_path / "packed"
    stopped_pack(source, out, monkeypatch)
    (facts := out / WORK / "unit-000000.json").unlink()
    os.mkfifo(facts)
    with pytest.raises(HeadraceError, match="is a named pipe, not a file"):
        headrace.pack(source, out, shard_size=SHARD_SIZE)


@as_root
def test_the_unfinished_pack_of_another_user_is_refused(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = image_folder(), tmp_path / "packed"
    stopped_pack(source, out, monkeypatch)
    os.chown(out / WORK, STRANGER, STRANGER)
    with pytest.raises(UsageError, match=f"{WORK} belongs to user {STRANGER}") as caught:
        headrace.pack(source, out, shard_size=SHARD_SIZE)
    assert "new folder" in (caught.value.hint or "")
    os.chown(out / WORK, os.geteuid(), os.getegid())
    (out / WORK).chmod(0o777)
    with pytest.raises(UsageError, match=r"may be written by other users .mode 0777"):
        headrace.pack(source, out, shard_size=SHARD_SIZE)
    (out / WORK).chmod(0o700)
    result = headrace.pack(source, out, shard_size=SHARD_SIZE)
    os.chown(out / "headrace.json", STRANGER, STRANGER)
    with pytest.raises(UsageError, match=f"headrace.json belongs to user {STRANGER}"):
        headrace.pack(source, out, shard_size=SHARD_SIZE)
    assert result.complete


@pytest.mark.parametrize("damaged", ["shard-000000.tar", f"{WORK}/unit-000000.safetensors"])
def test_a_resumed_pack_takes_over_only_units_with_their_digest(
    damaged: str, image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = image_folder(), tmp_path / "packed"
    headrace.pack(source, tmp_path / "undisturbed", shard_size=SHARD_SIZE)
    stopped_pack(source, out, monkeypatch)
    data = bytearray((out / damaged).read_bytes())
    data[len(data) // 2] ^= 0x55
    (out / damaged).write_bytes(data)
    result = headrace.pack(source, out, shard_size=SHARD_SIZE)
    assert result.repacked == 1
    for path in (tmp_path / "undisturbed").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_units_are_taken_over_only_for_the_records_of_the_plan(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests alone prove nothing: whoever exchanged two units has exchanged their records, too."""
    source, out = image_folder(classes=2, per_class=8), tmp_path / "packed"
    stopped_pack(source, out, monkeypatch)
    first, second = (out / WORK / f"unit-{unit:06d}.safetensors" for unit in (0, 1))
    kept = first.read_bytes()
    shutil.copyfile(second, first)
    second.write_bytes(kept)
    assert headrace.pack(source, out, shard_size=SHARD_SIZE).repacked == 2
    assert headrace.verify(out).ok


def test_a_training_writes_through_no_link(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in ("config.toml", "metrics.jsonl", ".lock"):
        (out / name).symlink_to(victim)
    with pytest.raises(UsageError, match="is a link, which is not followed"):
        Metrics(out / "metrics.jsonl")
    with pytest.raises(UsageError, match=r"\.lock: is a link, which is not followed"):
        preflight._lock(out)
    options_file.write(Options(model="resnet18", data="data", out=str(out)), out / "config.toml")
    assert victim.read_text() == "mine" and not (out / "config.toml").is_symlink()


@as_root
def test_a_linked_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "tensorboard"
    link.symlink_to(tmp_path / "elsewhere")
    make_output_folder(link)  # the user's own
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(UsageError, match=f"is a link made by user {STRANGER}"):
        TensorBoard(tmp_path, {})
    assert not list((tmp_path / "elsewhere").iterdir())


@as_root
def test_a_session_is_not_written_through_a_link_of_another_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a folder of a group, without the sticky bit, anybody makes links."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "session").symlink_to("documents")
    os.chown(tmp_path / "session", STRANGER, STRANGER, follow_symlinks=False)
    assert main(["diagnose", "--out", str(tmp_path / "session"), "--", "true"]) == 1
    assert f"is a link made by user {STRANGER}" in " ".join(capsys.readouterr().err.split())
    assert not list((tmp_path / "documents").iterdir())


@pytest.mark.parametrize("words", [("diagnose", "--", "true"), ("watch", "--", "true"), ("compare", "job-a", "job-b"), ()])
def test_a_session_without_a_named_place_is_written_through_no_link(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`headrace-sessions` may have come with a stranger's files, unpacked by this user."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "headrace-sessions").symlink_to("documents")
    monkeypatch.chdir(tmp_path)
    if words:
        assert main([*words]) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert "headrace-sessions: is a link, which is not followed" in said
        assert "--out" in said
    else:
        for size in ("1", "2"):
            monkeypatch.setattr(in_process, "rank_from_environment", lambda size=size: (0, 0, int(size)))
            with pytest.raises(SessionError, match="is a link, which is not followed"), headrace.watch(report=False):
                pass
    assert not list((tmp_path / "documents").iterdir())


def test_the_folders_of_results_without_a_name_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents").mkdir()
    (tmp_path / "photos").mkdir()
    for name in ("run", "headrace-trials-workers"):
        (tmp_path / name).symlink_to("documents")
    for words in (("train", "--model", "resnet18", "--data", "photos"), ("trials", "workers")):
        assert main([*words]) == 2
        assert "is a link, which is not followed" in (said := " ".join(capsys.readouterr().err.split())) and "--out" in said
    assert not list((tmp_path / "documents").iterdir())
    assert unnamed_folder("new") == Path("new")
    (tmp_path / "mine").mkdir(mode=0o775)
    assert unnamed_folder("mine") == Path("mine")


@pytest.mark.parametrize("name", [".lock", "work/stdout.txt", "work/stderr.txt"])
def test_trials_write_through_no_link(name: str, tmp_path: Path, victim: Path) -> None:
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).symlink_to(victim)
    with pytest.raises((HeadraceError, OSError), match="is a link, which is not followed"):
        if name == ".lock":
            with only_run(tmp_path / "out"):
                pass
        else:
            processes._run(tmp_path / "out", ["true"], "nothing", 10.0)
    assert victim.read_text() == "mine"


def test_the_lock_of_a_training_keeps_other_runs_out(tmp_path: Path) -> None:
    lock = preflight._lock(tmp_path)
    with open(tmp_path / ".lock", "ab") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(UsageError, match="another run is writing"):
        preflight._lock(tmp_path)
    lock.close()


def test_a_contact_sheet_replaces_a_link(image_folder: Callable[..., Path], tmp_path: Path, victim: Path) -> None:
    (tmp_path / "sheet.png").symlink_to(victim)
    inspect_dataset(image_folder(), sheet=tmp_path / "sheet.png")
    assert victim.read_text() == "mine" and (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_files_that_the_user_names_replace_links(tmp_path: Path, victim: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cost.csv").symlink_to(victim)
    assert main(["cost", "--model", "resnet50", "--images", "1000", "--csv", str(tmp_path / "cost.csv")]) == 0
    assert victim.read_text() == "mine" and "instance" in (tmp_path / "cost.csv").read_text()
    write_output(Path("/dev/null"), "nowhere")
    assert Path("/dev/null").is_char_device()


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a named pipe, not a file"):
        atomic_write(tmp_path / "pipe", "text")
    with pytest.raises(OSError), open(tmp_path / "pipe", "ab", opener=output_opener):
        pass
    assert (tmp_path / "pipe").is_fifo()
