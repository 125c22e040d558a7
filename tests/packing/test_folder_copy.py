"""`pack --layout folder`: a copy of a tree that any script reads."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.cli.main import main
from headrace.datasets.records import keys as record_keys
from headrace.datasets.records.keys import Keys
from headrace.errors import DecodeError, FormatError, HeadraceError, SourceError, UsageError
from headrace.inspection import verify_folder
from headrace.packing import folder_copy, pack
from headrace.packing.copied_files import RECORD, CopiedFile, CopiedFiles, opened_record, write_record
from headrace.packing.planning.source_tree import SourceTree
from PIL import Image


def photograph(seed: int, size: tuple[int, int] = (300, 200), **options: object) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90, **options)
    return stream.getvalue()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for name in ("train/cat/1.jpg", "train/cat/2.JPEG", "train/dog/3.jpg", "val/cat/4.jpg", "no-extension"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(photograph(len(name)))
    Image.new("L", (300, 200), 7).save(root / "train/cat/1_mask.png")
    (root / "labels.csv").write_text("1.jpg,cat\n")
    (root / "train/empty.jpg").write_bytes(b"")
    (root / "train/cut.jpg").write_bytes(photograph(9)[:900])
    return root


def read_record(target: Path) -> tuple[dict[str, object], dict[str, CopiedFile]]:
    with opened_record(target) as (header, entries):
        return header, {entry.path: entry for entry in entries}


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_a_marked_copy_has_the_same_pixels_and_the_same_names(tree: Path, tmp_path: Path) -> None:
    result = pack(tree, tmp_path / "copy", layout="folder")
    was, now = contents(tree), contents(tmp_path / "copy")
    assert set(now) - set(was) == {RECORD, "errors.jsonl"}
    assert set(was) <= set(now)
    for name in ("train/cat/1.jpg", "train/cat/2.JPEG", "train/dog/3.jpg", "val/cat/4.jpg", "no-extension"):
        assert now[name] != was[name]
        assert np.array_equal(pixels(now[name]), pixels(was[name])), name
        assert b"\xff\xd0" in now[name]  # restart markers
    for name in ("train/cat/1_mask.png", "labels.csv", "train/empty.jpg", "train/cut.jpg"):
        assert now[name] == was[name]
    assert (result.records, result.errors, result.shards) == (5, 1, 0)
    assert result.extras == {".csv": 1, ".jpg": 2, ".png": 1}
    listed = [json.loads(line) for line in now["errors.jsonl"].splitlines()]
    assert [(one["file"], one["reason"]) for one in listed] == [("train/cut.jpg", "undecodable")]


def test_a_reduced_copy_changes_jpegs_only(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "copy", layout="folder", short_side=64)
    now = contents(tmp_path / "copy")
    assert Image.open(io.BytesIO(now["train/cat/1.jpg"])).size == (96, 64)
    assert Image.open(io.BytesIO(now["train/cat/1_mask.png"])).size == (300, 200)


def test_the_record_is_the_same_whatever_the_number_of_threads(tree: Path, tmp_path: Path) -> None:
    for workers in (1, 4):
        pack(tree, tmp_path / f"copy{workers}", layout="folder", workers=workers)
    assert contents(tmp_path / "copy1") == contents(tmp_path / "copy4")


def test_torchvision_sees_the_same_classes(tree: Path, tmp_path: Path) -> None:
    folder = pytest.importorskip("torchvision.datasets").ImageFolder
    pack(tree, tmp_path / "copy", layout="folder")
    was, now = folder(tree / "train", allow_empty=True), folder(tmp_path / "copy" / "train", allow_empty=True)
    assert (was.classes, len(was)) == (now.classes, len(now))
    assert (tmp_path / "copy" / RECORD).parent == tmp_path / "copy"


def test_a_repeated_copy_does_nothing_and_a_changed_original_is_copied_again(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "copy", layout="folder")
    before = contents(tmp_path / "copy")
    assert pack(tree, tmp_path / "copy", layout="folder").img_s is None
    assert contents(tmp_path / "copy") == before
    (tree / "train/dog/3.jpg").write_bytes(photograph(77))
    (tree / "train/dog/5.jpg").write_bytes(photograph(78))
    pack(tree, tmp_path / "copy", layout="folder")
    assert np.array_equal(pixels(contents(tmp_path / "copy")["train/dog/3.jpg"]), pixels(photograph(77)))
    assert headrace.verify(tmp_path / "copy", decode=True).ok


@pytest.mark.slow
def test_a_killed_copy_continues_to_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(150):
        (source / f"{number:03}.jpg").write_bytes(photograph(number, (640, 480)))
    whole = tmp_path / "whole"
    pack(source, whole, layout="folder", short_side=100)
    code = "import sys, headrace; headrace.pack(sys.argv[1], sys.argv[2], layout='folder', short_side=100, workers=1)"
    copy, killed = tmp_path / "copy", 0
    for wanted in (3, 40, 90):
        child = subprocess.Popen([sys.executable, "-c", code, str(source), str(copy)])
        while child.poll() is None and len(list(copy.glob("*.jpg"))) < wanted:
            time.sleep(0.002)
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            killed += 1
        child.wait()
    assert killed >= 1
    with pytest.raises(SourceError, match="unfinished"):
        headrace.verify(copy)
    pack(source, copy, layout="folder", short_side=100)
    assert contents(copy) == contents(whole)
    assert headrace.verify(copy, decode=True).ok


def test_verify_names_what_is_wrong(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    pack(tree, copy, layout="folder")
    data = bytearray((copy / "train/cat/1.jpg").read_bytes())
    data[-40] ^= 1
    (copy / "train/cat/1.jpg").write_bytes(data)
    (copy / "train/dog/3.jpg").unlink()
    (copy / "val/cat/4.jpg").write_bytes(b"x")
    (copy / "new.txt").write_text("x")
    assert main(["verify", str(copy), "--json"]) == 1
    found = {problem["file"]: problem["detail"] for problem in json.loads(capsys.readouterr().out)["problems"]}
    assert set(found) == {"train/cat/1.jpg", "train/dog/3.jpg", "val/cat/4.jpg", "new.txt"}
    assert "CRC" in found["train/cat/1.jpg"] and "missing" in found["train/dog/3.jpg"]


def test_the_longest_names_are_copied(tree: Path, tmp_path: Path) -> None:
    """One file of a stranger's tree stopped the copy, again and again."""
    (tree / f"{'n' * 251}.txt").write_text("as long as a name can be")
    pack(tree, tmp_path / "copy", layout="folder")
    assert (tmp_path / "copy" / f"{'n' * 251}.txt").read_text() == "as long as a name can be"
    assert not list((tmp_path / "copy").rglob(f"*{folder_copy.TEMPORARY}"))


def test_odd_names_and_links_are_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    odd = os.fsencode(source / "a") + b"/caf\xe9 %41.jpg"
    Path(os.fsdecode(odd)).write_bytes(photograph(1))
    (source / "b").symlink_to("a")
    (source / "a" / "up").symlink_to("..")
    (source / "gone.jpg").symlink_to("nowhere")
    os.mkfifo(source / "pipe.jpg")
    pack(source, tmp_path / "copy", layout="folder")
    copied = Path(os.fsdecode(os.fsencode(tmp_path / "copy" / "b") + b"/caf\xe9 %41.jpg"))
    assert copied.is_file()
    assert (tmp_path / "copy" / "b").is_symlink()
    assert headrace.verify(tmp_path / "copy", decode=True).ok
    assert pack(source, tmp_path / "copy", layout="folder").img_s is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": 1}, "--shuffle"),
        ({"train_ratio": 0.5}, "--train-ratio"),
        ({"classes": ("cat",)}, "--classes"),
        ({"engine": "ray"}, "--engine"),
        ({"unit": (0, 2)}, "--unit"),
        ({"quality": 0}, "quality"),
    ],
)
def test_options_of_shards_are_refused(tree: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pack(tree, tmp_path / "copy", layout="folder", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "copy").exists()


def test_wrong_places_are_refused(tree: Path, tmp_path: Path) -> None:
    for target in (tree, tree / "inside", tree.parent):
        with pytest.raises(UsageError, match="inside each other"):
            pack(tree, target, layout="folder")
    with pytest.raises(UsageError, match="local folder"):
        pack(tree, "s3://bucket/copy", layout="folder")
    with pytest.raises(SourceError, match="not a folder"):
        pack(tree / "labels.csv", tmp_path / "copy", layout="folder")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="other files"):
        pack(tree, tmp_path / "full", layout="folder")
    pack(tree, tmp_path / "copy", layout="folder")
    with pytest.raises(UsageError, match="other options"):
        pack(tree, tmp_path / "copy", layout="folder", short_side=64)
    (tmp_path / "copy" / RECORD).write_text("{}\n")
    with pytest.raises(FormatError, match="damaged"):
        pack(tree, tmp_path / "copy", layout="folder")


def test_undecodable_stop_names_the_file(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"train/cut\.jpg"):
        pack(tree, tmp_path / "copy", layout="folder", undecodable="stop")


def test_a_full_disk_is_one_sentence_and_the_copy_continues(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = folder_copy.new_file, [3]

    def new_file(path: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device", str(path))
        real(path)

    monkeypatch.setattr(folder_copy, "new_file", new_file)
    with pytest.raises(HeadraceError, match="no space left") as error:
        pack(tree, tmp_path / "copy", layout="folder", workers=1)
    assert error.value.hint is not None and "continues" in error.value.hint
    monkeypatch.undo()
    pack(tree, tmp_path / "copy", layout="folder")
    assert headrace.verify(tmp_path / "copy", decode=True).ok
    assert read_record(tmp_path / "copy")[0]["complete"] is True


def test_the_command_says_what_to_do_with_the_copy(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(tree), str(tmp_path / "copy"), "--layout", "folder", "--short-side", "64"]) == 0
    printed = capsys.readouterr().out
    assert "5 JPEGs changed" in printed
    assert f"--data-map {tree}={tmp_path / 'copy'}" in printed


def test_links_out_of_the_source_are_listed_and_not_copied(tree: Path, tmp_path: Path) -> None:
    secret = tmp_path / "home"
    secret.mkdir()
    (secret / "key.txt").write_text("secret")
    (tree / "environ").symlink_to("/proc/self/environ")
    (tree / "train" / "key.jpg").symlink_to(secret / "key.txt")
    (tree / "val" / "home").symlink_to(secret)
    (tree / "val" / "above").symlink_to("../../..")
    (tree / "inside.jpg").symlink_to("train/cat/1.jpg")
    copy = tmp_path / "copy"
    result = pack(tree, copy, layout="folder")
    now = contents(copy)
    listed = {one["file"]: one for one in map(json.loads, now["errors.jsonl"].splitlines()) if one["reason"] == "link"}
    assert set(listed) == {"environ", "train/key.jpg", "val/home", "val/above"} and not set(listed) & set(now)
    assert "inside.jpg" in now and result.errors == 5 and "--follow-links" in listed["environ"]["detail"]
    assert not any(b"secret" in data for name, data in now.items() if name != "errors.jsonl")
    followed = tmp_path / "followed"
    assert main(["pack", str(tree), str(followed), "--layout", "folder", "--follow-links", str(secret)]) == 0
    assert contents(followed)["val/home/key.txt"] == contents(followed)["train/key.jpg"] == b"secret"
    assert "environ" not in contents(followed)
    with pytest.raises(UsageError, match="--follow-links"):
        pack(tree, tmp_path / "shards", follow_links=[secret])


def test_a_tree_of_links_out_of_it_says_how_to_copy_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.jpg").write_bytes(photograph(1))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "1.jpg").symlink_to(tmp_path / "real" / "1.jpg")
    with pytest.raises(SourceError, match="no files but 1 links out of it") as caught:
        pack(tmp_path / "links", tmp_path / "copy", layout="folder")
    assert "--follow-links" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["../beside.txt", "{outside}", "train/../../beside.txt"])
def test_verify_reads_no_name_that_leads_out_of_a_copy(name: str, tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "beside.txt"
    outside.write_text("secret")
    copy = tmp_path / "copy"
    pack(tree, copy, layout="folder")
    record = (copy / RECORD).read_text()
    entry = json.dumps({"path": name.format(outside=outside), "kind": "copied", "source_size": 6, "source_changed_ns": 1})
    (copy / RECORD).write_text(record + entry[:-1] + ', "size": 6, "crc32c": 1}\n')
    with pytest.raises(FormatError, match="leads out of the copy"):
        headrace.verify(copy)


def test_verify_follows_no_link_out_of_a_copy(tree: Path, tmp_path: Path) -> None:
    copy, outside = tmp_path / "copy", tmp_path / "outside"
    pack(tree, copy, layout="folder")
    (copy / "labels.csv").rename(outside)
    (copy / "labels.csv").symlink_to(outside)  # the very bytes
    (copy / "environ").symlink_to("/proc/self/environ")
    found = {problem.file: problem.detail for problem in headrace.verify(copy).problems}
    assert found == {
        "labels.csv": "is a link, not a file of the copy",
        "environ": "is a link that leads out of the copy",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"path": ["x"]},
        {"size": "6"},
        {"crc32c": None},
        {"kind": 3},
        {"kind": "other"},
        {"size": 1 << 80},
        {"size": -1},
        {"source_changed_ns": 10**400},
        {"crc32c": 1 << 32},
    ],
)
def test_a_record_with_wrong_types_is_damaged(change: dict[str, object], tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "copy", layout="folder")
    record = (tmp_path / "copy" / RECORD).read_text().splitlines()
    record[1] = json.dumps(json.loads(record[1]) | change)
    (tmp_path / "copy" / RECORD).write_text("\n".join(record) + "\n")
    with pytest.raises(FormatError, match="is damaged"):
        read_record(tmp_path / "copy")


def test_an_unfinished_copy_is_continued_from_its_own_bytes_only(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    pack(tree, copy, layout="folder")
    whole = contents(copy)
    (copy / RECORD).write_text(whole[RECORD].decode().replace('"complete":true', '"complete":false'))
    (copy / "labels.csv").write_text("2.jpg,dog\n")  # the same size
    pack(tree, copy, layout="folder")
    assert contents(copy) == whole


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_copy_of_another_user_is_refused(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "copy", layout="folder")
    os.chown(tmp_path / "copy" / RECORD, 54321, 54321)
    with pytest.raises(UsageError, match="belongs to user 54321"):
        pack(tree, tmp_path / "copy", layout="folder")


@pytest.mark.slow
def test_the_files_of_a_copy_take_at_most_150_bytes_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed, copied, recorded, and found again in the record of a copy that was stopped."""
    count = 20_000
    monkeypatch.setattr(record_keys, "_CHUNK", 256)
    names = (f"train/n{number % 20:08d}/n{number % 20:08d}_{number}.JPEG" for number in range(count))
    tracemalloc.start()
    try:
        files = CopiedFiles(Keys.of(names))
        for row, path in enumerate(files.paths):
            files[row] = CopiedFile(path, "marked", 100_000 + row, 1_700_000_000_000_000_000 + row, 90_000 + row, row)
        write_record(tmp_path, {"complete": False, "options": {}}, files.copied())
        with opened_record(tmp_path) as (_, entries):
            again = CopiedFiles(files.paths)
            for entry in entries:
                (row,) = again.rows_of([entry.path])
                assert row is not None
                again[row] = entry
        held, peak = (size / count for size in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
    assert held < 140 and peak < 200, (held, peak)  # two sets of columns
    assert list(again.copied()) == list(files.copied())
    assert again.rows_of(["train/other.JPEG", "train/n00000003/n00000003_3.JPEG"]) == [None, 3]


@pytest.mark.slow
def test_the_check_of_a_copy_takes_at_most_150_bytes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 20_000
    for module in (record_keys, verify_folder):  # what is worked on at a time is as small a share as in a large copy
        monkeypatch.setattr(module, "_CHUNK", 256)
    names = [f"train/n{number % 20:08d}/n{number % 20:08d}_{number}.JPEG" for number in range(count)]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(tmp_path / name, os.O_CREAT))
    names.remove(names[7])
    write_record(tmp_path, {"complete": True, "options": {}}, (CopiedFile(name, "copied", 0, 1, 0, 0) for name in names))
    del names
    monkeypatch.setattr(verify_folder, "_problem", lambda *_, **__: None)
    headrace.verify(tmp_path, workers=1)  # what is imported and kept is none of a file
    listed = list[int]()
    tracemalloc.start()
    try:
        result = headrace.verify(tmp_path, workers=1, on_listed=listed.append)
        peak = tracemalloc.get_traced_memory()[1] / count
    finally:
        tracemalloc.stop()
    assert [problem.file for problem in result.problems] == ["train/n00000007/n00000007_7.JPEG"]
    assert sum(listed) == count - 1 + count, "those of the record, and those of the tree"
    assert result.records == count - 1
    assert peak < 150, peak


def test_progress_is_reported_while_a_tree_is_listed_and_a_copy_continues(tree: Path, tmp_path: Path) -> None:
    calls = list[tuple[object, ...]]()

    def copy() -> list[tuple[object, ...]]:
        calls.clear()
        pack(
            tree,
            tmp_path / "copy",
            layout="folder",
            on_listed=lambda files: calls.append(("listed", files)),
            on_start=lambda files: calls.append(("start", files)),
            on_progress=lambda files, size: calls.append((files, size > 0)),
        )
        return calls

    assert copy()[:2] == [("listed", 9), ("start", 9)]
    assert copy() == [("listed", 9), ("start", 9), (9, False)]


def test_the_files_of_a_tree_come_by_folder_and_name(tmp_path: Path) -> None:
    for name in ("b/2.jpg", "b/10.jpg", "b/c/1.jpg", "b-a/1.jpg", "z.jpg", "a.jpg", "b/.hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "b/pipe.jpg")
    (tmp_path / "b/dangling.jpg").symlink_to("nowhere")
    (tmp_path / "b/linked").symlink_to("c")
    (tmp_path / "b/up").symlink_to("..")
    (tmp_path / "b/other.jpg").symlink_to("2.jpg")
    (tmp_path / "b/passwd").symlink_to("/etc/passwd")
    source = SourceTree(tmp_path)
    found = [(file.path, file.leads_out) for file in source.files()]
    assert found == [
        ("a.jpg", False),
        ("z.jpg", False),
        ("b/.hidden", False),
        ("b/10.jpg", False),
        ("b/2.jpg", False),
        ("b/other.jpg", False),
        ("b/passwd", True),
        ("b/c/1.jpg", False),
        ("b-a/1.jpg", False),
    ]
    assert sorted(link.name for link in source.folder_links) == ["linked", "up"]


def test_a_stopped_copy_of_a_tree_that_has_changed_continues(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "whole", layout="folder")
    pack(tree, tmp_path / "copy", layout="folder")
    record = tmp_path / "copy" / RECORD
    lines = record.read_text().splitlines(keepends=True)
    header = json.loads(lines[0]) | {"complete": False}
    record.write_text("".join([json.dumps(header) + "\n", *reversed(lines[1:]), '{"path": "unfini']))
    (tree / "train/cat/1.jpg").rename(tree / "train/cat/0.jpg")
    pack(tree, tmp_path / "copy", layout="folder")
    names = list(read_record(tmp_path / "copy")[1])
    assert "train/cat/0.jpg" in names and "train/cat/1.jpg" not in names
    assert (
        read_record(tmp_path / "copy")[1]["train/cat/0.jpg"].crc32c
        == read_record(tmp_path / "whole")[1]["train/cat/1.jpg"].crc32c
    )
