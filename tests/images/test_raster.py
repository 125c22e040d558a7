"""Pillow is opened for raster formats only: no file of a dataset starts Ghostscript."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace.errors import DecodeError
from headrace.images.header import read_header
from headrace.images.raster import RASTER_FORMATS, open_raster
from headrace.images.with_pillow import decode_with_pillow
from headrace.inspection.inspect import inspect_dataset
from PIL import EpsImagePlugin, Image

PACKAGE = Path(headrace.__file__).parent
PLAYED = {"accelerate/lazy/opening.py", "accelerate/whole/folders.py"}
"""Modules of `run` that play the script's own call, and compare it."""

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 30\n%%EndComments\nshowpage\n%%EOF\n"


def opening_calls(path: Path) -> list[str]:
    """The calls of a module that open an image with Pillow without naming formats."""
    tree = ast.parse(path.read_text())
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "open":
            owner = ast.unparse(node.func.value)
            named = any(keyword.arg == "formats" for keyword in node.keywords)
            if owner in ("Image", "PIL.Image", "pillow()", "library", "pillow", 'sys.modules["PIL.Image"]') and not named:
                found.append(f"{path}:{node.lineno}")
    return found


def test_every_call_of_pillow_names_its_formats() -> None:
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {name: opening_calls(path) for name, path in modules.items()}
    assert {name for name, calls in found.items() if calls} <= PLAYED, found


@pytest.fixture
def no_ghostscript(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records what would start Ghostscript."""
    started: list[str] = []

    def ghostscript(*arguments: object, **named: object) -> Image.Image:
        started.append("gs")
        return Image.new("RGB", (40, 30))

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    return started


@pytest.mark.parametrize("options", [{}, {"max_side": 16}, {"transform": "Resize(8)"}, {"keep_bytes": True}])
def test_pack_gives_postscript_to_no_program(
    options: dict[str, object], image_folder: Callable[..., Path], tmp_path: Path, no_ghostscript: list[str]
) -> None:
    source = image_folder(classes=1, per_class=2)
    (source / "class_0" / "evil.jpg").write_bytes(POSTSCRIPT)
    result = headrace.pack(source, tmp_path / "packed", workers=1, **options)  # type: ignore[arg-type]
    assert (result.records, result.errors, no_ghostscript) == (2, 1, [])
    assert "evil.jpg" in (tmp_path / "packed" / "errors.jsonl").read_text()


def test_a_contact_sheet_gives_postscript_to_no_program(
    image_folder: Callable[..., Path], tmp_path: Path, no_ghostscript: list[str]
) -> None:
    source = image_folder(classes=1, per_class=2)
    (source / "class_0" / "evil.jpg").write_bytes(POSTSCRIPT)
    found = inspect_dataset(source, sheet=tmp_path / "sheet.png")
    assert list(found.unreadable) == ["class_0/evil.jpg"] and not no_ghostscript


def test_postscript_is_no_image() -> None:
    for read in (read_header, decode_with_pillow):
        with pytest.raises(DecodeError, match="not an image: it begins with b'%!PS-Ado'"):
            read(POSTSCRIPT)


@pytest.mark.parametrize("name", ["BMP", "GIF", "ICO", "JPEG", "PCX", "PNG", "PPM", "SGI", "TGA", "TIFF", "WEBP"])
def test_raster_formats_are_opened(name: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (9, 90, 200)).save(file, name)
    assert name in RASTER_FORMATS and open_raster(file.getvalue()).size == (16, 16)
