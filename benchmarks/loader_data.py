"""The data of benchmarks/loaders.py in the forms that the loaders read: the same JPEG bytes everywhere.

folder; pack (restart markers added, coefficients untouched); original.beton (FFCV's file with the folder's own bytes); litdata.
small-folder, small-pack and small.beton: longest side 500, quality 90, encoded once by Pillow.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loader_peers import CLASSES
from sample import photographs, shrunk


def prepare(folder: str | None, root: Path) -> tuple[int, list[str]]:
    """Make all forms of the data below `root`. Return the number of images, and a line for each form that could not be made."""
    import headrace

    files = photographs(folder, 1000)
    for number, path in enumerate(files):
        for kind in ("folder", "small-folder"):
            target = root / kind / f"c{number % CLASSES}" / f"{number:05d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                shutil.copyfile(path, target)
            else:
                target.write_bytes(shrunk(path.read_bytes()))
    headrace.pack(root / "folder", root / "pack")
    headrace.pack(root / "small-folder", root / "small-pack")
    failed = []
    for package, step in (("ffcv", "beton"), ("litdata", "litdata")):
        if importlib.util.find_spec(package):
            # In a process of its own: these packages start threads and set start methods.
            run = subprocess.run([sys.executable, __file__, step, str(root)], capture_output=True, text=True, check=False)
            if run.returncode:
                failed.append(f"{package}: {run.stderr.strip().splitlines()[-1]}")
    return len(files), failed


def _items(root: Path) -> Iterator[tuple[bytes, int]]:
    for path in sorted(root.rglob("*.jpg")):
        yield path.read_bytes(), int(path.parent.name[1:])


def beton(root: Path) -> None:
    """Write FFCV's file by its own writer. Only the field's encoder is replaced: it stores the JPEG bytes as they are."""
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import IMAGE_MODES
    from ffcv.writer import DatasetWriter
    from headrace import _native

    def encode(self: Any, destination: Any, image: bytes, malloc: Any) -> None:
        width, height = _native.image_size(image)
        destination["mode"], destination["width"], destination["height"] = IMAGE_MODES["jpg"], width, height
        destination["data_ptr"], storage = malloc(len(image))
        storage[:] = np.frombuffer(image, dtype=np.uint8)

    RGBImageField.encode = encode
    for source, target in (("folder", "original.beton"), ("small-folder", "small.beton")):
        items = list(_items(root / source))
        writer = DatasetWriter(str(root / target), {"image": RGBImageField(), "label": IntField()}, num_workers=1)
        with contextlib.redirect_stderr(sys.stdout):
            writer.from_indexed_dataset(items)


def _litdata_item(item: tuple[str, int]) -> dict[str, Any]:
    return {"image": Path(item[0]).read_bytes(), "label": item[1]}


def litdata(root: Path) -> None:
    """Write LitData's chunks with the folder's own bytes, by its own tool."""
    import litdata as package

    items = [(str(path), int(path.parent.name[1:])) for path in sorted((root / "folder").rglob("*.jpg"))]
    package.optimize(fn=_litdata_item, inputs=items, output_dir=str(root / "litdata"), chunk_bytes="16MB", num_workers=1)


if __name__ == "__main__":
    {"beton": beton, "litdata": litdata}[sys.argv[1]](Path(sys.argv[2]))
