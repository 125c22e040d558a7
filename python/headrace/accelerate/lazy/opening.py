"""Make `Image.open` return lazy JPEGs while this thread makes a dataset item.

Pillow's registry of formats names the function that opens a JPEG. Inside `lazy_images()` it names a function of headrace, which
turns the opened image into a lazy one. So every way to open a file is covered (`Image.open` under any name, `pil_loader`,
`datasets.Image`). `Image.transform` is replaced too inside the block (`affine_transform`). Outside of the block Pillow is
unchanged. Other threads open ordinary images.
"""

from __future__ import annotations

import functools
import io
import os
import threading
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image, JpegImagePlugin
from PIL.JpegImagePlugin import JpegImageFile

from headrace.accelerate.lazy.affine_transform import pillows_transform, transformed, transforms_alike
from headrace.accelerate.lazy.image_description import begin_batch
from headrace.accelerate.lazy.pillow import OpenedJpeg, description_of, first_images_equal, unchanged_operations
from headrace.accelerate.runtime.unsupported import Unsupported

__all__ = ["lazily_opened", "lazy_images", "require_equal_operations"]

_FORMAT = "JPEG"
_MODES = ("RGB", "L")
_set_class = object.__dict__["__class__"].__set__


class _Depth(threading.local):
    """How many `lazy_images()` blocks the current thread is in."""

    value = 0


_depth = _Depth()
_lock = threading.Lock()


def _renew_lock() -> None:
    """Make a new lock in a forked child: another thread of the parent may have held the old one."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
_blocks = 0
_opened = 0
_replaced: tuple[Any, Any] | None = None


def _open_jpeg(file: Any, filename: Any = None) -> Any:
    """Open a JPEG by Pillow's own function, and make it lazy if this thread is inside `lazy_images()`."""
    replaced = _replaced
    factory = JpegImagePlugin.jpeg_factory if replaced is None else replaced[0]
    image = factory(file, filename)
    if type(image) is JpegImageFile and _depth.value:
        global _opened
        _opened += 1
        if image._mode in _MODES and "progressive" not in image.info and first_images_equal():
            _set_class(image, OpenedJpeg)
    return image


@functools.wraps(pillows_transform)
def _transform(
    self: Any, size: Any, method: Any, data: Any = None, resample: Any = 0, fill: Any = 1, fillcolor: Any = None
) -> Any:
    made = transformed(self, size, method, data, resample, fillcolor) if _depth.value else None
    return pillows_transform(self, size, method, data, resample, fill, fillcolor) if made is None else made


def lazily_opened() -> int:
    """Return how many JPEGs this process has opened lazily."""
    return _opened


class lazy_images:
    """Context manager: `Image.open` returns lazy JPEGs in this thread. May be nested.

    with lazy_images():
        image, label = dataset[3]
    """

    def __enter__(self) -> None:
        global _blocks, _replaced
        with _lock:
            if _blocks == 0:
                _replaced = Image.OPEN[_FORMAT]
                Image.OPEN[_FORMAT] = (_open_jpeg, _replaced[1])
                if Image.Image.transform is pillows_transform and transforms_alike():
                    Image.Image.transform = _transform
            _blocks += 1
        if not _depth.value:
            begin_batch()
        _depth.value += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        global _blocks, _replaced
        _depth.value -= 1
        with _lock:
            _blocks -= 1
            if _blocks == 0 and _replaced is not None:
                if Image.OPEN[_FORMAT][0] is _open_jpeg:  # the script has not registered its own meanwhile
                    Image.OPEN[_FORMAT] = _replaced
                if Image.Image.transform is _transform:
                    Image.Image.transform = pillows_transform
                _replaced = None


def require_equal_operations() -> None:
    """Raise `Unsupported` if lazy images would differ from those of the installed Pillow, or if the script has changed Pillow.

    A small JPEG is opened, cropped, resized with every filter and flipped, lazily and not, and compared, once in a process.
    """
    changed = unchanged_operations()
    if changed:
        raise Unsupported(f"{changed} is not Pillow's own")
    if _FORMAT not in Image.OPEN:
        raise Unsupported("Pillow reads no JPEG")
    _compare_operations()


@functools.cache
def _compare_operations() -> None:
    values = np.add.outer(np.arange(48) * 3, np.arange(64) * 2)[..., None] * np.array([1, 3, 7]) % 256
    file = io.BytesIO()
    Image.fromarray(values.astype(np.uint8)).save(file, _FORMAT, quality=90)
    for resample in (0, 1, 2, 3, 4, 5):
        ordinary = _operated(file, resample)
        with lazy_images():
            ours = _operated(file, resample)
        if description_of(ours) is None:
            raise Unsupported(f"Pillow {Image.__version__} is not supported for lazy images")
        if not np.array_equal(np.asarray(ours), np.asarray(ordinary)):
            raise Unsupported(f"Pillow {Image.__version__} gives other pixels")
        if (
            ours.tobytes() != ordinary.tobytes()
            or vars(ours).keys() != vars(ordinary).keys()
            or type(ours) is not type(ordinary)
        ):
            raise Unsupported(f"Pillow {Image.__version__} has other attributes")


def _operated(file: io.BytesIO, resample: int) -> Any:
    file.seek(0)  # `Image.open` may be a function of the script
    image = (
        Image.OPEN[_FORMAT][0](file, None).convert("RGB").crop((3, 2, 50, 44)).resize((30, 20), resample).crop((2, 3, 25, 20))
    )
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
