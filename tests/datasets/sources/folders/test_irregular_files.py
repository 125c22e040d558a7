"""Pipes, sockets, devices, folders and dangling links in place of files: a message within seconds, never a hang."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import headrace
import pytest
from headrace.cli.main import main
from headrace.errors import FormatError, HeadraceError, SourceError
from headrace.inspection.inspect import inspect_dataset as inspect
from headrace.system.files.regular_file import read_regular
from sample_images import jpeg

KINDS = ["pipe", "socket", "device", "dangling link", "link to itself", "folder", "link to a pipe", "link to a device"]
DEADLINE_S = 30


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Fail a test that waits for a pipe."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("it waits for a file that is none")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(DEADLINE_S)
    yield
    signal.alarm(0)


def put(kind: str, path: Path) -> None:
    """Put a file of this kind in the place of `path`."""
    path.unlink(missing_ok=True)
    other = path.with_name(f"..{path.name[:8]}")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a pipe":
        os.mkfifo(other)
        path.symlink_to(other)
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket has at most 107 bytes
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path.name)
        finally:
            os.chdir(here)
    elif kind == "device":
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pytest.skip("only root makes devices")
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "link to itself" else "missing")


@pytest.fixture
def packed(image_folder: Callable[..., Path], tmp_path: Path) -> Path:
    headrace.pack(image_folder(), tmp_path / "packed")
    return tmp_path / "packed"


@pytest.mark.parametrize("kind", KINDS)
def test_reading_says_what_is_there(tmp_path: Path, kind: str) -> None:
    put(kind, tmp_path / "file")
    with pytest.raises(OSError, match=kind.removeprefix("link to a ") if "link to a" in kind else kind.split()[-1]) as caught:
        read_regular(tmp_path / "file")
    assert caught.value.filename == str(tmp_path / "file")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["headrace.json", "index.safetensors", "shard-000000.tar"])
def test_a_packed_dataset_is_refused(packed: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(kind, packed / name)
    for open_it in (headrace.open, inspect, lambda path: headrace.Loader(path, batch_size=2)):
        with pytest.raises(HeadraceError):
            open_it(packed)
    assert main(["verify", str(packed)]) == 1
    assert main(["inspect", str(packed)]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_changes_after_open_is_refused(packed: Path, kind: str) -> None:
    data = headrace.open(packed)
    put(kind, packed / "shard-000000.tar")
    with pytest.raises(SourceError, match=r"shard-000000\.tar: a "):
        data.read(0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
def test_pack_lists_what_is_no_file(image_folder: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    root = image_folder()
    put(kind, root / "class_0" / "odd (a).jpg")
    with pytest.raises(SourceError, match=r"odd \(a\)\.jpg: a "):
        headrace.open(root)
    result = headrace.pack(root, tmp_path / "out")
    assert (result.records, result.errors) == (12, 1)
    line = json.loads((tmp_path / "out" / "errors.jsonl").read_text())
    assert (line["file"], line["reason"]) == ("class_0/odd (a).jpg", "unreadable")
    assert line["detail"].startswith("a ")
    assert inspect(root).strays == 1


def test_a_folder_named_like_an_image_is_a_folder(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = image_folder()
    (root / "class_0" / "x.jpg").mkdir()
    (root / "class_0" / "x.jpg" / "inside.jpg").write_bytes(jpeg(40, 30))
    assert len(headrace.open(root)) == 13  # as ImageFolder
    assert headrace.pack(root, tmp_path / "out").records == 13


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_listed(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = image_folder()
    (root / "class_0" / "image_000.jpg").chmod(0)
    assert headrace.pack(root, tmp_path / "out", undecodable="skip").errors == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["list.lst", "table.parquet", "a.tar", "b.idx"])
def test_lists_and_containers_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    put(kind, path)
    if name == "b.idx":
        path = tmp_path / "b.rec"
        path.write_bytes(b"\x0a\x23\xd7\xce" + bytes(28))
        if kind in ("dangling link", "link to itself"):
            pytest.skip("an index that does not exist is none")
    elif kind in ("pipe", "link to a pipe"):
        return  # the path of a pipe is a channel in Pipe mode (test_pipe.py)
    with pytest.raises((HeadraceError, OSError)):
        headrace.open(path)


@pytest.mark.parametrize("kind", ["pipe", "device", "dangling link", "socket"])
def test_a_container_in_a_folder_is_not_left_out(tmp_path: Path, kind: str) -> None:
    import io
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("c/x.jpg")
        member.size = len(data := jpeg(40, 30))
        archive.addfile(member, io.BytesIO(data))
    assert len(headrace.open(tmp_path)) == 1
    put(kind, tmp_path / "b.tar")
    with pytest.raises(SourceError, match=r"b\.tar: a "):
        headrace.open(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder", "link to a pipe"])
def test_what_stands_in_place_of_a_shard_is_said(image_folder: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    packed = tmp_path / "packed"
    headrace.pack(image_folder(), packed)
    (shard,) = packed.glob("*.tar")
    shard.unlink()
    put(kind, shard)
    with pytest.raises(FormatError, match=f"{shard.name}: a .*, not a file"):
        headrace.open(packed)


@pytest.mark.parametrize("kind", KINDS)
def test_config_checkpoint_and_session_are_refused(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from headrace.training.weights.checkpoint import load

    put(kind, tmp_path / "config.toml")
    words = ["train", "--model", "resnet18", "--data", str(tmp_path), "--config", str(tmp_path / "config.toml")]
    assert main(words) == 2
    (tmp_path / "session").mkdir()
    put(kind, tmp_path / "session" / "launch.jsonl")
    assert main(["report", str(tmp_path / "session")]) == 1
    put(kind, tmp_path / "final.safetensors")
    assert main(["predict", str(tmp_path / "final.safetensors"), str(tmp_path)]) in (1, 2)
    (tmp_path / "checkpoint").mkdir()
    put(kind, tmp_path / "checkpoint" / "state.json")
    with pytest.raises(HeadraceError):
        load(tmp_path / "checkpoint")
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "words",
    [
        ["cost", "--model", "resnet50", "--images", "1000", "--session"],
        ["cost", "--calibrate"],
        ["launch", "sagemaker", "--dry-run", "--request"],
        ["trials"],
    ],
)
def test_files_that_a_command_line_names_are_refused(
    tmp_path: Path, kind: str, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CALIBRATION", str(tmp_path / "kept.json"))
    put(kind, tmp_path / "named.toml")
    assert main([*words, str(tmp_path / "named.toml")]) in (1, 2)
    errors = capsys.readouterr().err
    assert "error: " in errors and "named.toml" in errors and "Traceback" not in errors
