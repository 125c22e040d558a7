"""Sidecar files (masks, captions, second images): kept by pack, counted by inspect, checked by verify."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import tarfile
from pathlib import Path

import headrace
import numpy as np
import pytest
import safetensors.numpy
from containers import write_tar
from headrace.cli.main import main
from headrace.datasets.records.keys import Keys
from headrace.datasets.records.sidecar_files import SidecarFiles
from headrace.datasets.shards import index, tar
from headrace.errors import FormatError, SourceError
from headrace.inspection.inspect import inspect_dataset
from headrace.packing import pack
from PIL import Image
from sample_images import jpeg

GOLDEN = Path(__file__).parents[1] / "golden" / "extras"
MASK, CAPTION = b"\x89PNG\r\n\x1a\n mask", "ein Bär".encode()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def members_of(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for info in archive:
                file = archive.extractfile(info)
                assert file is not None
                assert info.name not in found
                found[info.name] = file.read()
    return found


def sample(number: int) -> list[tuple[str, bytes]]:
    key = f"{number:04d}"
    return [
        (f"{key}.seg.png", MASK + bytes([number])),
        (f"{key}.jpg", jpeg(40, 30, number)),
        (f"{key}.right.jpg", jpeg(40, 30, 100 + number)),
        (f"{key}.cls", str(number % 3).encode()),
        (f"{key}.TXT", CAPTION),
    ]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    plain = [("0007.jpg", jpeg(33, 21, 7)), ("0007.cls", b"1"), ("0007.json", b'{"a": 1}')]
    stray = [("readme.txt", b"no image"), ("zz.cls", b"1")]
    return write_tar(tmp_path / "a.tar", [*(one for i in range(6) for one in sample(i)), *plain, *stray])


def test_sidecar_files_are_packed_and_read_back(source: Path, tmp_path: Path) -> None:
    result = pack(source, tmp_path / "out", keep_bytes=True)
    assert (result.records, result.errors) == (7, 2)
    assert result.extras == {"right.jpg": 6, "seg.png": 6, "txt": 6}
    found = members_of(tmp_path / "out")
    assert list(found)[:5] == ["0000.jpg", "0000.cls", "0000.seg.png", "0000.right.jpg", "0000.txt"]
    assert len(found) == 6 * 5 + 3 and found["0007.json"] == b'{"a": 1}'
    for number in range(6):
        assert {name.lower(): data for name, data in sample(number)}.items() <= found.items()
    lines = [json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
    assert [(line["file"], line["reason"]) for line in lines] == [("readme.txt", "no image"), ("zz.cls", "no image")]
    packed = headrace.open(tmp_path / "out")
    assert dict(packed.read_extras(3)) == {name: found[f"0003.{name}"] for name in ("seg.png", "right.jpg", "txt")}
    assert packed.read_extras(6) == [] and packed.read_json(6) == b'{"a": 1}'
    assert headrace.verify(tmp_path / "out", decode=True).ok
    for dataset, strays in ((packed, 0), (headrace.open(source), 2)):
        seen = inspect_dataset(dataset)
        assert (seen.extras, seen.strays) == (result.extras, strays)
    pack(packed, tmp_path / "again", keep_bytes=True)
    assert members_of(tmp_path / "again") == found


@pytest.mark.filterwarnings("ignore")  # webdataset leaves its files to the garbage collector
def test_webdataset_reads_sidecar_files(source: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    pack(source, tmp_path / "out")
    urls = [str(path) for path in (tmp_path / "out").glob("*.tar")]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))
    assert [one.get("seg.png") for one in samples] == [MASK + bytes([i]) for i in range(6)] + [None]
    assert samples[2]["txt"] == CAPTION and samples[2]["cls"] == b"2"


def test_the_bytes_do_not_depend_on_shards_order_or_jobs(source: Path, tmp_path: Path) -> None:
    options = {"shard_size": 1 << 16, "shuffle": 3, "train_ratio": 0.7}
    pack(source, tmp_path / "one", workers=1, **options)
    for number in (1, 0):
        pack(source, tmp_path / "two", unit=(number, 2), **options)
    files = {path.relative_to(tmp_path / "one"): path.read_bytes() for path in (tmp_path / "one").rglob("*.*")}
    assert files == {path.relative_to(tmp_path / "two"): path.read_bytes() for path in (tmp_path / "two").rglob("*.*")}
    train = headrace.open(tmp_path / "one" / "train")
    for record, key in enumerate(train.table.keys):
        if key != "0007":
            assert dict(train.read_extras(record))["seg.png"] == MASK + bytes([int(key)])


def test_conflicting_or_unsafe_sidecar_names_are_changed(tmp_path: Path) -> None:
    """The image's extension follows from its bytes and is the name of another member."""
    other = jpeg(20, 20, 9)
    members = [("1.jpeg", jpeg(30, 30, 1)), ("1.jpg", other), ("1.a\nb", b"x"), ("1.cls", b"0"), ("1.", b"nameless")]
    source = write_tar(tmp_path / "a.tar", members)
    for _ in range(2):  # the second time from the cached index
        assert headrace.open(source).table.sidecars is not None
    result = pack(source, tmp_path / "out", keep_bytes=True)
    assert result.errors == 1  # the member without a name
    assert members_of(tmp_path / "out") == {"1.jpg": members[0][1], "1.cls": b"0", "1.other.jpg": other, "1.a%0Ab": b"x"}
    assert headrace.verify(tmp_path / "out").ok


def test_sidecar_files_in_an_archive_of_class_folders(tmp_path: Path) -> None:
    members = [("cat/1.jpg", jpeg(30, 30, 1)), ("cat/1.txt", b"a cat"), ("cat/notes.md", b"?"), ("dog/2.jpg", jpeg(30, 30, 2))]
    result = pack(write_tar(tmp_path / "a.tar", members), tmp_path / "out")
    assert (result.records, result.errors, result.extras) == (2, 1, {"txt": 1})
    assert members_of(tmp_path / "out")["cat/1.txt"] == b"a cat"


def test_resizing_with_sidecar_images_is_refused_unless_dropped(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SourceError, match=r"right\.jpg.*would not fit"):
        pack(source, tmp_path / "out", max_side=20)
    assert not (tmp_path / "out").exists()
    assert main(["pack", str(source), str(tmp_path / "out"), "--max-side", "20", "--extras", "drop"]) == 0
    assert set(members_of(tmp_path / "out")) == {f"000{i}.{end}" for i in (*range(6), 7) for end in ("jpg", "cls")} | {
        "0007.json"
    }
    assert "beside" not in capsys.readouterr().out
    assert main(["pack", str(source), str(tmp_path / "all")]) == 0
    assert "seg.png 6" in capsys.readouterr().out


def test_framing_bytes_are_counted_and_printed(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Framing is everything but images, JSON and masks; it is printed only for small images."""
    assert main(["pack", str(source), str(tmp_path / "small"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    kept = sum(len(data) for name, data in members_of(tmp_path / "small").items() if not name.endswith(".cls"))
    assert document["framing_bytes"] == document["bytes"] - kept > 0
    assert main(["pack", str(source), str(tmp_path / "small")]) == 0
    share = document["framing_bytes"] / document["bytes"]
    each = document["framing_bytes"] / document["records"]
    assert f"({100 * share:.0f} %) are tar headers, labels and padding" in (printed := capsys.readouterr().out)
    assert f" {each:,.0f} bytes a record" in printed
    (tmp_path / "in/a").mkdir(parents=True)
    (tmp_path / "in/a/x.jpg").write_bytes(jpeg(400, 300, 1))
    assert main(["pack", str(tmp_path / "in"), str(tmp_path / "large")]) == 0
    assert "headers" not in capsys.readouterr().out


def test_verify_finds_wrong_sidecar_offsets(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "out")
    path = tmp_path / "out" / index_name()
    columns = index.read_columns(path)
    assert columns.sidecars is not None
    moved = dataclasses.replace(columns.sidecars, offset=columns.sidecars.offset + 512)
    data = index.serialized(dataclasses.replace(columns, sidecars=moved))
    manifest = tmp_path / "out" / "headrace.json"
    old, new = hashlib.sha256(path.read_bytes()).hexdigest(), hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    manifest.write_text(manifest.read_text().replace(old, new))
    problems = headrace.verify(tmp_path / "out").problems
    assert problems and all("no member" in problem.detail for problem in problems)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"start": [0, 2, 1]}, "extra_start"),
        ({"start": [0, 1]}, "rows"),
        ({"name": [0, 7]}, "extra_name"),
        ({"size": [1]}, "length"),
    ],
)
def test_inconsistent_sidecar_columns_are_refused(tmp_path: Path, changed: dict[str, list[int]], words: str) -> None:
    columns = golden_columns()
    assert columns.sidecars is not None
    arrays = {name: np.array(values) for name, values in changed.items()}
    lying = dataclasses.replace(columns, sidecars=dataclasses.replace(columns.sidecars, **arrays))
    (tmp_path / "index.safetensors").write_bytes(index.serialized(lying))
    with pytest.raises(FormatError, match=words):
        index.read_columns(tmp_path / "index.safetensors")


def index_name() -> str:
    return "index.safetensors"


def golden_columns() -> index.Columns:
    keys = Keys.of(["a", "b"])
    return index.Columns(
        key_start=keys.start,
        label=np.array([0, 1]),
        offset=np.array([512, 4096]),
        size=np.array([4, 4]),
        height=np.array([3, 5], dtype=np.int32),
        shard=np.zeros(2, dtype=np.int32),
        width=np.array([4, 6], dtype=np.int32),
        crc32c=np.array([0x12345678, 0xE3069283], dtype=np.uint32),
        keys=keys.blob,
        sidecars=SidecarFiles.of([[("seg.png", 2560, 3), ("txt", 3584, 2)], []]),
    )


def test_golden_bytes() -> None:
    """Changing these files changes the format, as with those in test_shards_format.py."""
    members = [("a.jpg", b"\xff\xd8\xff\xd9"), ("a.cls", b"0"), ("a.seg.png", b"png"), ("a.txt", b"hi")]
    shard = b"".join(tar.member(name, data) for name, data in members)
    columns = golden_columns()
    assert columns.sidecars is not None
    for name, at, size in columns.sidecars.members(0):
        assert shard[at : at + size] == dict(members)[f"a.{name}"]
    assert shard == (GOLDEN / "record.tar").read_bytes()
    assert index.serialized(columns) == (GOLDEN / "index.safetensors").read_bytes()
    read = index.read_columns(GOLDEN / "index.safetensors").sidecars
    assert read is not None and read.members(0) == columns.sidecars.members(0) and read.members(1) == []
    loaded = safetensors.numpy.load((GOLDEN / "index.safetensors").read_bytes())
    assert loaded["extra_names"].tobytes() == b"seg.png\ntxt\n" and loaded["extra_start"].tolist() == [0, 2, 2]


def test_masks_of_a_packed_dataset(tmp_path: Path) -> None:
    gray = io.BytesIO()
    Image.fromarray(np.full((30, 40), 7, dtype=np.uint8)).save(gray, "PNG")
    members = [
        (f"{i}.{end}", data)
        for i in range(4)
        for end, data in (("jpg", jpeg(40, 30, i)), ("seg.png", gray.getvalue()), ("cls", b"0"))
    ]
    pack(write_tar(tmp_path / "a.tar", members), tmp_path / "out")
    loader = headrace.Loader(
        headrace.open(tmp_path / "out"), 2, headrace.transforms.Resize((20, 20)), mask="seg.png", output="numpy", threads=1
    )
    batches = list(loader)
    assert len(batches) == 2
    for images, labels, masks in batches:
        assert images.shape == (2, 20, 20, 3) and labels.tolist() == [0, 0]
        assert masks.shape == (2, 20, 20) and (masks == 7).all()
