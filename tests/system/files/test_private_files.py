"""In folders such as /tmp, other users may be first: with links, pipes, files and folders. None of them is used."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace.cli.main import main
from headrace.errors import HeadraceError, SessionError, SourceError
from headrace.packing.upload import staging_folder
from headrace.profiling.command import begin_session
from headrace.system.files.atomic_write import TEMPORARY_PREFIX, atomic_write, replacing
from headrace.system.files.private_cache import make_cache_folder
from headrace.system.files.private_files import foreign_part, make_private_folder, private_opener

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def strangers(path: Path) -> Path:
    """Give a path away."""
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    return path


@as_root
def test_foreign_parts_of_shared_folders_are_found(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shared / "theirs" / "deep").mkdir(parents=True)
    (shared / "mine" / "deep").mkdir(parents=True)
    strangers(shared / "theirs")
    strangers(shared / "mine" / "deep")  # by this user's own leave
    assert foreign_part(shared / "mine" / "deep" / "new") is None
    assert foreign_part(shared / "new" / "newer") is None
    found = foreign_part(shared / "theirs" / "deep" / "new")
    assert found is not None and (found.path, found.user) == (shared / "theirs", STRANGER)
    monkeypatch.chdir(shared / "theirs")
    assert foreign_part(Path("deep")) is None  # the user went there
    monkeypatch.chdir(shared)
    assert foreign_part(Path("theirs/deep")) is not None


@as_root
def test_a_session_is_not_written_into_a_folder_of_another_user(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shared / "session").mkdir()
    strangers(shared / "session").chmod(0o777)
    with pytest.raises(PermissionError, match=f"user {STRANGER}"):
        make_private_folder(shared / "session")
    with pytest.raises(SessionError, match=f"belongs to user {STRANGER}"):
        begin_session(shared / "session" / "new", ["true"])
    assert main(["diagnose", "--out", str(shared / "session"), "--", "true"]) == 1
    assert f"belongs to user {STRANGER}" in " ".join(capsys.readouterr().err.split())


def test_links_and_pipes_in_place_of_a_private_file_are_refused(shared: Path) -> None:
    (shared / "document").write_text("mine")
    (shared / "link").symlink_to("document")
    (shared / "dangling").symlink_to("planted")
    os.mkfifo(shared / "pipe")
    for name in ("link", "dangling", "pipe"):
        for mode in ("w", "a"):
            with pytest.raises(OSError), open(shared / name, mode, opener=private_opener):
                pass
    assert (shared / "document").read_text() == "mine" and not (shared / "planted").exists()
    for text in ("long text", "short"):
        with open(shared / "new", "w", opener=private_opener) as file:
            file.write(text)
    assert (shared / "new").read_text() == "short" and stat.S_IMODE((shared / "new").stat().st_mode) == 0o600


@as_root
def test_a_file_of_another_user_is_not_written(shared: Path) -> None:
    (shared / "theirs").write_text("theirs")
    strangers(shared / "theirs")
    with pytest.raises(PermissionError, match=f"user {STRANGER}"), open(shared / "theirs", "w", opener=private_opener):
        pass
    assert (shared / "theirs").read_text() == "theirs"
    (shared / "own").mkdir()
    (shared / "own" / "file").write_text("theirs")
    strangers(shared / "own" / "file")
    with open(shared / "own" / "file", "w", opener=private_opener) as file:  # such as one of a shared volume
        file.write("new")


def test_a_planted_temporary_file_is_not_followed(shared: Path) -> None:
    (shared / "document").write_text("mine")
    with replacing(shared / "file") as temporary:
        assert temporary.stat().st_size == 0
        name = temporary.name
    assert name.startswith(TEMPORARY_PREFIX)
    (shared / name).symlink_to("document")
    atomic_write(shared / "file", "new", private=True)
    assert ((shared / "document").read_text(), (shared / "file").read_text()) == ("mine", "new")
    assert not (shared / "file").is_symlink() and stat.S_IMODE((shared / "file").stat().st_mode) == 0o600


@as_root
def test_a_cache_below_a_folder_of_another_user_is_refused(shared: Path) -> None:
    (shared / "theirs" / "cache").mkdir(parents=True)
    strangers(shared / "theirs")
    with pytest.raises(SourceError, match=r"lies in .*theirs, which belongs to user"):
        make_cache_folder(shared / "theirs" / "cache")


@as_root
def test_pack_stages_only_in_a_folder_of_its_own(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(shared / "cache"))
    folder = staging_folder("s3://bucket/data")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "headrace.json").write_text("planted")
    strangers(folder)
    with pytest.raises(SourceError, match="belongs to user"):
        staging_folder("s3://bucket/data")
    os.chown(folder, os.geteuid(), os.getegid())
    folder.chmod(0o777)
    with pytest.raises(SourceError, match="may be written by other users"):
        staging_folder("s3://bucket/data/")


@as_root
def test_the_demo_uses_no_images_of_another_user(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.demo.run_demo import run_demo
    from headrace.images import photographs

    def run(folder: Path) -> None:
        run_demo(data=None, folder=folder, seconds=0.1, log=lambda line: None, progress=lambda words, total: None)  # type: ignore[arg-type, return-value]

    (shared / "demo" / "images").mkdir(parents=True)
    (shared / "demo" / "images" / photographs.STAMP).write_text(photographs.VERSION)
    strangers(shared / "demo")
    with pytest.raises(HeadraceError, match="belongs to user"):
        run(shared / "demo")
    os.chown(shared / "demo", os.geteuid(), os.getegid())
    (shared / "demo").chmod(0o1777)
    strangers(shared / "demo" / "images")
    with pytest.raises(SourceError, match="was made by another user"):
        run(shared / "demo")


@as_root
def test_the_index_cache_leaves_links_and_files_of_others(
    image_folder: Callable[..., Path], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They appear after the check, as when another user is quicker."""
    from headrace.loading.feeding import jpeg_index_cache

    (shared / "document").write_bytes(b"mine")
    monkeypatch.setenv("HEADRACE_INDEX_CACHE", str(shared))
    real = jpeg_index_cache.index_file

    def planted(*columns: object) -> Path | None:
        path = real(*columns)  # type: ignore[arg-type]
        assert path is not None
        path.symlink_to("document")
        return path

    monkeypatch.setattr("headrace.loading.feeding.feed.index_file", planted)
    transform = headrace.transforms.CenterCrop(8)
    with headrace.Loader(image_folder(), batch_size=4, transform=transform, output="numpy") as loader:
        assert len(list(loader)) == 3
    assert (shared / "document").read_bytes() == b"mine"
