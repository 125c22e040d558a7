"""Gray of 16 bits becomes 8 bits by a stated rule, and pictures with more than 8 bits are named."""

from __future__ import annotations

from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.cli.main import main
from headrace.errors import DecodeError, UsageError
from headrace.inspection.inspect import inspect_dataset
from headrace.transforms import CenterCrop
from PIL import Image

VALUES = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000


def folder(root: Path, ending: str, pixels: np.ndarray) -> Path:
    path = root / "images" / "x" / f"a.{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return root / "images"


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_gray_of_16_bits_keeps_its_upper_8_bits_unless_it_is_to_be_clipped(ending: str, tmp_path: Path) -> None:
    root = folder(tmp_path, ending, VALUES)
    found = {}
    for depth in ("scale", "clip"):
        with headrace.eval_loader(root, 1, CenterCrop(8), output="numpy", depth=depth) as loader:
            found[depth] = next(iter(loader))[0][0, :, :, 0].astype(int)
    assert np.abs(found["scale"] - (VALUES >> 8)).max() <= 1  # a PGM is scaled by its largest value, and rounded
    assert np.array_equal(found["clip"], np.minimum(VALUES, 255))
    assert np.abs(np.asarray(headrace.open(root)[0][0])[:, :, 0].astype(int) - (VALUES >> 8)).max() <= 1
    with pytest.raises(UsageError, match="depth must be 'scale' or 'clip'"):
        headrace.Loader(root, 1, CenterCrop(8), depth="white")  # type: ignore[call-overload]


def test_inspect_and_pack_name_pictures_of_16_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder(tmp_path, "png", VALUES)
    assert inspect_dataset(root).samples == {"16-bit": 1}
    assert main(["inspect", str(root)]) == 0
    assert "16-bit 1; a Loader keeps the upper 8 bits" in " ".join(capsys.readouterr().out.split())
    assert main(["pack", str(root), str(tmp_path / "packed")]) == 0
    assert "16-bit 1; a Loader keeps the upper 8 bits" in " ".join(capsys.readouterr().out.split())
    assert headrace.pack(root, tmp_path / "as-jpeg", quality=95).records == 1
    assert np.asarray(headrace.open(tmp_path / "as-jpeg")[0][0]).mean() == pytest.approx((VALUES >> 8).mean(), abs=2)


def test_floating_point_pictures_are_named(tmp_path: Path) -> None:
    root = folder(tmp_path, "tif", VALUES.astype(np.float32))
    assert inspect_dataset(root).samples == {"floating-point": 1}
    with headrace.eval_loader(root, 1, CenterCrop(8), output="numpy") as loader, pytest.raises(DecodeError) as caught:
        list(loader)
    assert "floating-point values" in (caught.value.hint or "")
    with pytest.raises(DecodeError, match="floating-point numbers"):
        headrace.open(root)[0]
