"""Lists and tables of images: .lst, .csv, .tsv and .parquet, well-formed and malformed."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import headrace
import numpy as np
import pytest
from containers import (
    IMAGES,
    contents,
)
from headrace.cli.main import main
from headrace.datasets.records import keys as record_keys
from headrace.datasets.sources import table
from headrace.datasets.sources.folders.folder import change_of_file
from headrace.errors import FormatError, HeadraceError, MissingDependencyError, SourceError
from headrace.packing import pack
from headrace.packing.planning import listing, pack_plan
from headrace.packing.planning.options import PackOptions


def test_lst_gives_paths_and_labels(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = image_folder(classes=2, per_class=2)
    names = ["class_1/image_001.jpg", "./class_0//image_000.jpg"]
    (root / "a.lst").write_text("".join(f"{i}\t{1 - i}.000000\t{name}\n" for i, name in enumerate(names)))
    assert headrace.open(root / "a.lst").table.label.tolist() == [1, 0]
    elsewhere = tmp_path / "b.lst"
    elsewhere.write_bytes((root / "a.lst").read_bytes())
    with pytest.raises(SourceError, match="does not exist"):
        headrace.open(elsewhere)
    result = pack(elsewhere, tmp_path / "out", root=root, keep_bytes=True)
    assert result.records == 2
    assert headrace.open(elsewhere, root=root).read(0) == (root / names[0]).read_bytes()
    assert main(["inspect", str(elsewhere), "--root", str(root)]) == 0
    packed = headrace.open(tmp_path / "out")
    assert list(packed.table.keys) == ["class_1/image_001", "class_0/image_000"]
    assert packed.read(0) == (root / names[0]).read_bytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0\t1\n", "line 1"),
        ("0\t1\t2\ta.jpg\n", "2 labels"),
        ("0\t1.5\ta.jpg\n", "whole number"),
        ("0\t1\ta\0.jpg\n", "line 1: the path holds a NUL"),
        ("0\tinf\ta.jpg\n", "whole number"),
        ("0\tcat\ta.jpg\n", "whole number"),
        ("\n", "lists no images"),
    ],
)
def test_malformed_lst_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.lst").write_text(text)
    with pytest.raises(HeadraceError, match=words):
        headrace.open(tmp_path / "a.lst")


@pytest.mark.parametrize(("name", "line"), [("a.lst", "0\t1\t{}"), ("a.csv", "path,label\n{},1")])
def test_a_path_longer_than_any_file_has_is_an_error_in_words(name: str, line: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(line.format("a" * 5000))
    with pytest.raises(SourceError, match="does not exist"):
        headrace.open(tmp_path / name)


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("named", [True, False])
def test_tables_give_paths_and_labels(image_folder: Callable[..., Path], tmp_path: Path, kind: str, named: bool) -> None:
    root = image_folder(classes=2, per_class=2)
    names = ["class_1/image_001.jpg", "class_0/image_000.jpg", "class_0/image_001.jpg"]
    labels = ["dog", "cat", ""] if named else ["1", "0", ""]
    path = tmp_path / f"list.{kind}"
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        values = [label if named else int(label) if label else None for label in labels]
        parquet.write_table(arrow.table({"n": [1, 2, 3], "Image": names, "class": values}), path)
    else:
        mark = "\t" if kind == "tsv" else ","
        rows = [
            ["n", "Image", "class"],
            *([str(i), name, label] for i, (name, label) in enumerate(zip(names, labels, strict=True))),
        ]
        path.write_text("\ufeff" + "\r\n".join(mark.join(row) for row in rows) + "\r\n\r\n")
    result = pack(path, tmp_path / "out", root=root, keep_bytes=True)
    assert (result.records, result.errors) == (2, 1)
    packed = headrace.open(tmp_path / "out")
    assert packed.classes == (("cat", "dog") if named else ("0", "1"))
    assert contents(packed) == [((root / name).read_bytes(), label) for name, label in zip(names[:2], (1, 0), strict=True)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image,size\na.jpg,1\n", "no column of labels"),
        ("label,size\n1,1\n", "no column of paths"),
        ("image,label\na.jpg\n", "line 2"),
        ("image,label\n", "lists no images"),
        ("", "no column"),
        ("image,label\nmissing.jpg,1\n", "does not exist"),
        ("image,label\na.jpg,99999999999\n", "beyond"),
        ("image,label\na.jpg,-1\n", "a.jpg has the label '-1'"),
        ("image,label\na.jpg,1\nb\0.jpg,1\n", "NUL"),
        ("image,label\na.jpg,0.5\n", "whole number"),
        (f'image,label\na.jpg,"{"1" * 200_000}\n', "line 2 is longer than"),
    ],
)
def test_malformed_tables_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.jpg").write_bytes(IMAGES[0])
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(HeadraceError, match=words):
        headrace.open(tmp_path / "list.csv")
    (tmp_path / "list.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(HeadraceError, match="Parquet"):
        headrace.open(tmp_path / "list.parquet")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_labels_written_as_floats_are_integers(tmp_path: Path, kind: str) -> None:
    """pandas writes a column of integers with a missing value as floats. Taken for names, 10.0 would sort before 2.0."""
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(IMAGES[i])
    if kind == "csv":
        (tmp_path / "list.csv").write_text("path,label\n0.jpg,10.0\n1.jpg,\n2.jpg,2.0\n")
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = {"path": ["0.jpg", "1.jpg", "2.jpg"], "label": [10.0, float("nan"), 2.0], "bytes": IMAGES[:3]}
        parquet.write_table(arrow.table(columns), tmp_path / "list.parquet")
    assert headrace.open(tmp_path / f"list.{kind}").table.label.tolist() == [10, -1, 2]


def test_a_row_of_any_number_of_lines_is_refused(tmp_path: Path) -> None:
    """Each line is short enough, and a row of all of them took 23 times the size of the file."""
    file = tmp_path / "list.csv"
    for text in ('"\n",' + "bb," * 20_000) * 200, "path,label\n" + ('"\n",' + "bb," * 20_000) * 200:
        file.write_text(text)
        with pytest.raises(FormatError, match="a row has more than 100 lines"):
            headrace.open(file)
    (tmp_path / "x\ny.jpg").touch()
    file.write_text("path,label,text\n" + '"x\ny.jpg",0,"a\nb"\n' * 200)
    assert len(headrace.open(file)) == 200


@pytest.mark.parametrize("kind", ["lst", "csv", "names.csv", "parquet"])
def test_the_listing_takes_at_most_150_bytes_a_record(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 20_000
    names = [f"train/n{number % 20:08d}/n{number % 20:08d}_{number}.JPEG" for number in range(count)]
    (tmp_path / names[0]).parent.mkdir(parents=True)
    (tmp_path / names[0]).write_bytes(IMAGES[0])
    path = tmp_path / f"list.{kind}"
    if kind == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"path": names, "label": [number % 20 for number in range(count)]}), path)
    elif kind == "lst":
        path.write_text("".join(f"{number}\t{number % 20}\t{name}\n" for number, name in enumerate(names)))
    else:
        word = "class " if kind == "names.csv" else ""
        path.write_text("path,label\n" + "".join(f"{name},{word}{number % 20}\n" for number, name in enumerate(names)))
    del names
    for module in (record_keys, pack_plan):  # what is worked on at a time is as small a share of the whole as in a long list
        monkeypatch.setattr(module, "_CHUNK", 256)
    monkeypatch.setattr(listing, "_CHUNK", 1000)
    monkeypatch.setattr(table, "_ROWS", 256)
    monkeypatch.setattr(listing, "THREADS", 1)
    listing.list_records(headrace.open(path), PackOptions())  # what is imported and kept is none of a record
    tracemalloc.start()
    try:
        found = listing.list_records(headrace.open(path), PackOptions())
        pack_plan.make_pack_plan(found, PackOptions(), None)
        held, peak = (size / count for size in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
    assert len(found) == count
    if kind != "names.csv":
        assert found.labels[:].tolist() == [number % 20 for number in range(count)]
    assert held < 150 and peak < 150, (held, peak)


@pytest.mark.parametrize("choice", ["skip", "rename"])
def test_a_duplicate_in_a_long_list_takes_little_memory(
    choice: Literal["skip", "rename"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 20_000
    names = [f"n{number % 20:08d}/n{number % 20:08d}_{number}.JPEG" for number in range(count)]
    for name in names[:1]:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(IMAGES[0])
    path = tmp_path / "list.csv"
    path.write_text("path,label\n" + "".join(f"{name},0\n" for name in [*names, names[7], names[5], names[7]]))
    monkeypatch.setattr(record_keys, "_CHUNK", 256)
    monkeypatch.setattr(listing, "_CHUNK", 1000)
    monkeypatch.setattr(listing, "THREADS", 1)
    opened = headrace.open(path)
    tracemalloc.start()
    try:
        found = listing.list_records(opened, PackOptions(duplicates=choice))
        peak = tracemalloc.get_traced_memory()[1] / count
    finally:
        tracemalloc.stop()
    keys = [name.removesuffix(".JPEG") for name in names]
    if choice == "skip":
        assert (found.keys[:], found.renamed) == (keys, 0)
        assert [(one.file, one.reason) for one in found.rejected] == [(names[at], "duplicate") for at in (7, 5, 7)]
    else:
        assert (found.keys[:], found.renamed) == ([*keys, f"{keys[7]}~2", f"{keys[5]}~2", f"{keys[7]}~3"], 3)
    assert peak < 120, peak  # beside the list's own


def test_a_renamed_key_is_no_other_records(tmp_path: Path) -> None:
    names = ["a/x.jpg", "a/x~2.jpg", "a/x.jpg", "a/x~2.jpg", "a/x~2~2.jpg"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.jpg").write_bytes(IMAGES[0])
    path = tmp_path / "list.csv"
    path.write_text("path,label\n" + "".join(f"{name},0\n" for name in names))
    found = listing.list_records(headrace.open(path), PackOptions(duplicates="rename"))
    assert found.keys[:] == ["a/x", "a/x~2", "a/x~3", "a/x~2~3", "a/x~2~2"]
    with pytest.raises(SourceError, match="two records have the key 'a/x'"):
        listing.list_records(headrace.open(path), PackOptions())


@pytest.mark.parametrize("kind", ["lst", "csv", "parquet"])
def test_progress_is_reported_while_a_list_is_read(kind: str, image_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = image_folder(classes=2, per_class=3)
    names = [f"class_{number % 2}/image_{number // 2:03d}.jpg" for number in range(6)]
    path = root / f"list.{kind}"
    if kind == "parquet":
        path = _parquet(root, names, list(range(6)))
    elif kind == "lst":
        path.write_text("".join(f"{number}\t{number}\t{name}\n" for number, name in enumerate(names)))
    else:
        path.write_text("path,label\n" + "".join(f"{name},{number}\n" for number, name in enumerate(names)))
    opened, packed = list[int](), list[int]()
    headrace.open(path, on_listed=opened.append)
    headrace.open(path, root=root, on_listed=opened.append)
    headrace.pack(path, tmp_path / "out", on_listed=packed.append)
    assert opened == [6, 6]
    assert packed == [6, 6], "its lines, and its files"


def test_files_of_a_list_are_looked_at_as_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/1.jpg", "a/2.jpg", "a/l\u00e4ngs.jpg", "a/\udce9.jpg"):
        (tmp_path / name).write_bytes(IMAGES[0])
    os.utime(tmp_path / "a/2.jpg", ns=(5, -7_000_000_003))
    (tmp_path / "a/link.jpg").symlink_to("1.jpg")
    (tmp_path / "a/dangling.jpg").symlink_to("gone")
    whole = str(tmp_path / "a/1.jpg")
    names = [
        "a/1.jpg",
        "a/2.jpg",
        "a/l\u00e4ngs.jpg",
        "a/\udce9.jpg",
        "a/link.jpg",
        "a/dangling.jpg",
        "gone.jpg",
        "a/../a/1.jpg",
        whole,
    ]
    lines = "path,label\n" + "".join(f"{name},0\n" for name in names)
    (tmp_path / "list.csv").write_bytes(lines.encode("utf-8", "surrogateescape"))
    monkeypatch.setattr(listing, "_CHUNK", 2)
    found = listing.list_records(headrace.open(tmp_path / "list.csv"), PackOptions(duplicates="rename"))
    paths = [tmp_path / name for name in names]
    there = [path.stat() if path.exists() else None for path in paths]
    assert found.sizes[:].tolist() == [0 if facts is None else facts.st_size for facts in there]
    assert found.changed[:].tolist() == [0 if facts is None else change_of_file(facts) for facts in there]


def test_a_list_may_name_files_by_absolute_paths(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = image_folder(classes=2, per_class=1)
    path = tmp_path / "list.csv"
    path.write_text(f"path,label\n{root}/class_0/image_000.jpg,0\nclass_1/image_000.jpg,1\n")
    found = headrace.open(path, root=root)
    assert list(found.table.files) == [f"{root}/class_{number}/image_000.jpg" for number in range(2)]
    assert found.read(1) == (root / "class_1/image_000.jpg").read_bytes()


def _parquet(folder: Path, paths: object, labels: object) -> Path:
    """A Parquet file of these columns, beside the image 0.jpg."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (folder / "0.jpg").write_bytes(IMAGES[0])
    parquet.write_table(arrow.table({"path": paths, "label": labels}), folder / "list.parquet")
    return folder / "list.parquet"


def test_parquet_values_that_are_no_names_are_errors_in_words(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    offsets = arrow.py_buffer(np.array([0, 3], dtype=np.int32).tobytes())
    not_utf8 = arrow.Array.from_buffers(arrow.utf8(), 1, [None, offsets, arrow.py_buffer(b"\xff\xfe\xfd")])
    for labels in (arrow.array([1 << 62], arrow.timestamp("us")), [[1, 2]], [{"a": 1}], [b"cat"], not_utf8):
        with pytest.raises(FormatError, match=r"column 'label' holds|cannot? be read|can be read"):
            headrace.open(_parquet(tmp_path, ["0.jpg"], labels))


def test_a_small_parquet_file_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = _parquet(tmp_path, ["0.jpg" + "/" * 100_000] * 100, [0] * 100)
    assert long.stat().st_size < 20_000
    with pytest.raises(FormatError, match=r"holds a text of 97\.7 KiB"):
        headrace.open(long)
    monkeypatch.setattr(table, "_ALWAYS_BYTES", 1 << 22)
    with pytest.raises(FormatError, match=r"its rows take over \d.* and over 256 times the file's size"):
        headrace.open(_parquet(tmp_path, ["0.jpg"] * 100_000, [0] * 100_000))


def test_parquet_needs_a_pyarrow_that_runs_no_code_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow")
    path = _parquet(tmp_path, ["0.jpg"], [0])
    monkeypatch.setattr(arrow, "__version__", "14.0.0")
    with pytest.raises(MissingDependencyError, match=r"pyarrow 14\.0\.0 runs code that a Parquet file brings"):
        headrace.open(path)
    monkeypatch.setattr(arrow, "__version__", "14.0.1.dev3")
    assert len(headrace.open(path)) == 1
