"""Caches belong to the user of the process: others' folders are refused in words, others' files are not read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace.errors import SourceError
from headrace.loading.feeding.byte_cache import open_cache, parse_cache
from headrace.loading.feeding.jpeg_index_cache import INDEX_FOLDER, index_file
from headrace.system.files.private_cache import make_cache_folder, owned_file

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def test_new_folders_are_for_their_owner_only(tmp_path: Path) -> None:
    make_cache_folder(tmp_path / "a" / "b")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(SourceError, match=f"may be written by other users .mode {mode:04o}") as caught:
        make_cache_folder(tmp_path)
    assert "chmod" in (caught.value.hint or "")
    tmp_path.chmod(mode | stat.S_ISVTX)
    assert make_cache_folder(tmp_path) == tmp_path


@as_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    with pytest.raises(SourceError, match=f"belongs to user {STRANGER}"):
        make_cache_folder(tmp_path)


@as_root
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert make_cache_folder(tmp_path / "link") == tmp_path / "link"
    os.chown(tmp_path / "link", STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(SourceError, match="is a link made by user"):
        make_cache_folder(tmp_path / "link")


@as_root
def test_files_of_another_user_and_links_are_not_owned(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert owned_file(tmp_path / "file")
    assert not owned_file(tmp_path / "link") and not owned_file(tmp_path / "missing")
    os.chown(tmp_path / "file", STRANGER, STRANGER)
    assert not owned_file(tmp_path / "file")


def test_a_shared_byte_cache_is_refused(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    data = headrace.open(image_folder())
    (tmp_path / "headrace-cache").mkdir()
    (tmp_path / "headrace-cache").chmod(0o777)
    with pytest.raises(SourceError, match="may be written by other users"):
        open_cache(parse_cache(f"disk:{tmp_path}:1MiB"), data)


def test_a_shared_index_folder_is_not_used(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = headrace.open(image_folder()).table
    (tmp_path / "indexes").mkdir()
    (tmp_path / "indexes").chmod(0o777)
    monkeypatch.setenv(INDEX_FOLDER, str(tmp_path / "indexes"))
    with pytest.warns(RuntimeWarning, match="may be written by other users"):
        assert index_file(table.files, table.file, table.offset, table.size) is None
    (tmp_path / "indexes").chmod(0o700)
    assert index_file(table.files, table.file, table.offset, table.size) is not None
