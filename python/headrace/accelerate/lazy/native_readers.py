"""Replace the image readers of OpenCV and torchvision.io while an item is made: whole JPEGs are decoded natively.

Inside `native_readers()`, the functions in `READERS` are replaced by `Reader` objects. In a thread that is in the block, a
`Reader` decodes whole JPEGs natively. Everything else goes to the library's own function: other threads, other files and
options, files with any damage. Outside of the block the libraries are unchanged. The first results of each way to call a reader
are compared with the library's own, in each process. A reader whose result differs is not used again there.

A name that the script imported by itself (`from cv2 import imread`) stays OpenCV's own function. torchvision's operators are
replaced below its Python functions, so every name of those is covered.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import PurePath
from types import BuiltinFunctionType, TracebackType
from typing import Any

import numpy as np

from headrace._native import decode_sound_jpeg, jpeg_shape
from headrace.accelerate.lazy.native_work import LIBRARIES, native_work, note_native
from headrace.accelerate.runtime.data_map import mapped
from headrace.accelerate.runtime.first_results import FirstResults

__all__ = ["READERS", "Reader", "compare_first_reads", "native_readers", "natively_read", "readers_imported"]

COMPARED_READS = 3
"""Number of first results to compare, per process, function, flags, channels of the file, and EXIF orientation."""

LIMITS = "OPENCV_IO_MAX_IMAGE_"
"""Prefix of OpenCV's environment variables that limit image sizes. If a script sets one, OpenCV's own readers are used."""

_COLOUR, _ANY_COLOUR, _ANY_DEPTH, _IGNORE_ORIENTATION, _RGB = 1, 4, 2, 128, 256
_KNOWN_FLAGS = _COLOUR | _ANY_COLOUR | _ANY_DEPTH | _IGNORE_ORIENTATION | _RGB
_UNCHANGED = -1

_IMAGE_READ_MODES = {0: "unchanged", 1: "gray", 3: "rgb"}
"""Names of torchvision's `ImageReadMode` by value."""

Decoded = tuple[tuple[Any, ...], Any]
"""How a reader was called (function, flags …), and the image that it returned."""


class _Depth(threading.local):
    """How many `native_readers()` blocks the current thread is in."""

    value = 0


_depth = _Depth()
_lock = threading.Lock()
_blocks = 0
_replaced: list[tuple[Any, str, Reader]] = []
_readers: dict[tuple[str, str], Reader] = {}


def _renew_lock() -> None:
    """Make a new lock in a forked child: another thread of the parent may have held the old one."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class Reader:
    """A native replacement of a library's image reader, which calls the library's function where the result might differ.

    `original`: the function. `decode`: takes the same arguments and returns `Decoded`, or None where `original` must read.
    """

    def __init__(self, place: tuple[str, str], original: Any, decode: Callable[..., Decoded | None]) -> None:
        self.original = original
        self._place = place
        self._decode = decode
        self._first = FirstResults(COMPARED_READS, f"{'.'.join(place)} came out different; this process reads with the library")
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(self, name, getattr(original, name, None))

    def __getattr__(self, name: str) -> Any:
        if name == "original":  # absent while the object is copied
            raise AttributeError(name)
        return getattr(self.original, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_at, self._place)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the image that the library's function would return."""
        if not _depth.value or not self._first.equal:
            return self.original(*arguments, **options)
        decoded = self._decode(*arguments, **options)
        if decoded is None:
            return self.original(*arguments, **options)
        note_native("OpenCV" if self._place[0] == "cv2" else "torchvision.io")
        way, found = decoded
        if not self._first.wants(way):
            return found
        expected = self.original(*arguments, **options)
        self._first.note(_are_equal(found, expected), way)
        return expected

    def compare_again(self) -> None:
        """Compare the first results from now on with the library's again, as at the start: in a forked worker."""
        self._first.compare_again()


def _at(module: str, name: str) -> Any:
    """Return the function that has this name now: what a pickled `Reader` becomes."""
    return getattr(_owner(module), name)


def _are_equal(ours: Any, theirs: Any) -> bool:
    if type(ours) is not type(theirs) or ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if isinstance(ours, np.ndarray):
        same_memory = ours.strides == theirs.strides and ours.flags.num == theirs.flags.num
        return same_memory and bool(np.array_equal(ours, theirs))
    if ours.untyped_storage().resizable() != theirs.untyped_storage().resizable():
        return False
    return bool(ours.stride() == theirs.stride() and (ours == theirs).all())


def _pixels(data: Any, shape: tuple[int, int], channels: str) -> Any:
    """Return the pixels of a sound JPEG as a new array [height, width, 3], or [height, width] of gray; None for other files."""
    height, width = shape
    out = np.empty(shape if channels == "gray" else (height, width, 3), dtype=np.uint8)
    return out if decode_sound_jpeg(data, width, height, channels, out) else None


def _imread(filename: Any = None, *arguments: Any, **options: Any) -> Decoded | None:
    """Do `cv2.imread(filename[, flags])` natively. None: the call is OpenCV's."""
    filename = options.pop("filename", filename)
    flags = _flags(arguments, options, _COLOUR)
    if flags is None or not (type(filename) is str or isinstance(filename, PurePath)):
        return None
    data = _file_bytes(str(filename))
    return None if data is None else _decoded_by_flags(data, flags, type(filename))


def _imdecode(buf: Any = None, *arguments: Any, **options: Any) -> Decoded | None:
    """Do `cv2.imdecode(buf, flags)` natively. None: the call is OpenCV's."""
    buf = options.pop("buf", buf)
    flags = _flags(arguments, options, None)
    if flags is None or type(buf) is not np.ndarray or buf.dtype != np.uint8:
        return None
    if not buf.flags.c_contiguous or buf.size == 0 or max(buf.shape) != buf.size:
        return None
    return _decoded_by_flags(buf.reshape(-1), flags, buf.ndim)


def _flags(arguments: tuple[Any, ...], options: dict[str, Any], default: int | None) -> int | None:
    """Return the flags that a call gives OpenCV, or `default`. None if OpenCV itself must make the call."""
    if len(arguments) + len(options) > 1 or options.keys() - {"flags"}:
        return None
    flags = arguments[0] if arguments else options.get("flags", default)
    if type(flags) is not int or (flags != _UNCHANGED and flags & ~_KNOWN_FLAGS):
        return None
    # OpenCV refuses RGB with COLOR, and its versions differ about ANYCOLOR with COLOR.
    return None if flags != _UNCHANGED and flags & _COLOUR and flags & (_RGB | _ANY_COLOUR) else flags


def _decoded_by_flags(data: Any, flags: int, kind: Any) -> Decoded | None:
    """Decode as OpenCV's `ImreadModes` say (modules/imgcodecs/src/loadsave.cpp, calcType and ExifTransform)."""
    facts = jpeg_shape(data)
    if facts is None:
        return None
    width, height, components, orientation = facts
    if flags == _UNCHANGED:
        channels = "bgr" if components == 3 else "gray"
    elif flags & _RGB:
        channels = "rgb"
    else:
        channels = "bgr" if flags & _COLOUR or (flags & _ANY_COLOUR and components == 3) else "gray"
    if flags == _UNCHANGED or flags & _IGNORE_ORIENTATION:
        orientation = 1
    if not orientation:
        return None
    image = _pixels(data, (height, width), channels)
    if image is None:
        return None
    return (flags, components, orientation, kind), _upright_by_opencv(image, orientation)


def _upright_by_opencv(image: Any, orientation: int) -> Any:
    cv2: Any = sys.modules["cv2"]
    if orientation > 4:
        image = cv2.transpose(image)
    flip = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}.get(orientation)
    return image if flip is None else cv2.flip(image, flip)


def _file_bytes(path: str) -> bytes | None:
    """Return the bytes of a regular file, or None."""
    try:
        number = os.open(mapped(path).encode("utf-8"), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(number)
        return os.pread(number, found.st_size, 0) if stat.S_ISREG(found.st_mode) else None
    except OSError:
        return None
    finally:
        os.close(number)


def _decode_op(
    data: Any = None, mode: Any = 0, apply_exif_orientation: Any = False, *rest: Any, **options: Any
) -> Decoded | None:
    """Do `torch.ops.image.decode_jpeg` or `decode_image` (data, mode, apply_exif_orientation) natively. None: torchvision's."""
    torch: Any = sys.modules["torch"]
    if rest or options or type(mode) is not int or mode not in _IMAGE_READ_MODES or type(apply_exif_orientation) is not bool:
        return None
    plain = type(data) is torch.Tensor and data.dtype == torch.uint8 and data.device.type == "cpu"
    if not plain or data.ndim != 1 or not data.is_contiguous() or data.numel() == 0:
        return None
    values = np.from_dlpack(data)  # `numpy()` would make the storage one that cannot be resized
    facts = jpeg_shape(values)
    if facts is None:
        return None
    width, height, components, orientation = facts
    if not apply_exif_orientation:
        orientation = 1
    if not orientation:
        return None
    gray = mode == 1 or (mode == 0 and components == 1)
    image = torch.empty((height, width, 1 if gray else 3), dtype=torch.uint8, device="cpu")
    if not decode_sound_jpeg(values, width, height, "gray" if gray else "rgb", np.from_dlpack(image)):
        return None
    return (mode, components, orientation), _upright_by_torchvision(image.permute(2, 0, 1), orientation)


def _upright_by_torchvision(image: Any, orientation: int) -> Any:
    """Turn an image as torchvision does (io/image/cpu/exif.h, exif_orientation_transform)."""
    if orientation > 4:
        image = image.transpose(-1, -2)
    flips = {2: [-1], 3: [-2, -1], 4: [-2], 6: [-1], 7: [-2, -1], 8: [-2]}.get(orientation)
    return image if flips is None else image.flip(flips)


READERS: dict[tuple[str, str], Callable[..., Decoded | None]] = {
    ("cv2", "imread"): _imread,
    ("cv2", "imdecode"): _imdecode,
    ("torch.ops.image", "decode_jpeg"): _decode_op,
    ("torch.ops.image", "decode_image"): _decode_op,
}
"""The replaced functions by module and name, each with its native counterpart."""


def readers_imported() -> list[str]:
    """Return which libraries with replaced readers the script has imported: "OpenCV", "torchvision.io"."""
    cv2 = [] if any(name.startswith(LIMITS) for name in os.environ) or "cv2" not in sys.modules else ["OpenCV"]
    return cv2 + (["torchvision.io"] if "torchvision.io" in sys.modules else [])


def _owner(module: str) -> Any:
    """Return the object whose attributes are replaced, or None if the script has not imported the library."""
    if module == "cv2":
        return sys.modules["cv2"] if "OpenCV" in readers_imported() else None
    return sys.modules["torch"].ops.image if "torchvision.io" in sys.modules else None


def _is_own(function: Any) -> bool:
    """Return whether a function is the library's own, not a replacement by the script."""
    if type(function) is Reader:
        return False
    if hasattr(function, "_headrace_data_map"):
        return True
    return type(function) is BuiltinFunctionType or type(function).__name__ == "OpOverloadPacket"


def natively_read() -> int:
    """Return the number of JPEGs that this process has decoded natively so far, in all `native_readers()` blocks together."""
    return sum(native_work(*LIBRARIES))


def compare_first_reads() -> None:
    """Compare the next results of all readers of this process with the libraries' again."""
    for reader in _readers.values():
        reader.compare_again()


class native_readers:
    """Context manager: JPEGs that this thread reads with OpenCV or torchvision.io are decoded natively.

    with native_readers():
        image, label = dataset[3]
    """

    def __enter__(self) -> None:
        global _blocks
        with _lock:
            if _blocks == 0:
                _replace()
            _blocks += 1
        _depth.value += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        global _blocks
        _depth.value -= 1
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _restore()


def _replace() -> None:
    for (module, name), decode in READERS.items():
        owner = _owner(module)
        original = getattr(owner, name, None)
        if original is None or not _is_own(original):
            continue
        reader = _readers.get((module, name))
        if reader is None or reader.original is not original:
            reader = _readers[module, name] = Reader((module, name), original, decode)
        setattr(owner, name, reader)
        _replaced.append((owner, name, reader))


def _restore() -> None:
    while _replaced:
        owner, name, reader = _replaced.pop()
        if getattr(owner, name, None) is reader:  # the script has not put its own there meanwhile
            setattr(owner, name, reader.original)
