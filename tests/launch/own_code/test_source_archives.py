"""Source archives of others: what a small one may cost, and that names, rights and bytes arrive."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from headrace.datasets.sources.archives import tar
from headrace.errors import SourceError
from headrace.launch.in_container import source_archive
from headrace.launch.in_container.source_archive import is_source_archive, unpack_source
from traced_memory import at_most


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    return made


def header(name: str, kind: bytes, size: int) -> bytes:
    """A header of a tar with any size, also one below zero."""
    made = member(name, kind)
    block = bytearray(made.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size.to_bytes(12, "big", signed=True) if size < 0 else b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_long_header_of_a_small_archive_takes_no_memory(tmp_path: Path, kind: bytes) -> None:
    """Each byte of it was held in memory: an archive of 1.8 MB took 419 MiB."""
    with gzip.open(tmp_path / "x.tar.gz", "wb", compresslevel=1) as file:
        file.write(header("x", kind, 64 << 20))
        for _ in range(64):
            file.write(b"a" * (1 << 20))
    with at_most(32 << 20), pytest.raises(SourceError, match="extended header"):
        unpack_source(tmp_path / "x.tar.gz", tmp_path / "folder")
    with at_most(32 << 20):
        assert not is_source_archive(tmp_path / "x.tar.gz")


def test_long_headers_of_an_archive_take_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own reader looks at the digits of one from each of them: a megabyte takes an hour."""
    monkeypatch.setattr(tar, "MAX_EXTENDED", 1 << 20)
    began_s = time.process_time()
    for text, words in ((b"1" * 60_000, "damaged pax header"), (b"6 a=b\n" * 10_000, "bytes of extended headers")):
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
            for _ in range(20):
                archive.fileobj.write(header("x", tarfile.XHDTYPE, len(text)) + text + bytes(-len(text) % 512))
        with pytest.raises(SourceError, match=words):
            unpack_source(tmp_path / "x.tar.gz", tmp_path / "folder")
    assert time.process_time() - began_s < 5


def test_a_member_of_less_than_no_bytes_is_refused(tmp_path: Path) -> None:
    """The reader went back to it again and again, and each time more bytes were allowed."""
    (tmp_path / "x.tar").write_bytes(header("a", tarfile.REGTYPE, -512) + bytes(1024))
    with pytest.raises(SourceError, match="size that is no number"):
        unpack_source(tmp_path / "x.tar", tmp_path / "folder")


def test_an_archive_that_unpacks_to_far_more_than_code_does_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_archive, "UNASKED_BYTES", 1 << 20)
    for data, fits in ((bytes(8 << 20), False), (bytes(1 << 20), True)):
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
            made = member("a.py")
            made.size = len(data)
            archive.addfile(made, io.BytesIO(data))
        with nullcontext() if fits else pytest.raises(SourceError, match=r"'a\.py' is beyond"):
            unpack_source(tmp_path / "x.tar.gz", tmp_path / "folder")
    assert (tmp_path / "folder/a.py").stat().st_size == 1 << 20


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_names_rights_and_bytes_of_an_archive_arrive(tmp_path: Path, form: int) -> None:
    names = ["a.py", "run.sh", "empty.txt", "dir/x.py", f"{'d' * 90}/{'e' * 90}.py"]
    names += [] if form == tarfile.USTAR_FORMAT else ["ü/ä.py", f"{'f' * 150}/{'g' * 200}.py"]
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", format=form) as archive:
        archive.addfile(member("dir", tarfile.DIRTYPE))
        for number, name in enumerate(names):
            made = member(name)
            made.size, made.mode, made.mtime = 600 * number, 0o777 if name == "run.sh" else 0o666, 1.5
            archive.addfile(made, io.BytesIO(bytes([number]) * made.size))
    unpack_source(tmp_path / "x.tar.gz", tmp_path / "folder")
    found = {path.relative_to(tmp_path / "folder").as_posix(): path for path in (tmp_path / "folder").rglob("*")}
    for number, name in enumerate(names):
        assert found[name].read_bytes() == bytes([number]) * 600 * number
        assert found[name].stat().st_mode & 0o777 == (0o755 if name == "run.sh" else 0o644)
