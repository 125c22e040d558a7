"""The status of an image is a function of its bytes, never of the crop, for files of every format, whole and damaged."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import HeadraceError
from headrace.images.decode import reason
from headrace.packing import pack
from sample_images import jpeg, photograph

FILES = 60  # damaged files of each format

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "PNG": ("RGB", {}),
    "PNG of 16 bits": ("I;16", {}),
    "PNG with a palette": ("P", {}),
    "WebP": ("RGB", {"quality": 80}),
    "WebP without loss": ("RGBA", {"lossless": True}),
    "GIF": ("P", {}),
    "TIFF": ("RGB", {}),
    "TIFF with LZW": ("RGB", {"compression": "tiff_lzw"}),
    "TIFF with Deflate": ("L", {"compression": "tiff_adobe_deflate"}),
    "TIFF with JPEG": ("RGB", {"compression": "jpeg"}),
    "BMP": ("RGB", {}),
    "BMP with a palette": ("P", {}),
    "PPM": ("RGB", {}),
    "PGM": ("L", {}),
    "progressive JPEG": ("RGB", {"progressive": True}),
    "CMYK JPEG": ("CMYK", {}),
}


def encoded(name: str) -> bytes:
    mode, options = FORMATS[name]
    file = io.BytesIO()
    kind = next(
        kind for kind in ("PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "JPEG") if kind in name.upper().replace("PGM", "PPM")
    )
    kind = "TIFF" if name.startswith("TIFF") else kind
    photograph(61, 47, seed=3).convert("L" if mode == "I;16" else mode).convert(mode).save(file, kind, **options)
    return file.getvalue()


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut the file, or change some of its bytes."""
    if rng.random() < 0.3:
        return data[: int(rng.integers(len(data)))]
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        changed[int(rng.integers(len(data)))] = int(rng.integers(256))
    return bytes(changed)


def statuses(data: bytes, rng: np.random.Generator) -> set[int]:
    """The statuses of ten crops of one file, of which three lie at its edges."""
    corners = [(0, 0, 61, 47), (60, 46, 1, 1), (0, 46, 61, 1)]
    starts = [(int(rng.integers(61)), int(rng.integers(47))) for _ in range(7)]
    boxes = corners + [(x, y, int(rng.integers(1, 62 - x)), int(rng.integers(1, 48 - y))) for x, y in starts]
    out = np.zeros((len(boxes), 8, 8, 3), dtype=np.uint8)
    return {int(status) for status in headrace.decode_into([data] * len(boxes), out, boxes=boxes)}


@pytest.mark.parametrize("name", FORMATS)
def test_every_crop_of_a_file_has_one_status(name: str) -> None:
    rng = np.random.default_rng(len(name))
    data = encoded(name)
    assert statuses(data, rng) == {0}
    refused = 0
    for _ in range(FILES):
        bad = damaged(data, rng)
        found = statuses(bad, rng)
        # A changed size makes boxes that lie outside of the image: that is a fault of the box, and depends on it.
        found -= {status for status in found if "crop box" in reason(status)}
        assert len(found) <= 1, (found, bad)
        refused += found != {0}
    assert refused > FILES // 10


def test_a_lossless_jpeg_is_refused_by_pack_and_never_reaches_training(tmp_path: Path) -> None:
    source = tmp_path / "source" / "a"
    source.mkdir(parents=True)
    (source / "good.jpg").write_bytes(jpeg(64, 48, 1))
    data = jpeg(64, 48, 2)
    (source / "lossless.jpg").write_bytes(data.replace(b"\xff\xc0", b"\xff\xc3", 1))
    with pytest.raises(HeadraceError, match=r"lossless\.jpg"):
        pack(source.parent, tmp_path / "stopped", undecodable="stop")
    assert pack(source.parent, tmp_path / "packed", undecodable="skip").records == 1
    listed = [json.loads(line) for line in (tmp_path / "packed" / "errors.jsonl").read_text().splitlines()]
    assert len(listed) == 1 and "lossless" in json.dumps(listed[0])
    assert headrace.verify(tmp_path / "packed", decode=True).ok
