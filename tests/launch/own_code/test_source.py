"""What travels with a script, and what is refused before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from headrace.errors import UsageError
from headrace.launch.own_code.source import ENTRY, LEFT_OUT, Source


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in (
        "train.py",
        "lib/helper.py",
        "lib/__pycache__/helper.pyc",
        ".git/config",
        ".env",
        "notes.md",
        "run.sh",
        ".cache/x",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "link.py").symlink_to("/etc/hostname")
    (folder / "data").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_folder_travels_without_links_caches_and_secrets(project: Path, tmp_path: Path) -> None:
    before = names(project)
    Source(project, "train.py").stage(tmp_path / "plain")
    assert names(tmp_path / "plain") == ["lib/helper.py", "notes.md", "run.sh", "train.py"]
    Source(project, "train.py", under="run").stage(tmp_path / "run")
    assert names(tmp_path / "run") == [ENTRY, "lib/helper.py", "notes.md", "run.sh", "train.py"]
    assert (tmp_path / "run/train.py").read_text() == "train.py"
    Source.of_file(project / "lib/helper.py").stage(tmp_path / "file")
    assert names(tmp_path / "file") == ["helper.py"]
    assert names(project) == before, "the source is not touched"


def test_the_words_say_how_much_travels_and_how_it_starts(project: Path) -> None:
    assert Source(project, "train.py", under="run").words() == (
        f"source: 4 files, 35 B of {project}; 2 links left out (data, link.py); train.py under headrace run"
    )


@pytest.mark.parametrize(
    "entry, words",
    [
        ("main.py", r"there is no file main\.py in .*project(?s:.*)there: link\.py, run\.sh, train\.py"),
        ("../other.py", r"\.\./other\.py is not below"),
        ("/etc/passwd", "/etc/passwd is not below"),
        ("notes.md", r"only \.py and \.sh files"),
        ("link.py", r"link\.py does not travel"),
        (".git/config", "only"),
        ("lib", "there is no file lib"),
    ],
)
def test_a_script_that_cannot_start_is_refused(project: Path, entry: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Source(project, entry, under="run").check()


def test_a_folder_that_is_not_there_and_a_name_that_is_taken_are_refused(project: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        Source(tmp_path / "none", "train.py").check()
    (project / ENTRY).write_text("")
    with pytest.raises(UsageError, match="a name that headrace needs"):
        Source(project, "train.py", under="diagnose").check()
    Source(project, "train.py").check()


def test_links_are_followed_where_that_is_asked_for_and_loops_end(project: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "common.py").write_text("x = 1")
    (shared / "up").symlink_to(shared)
    (project / "common.py").symlink_to(shared / "common.py")
    (project / "shared").symlink_to(shared)
    (project / "data").unlink()
    Source(project, "train.py", left_out=LEFT_OUT, follows_links=True).stage(tmp_path / "copy")
    assert {"common.py", "shared/common.py", "link.py"} <= set(names(tmp_path / "copy"))
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))


def test_folders_of_jobs_environments_and_keys_do_not_travel(project: Path, tmp_path: Path) -> None:
    for name in (
        "job/.headrace-local-job",
        "job/hosts/x",
        "venv/pyvenv.cfg",
        "venv/lib/a.py",
        ".aws/credentials",
        "id_rsa.old",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    Source(project, "train.py").stage(project / "job" / "code")
    assert names(project / "job" / "code") == ["lib/helper.py", "notes.md", "run.sh", "train.py"]


def test_patterns_of_names_are_left_out(project: Path) -> None:
    (project / "last.ckpt").write_text("")
    left = [path.name for path in Source(project, "train.py", left_out=frozenset({"*.ckpt", "lib"})).contents.files]
    assert "last.ckpt" not in left and "helper.py" not in left and "train.py" in left
