"""Other readers of packed shards: the `webdataset` package (skipped if not installed) and tar."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from headrace.packing import pack
from sample_images import pixels


@pytest.mark.filterwarnings("ignore")  # webdataset leaves its files to the garbage collector
def test_webdataset_reads_every_sample(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    source = image_folder(classes=3, per_class=6)
    (source / "class_0" / "image_000.jpg").rename(source / "class_0" / "v1.2.image.JPEG")
    pack(source, tmp_path / "kept", keep_bytes=True, shard_size=100_000)
    pack(source, tmp_path / "marked", shard_size=100_000)
    expected = {path.read_bytes(): int(path.parent.name[-1]) for path in source.rglob("*.[jJ]*")}
    assert len(expected) == 18

    def samples(name: str) -> list[dict[str, object]]:
        urls = [str(path) for path in sorted((tmp_path / name).glob("*.tar"))]
        assert len(urls) > 1
        return list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))

    kept, marked = samples("kept"), samples("marked")
    assert {sample["jpg"]: int(sample["cls"]) for sample in kept} == expected
    for old, new in zip(kept, marked, strict=True):
        assert (old["__key__"], old["cls"]) == (new["__key__"], new["cls"])
        assert np.array_equal(pixels(old["jpg"]), pixels(new["jpg"]))  # type: ignore[arg-type]
    assert "class_0/v1%2E2%2Eimage" in {sample["__key__"] for sample in kept}


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar")
def test_tar_extracts_every_sample(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=2)
    (source / "class_0" / ("long " + "ä" * 90 + ".jpg")).write_bytes((source / "class_0" / "image_000.jpg").read_bytes())
    pack(source, tmp_path / "out", keep_bytes=True)
    (tmp_path / "extracted").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "out" / "shard-000000.tar"], cwd=tmp_path / "extracted", check=True)
    for path in source.rglob("*.jpg"):
        assert (tmp_path / "extracted" / path.relative_to(source)).read_bytes() == path.read_bytes()
    assert (tmp_path / "extracted" / "class_1" / "image_001.cls").read_text() == "1"
