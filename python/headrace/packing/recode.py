"""From a source image's bytes to the bytes that are packed: kept, given restart markers, or made smaller."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from headrace import _native
from headrace.decode import decode_into, reason
from headrace.errors import DecodeError, MissingDependencyError
from headrace.image_header import EXTENSIONS, ImageHeader, read_header
from headrace.packing.options import DEFAULT_QUALITY, RESTART_TILE, PackOptions
from headrace.packing.prepare import parsed

if TYPE_CHECKING:
    from PIL import Image

_ORIENTATION = 0x0112  # EXIF tag
_UNSUPPORTED = 8  # headrace-core's Status::Unsupported

__all__ = ["Recoded", "Recoder", "check_pixels", "decoded", "recoder"]


@dataclass(frozen=True, slots=True)
class Recoded:
    """An image as it goes into a shard. `extension` is None when the bytes' format is unknown to us."""

    data: bytes
    extension: str | None
    width: int
    height: int


Recoder = Callable[[bytes], Recoded]


def recoder(options: PackOptions) -> Recoder:
    """The function that every image goes through; it raises DecodeError for images that cannot be packed.

    Safe to call from several threads. Raises UsageError for a transform that cannot be read, MissingDependencyError
    when re-encoding is asked for and Pillow is not installed.
    """
    if options.keep_bytes:
        return _kept
    lossless = _with_restart_markers if options.restart_markers else _checked
    if not options.reencodes:
        return lossless
    _pillow()  # say now, not at the first image, that it is missing
    prepare = parsed(options.transform) if options.transform else None
    only_quality = options.quality is not None and _resized_to(options, 1 << 16, 1 << 16) is None

    def reencode(data: bytes) -> Recoded:
        header = read_header(data)
        size = _resized_to(options, header.width, header.height)
        if size is None and prepare is None and not only_quality:
            return lossless(data)  # small enough: its coefficients stay, which is faster and loses nothing
        image = _plain(decoded(data))
        if size is not None:
            image = image.resize(size, _pillow().Resampling.BICUBIC)
        if prepare is not None:
            image = prepare(image)
        return lossless(_encoded(image, options.quality or DEFAULT_QUALITY))

    return reencode


def _resized_to(options: PackOptions, width: int, height: int) -> tuple[int, int] | None:
    """The size an image is brought to, or None when it keeps its own."""
    longer, shorter = max(width, height), min(width, height)
    if options.max_side is not None:
        scale = min(1.0, options.max_side / longer)
    elif options.short_side is not None:
        scale = min(1.0, options.short_side / shorter)
    elif options.resize is not None:
        scale = options.resize / shorter
    else:
        return None
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return None if size == (width, height) else size


def _kept(data: bytes) -> Recoded:
    return _recoded(data, read_header(data))


def _checked(data: bytes) -> Recoded:
    header = read_header(data)
    check_pixels(data, header)
    return _recoded(data, header)


def check_pixels(data: bytes, header: ImageHeader) -> None:
    """Decodes all of an image. Raises DecodeError when that fails."""
    if header.jpeg is None or header.jpeg.bits != 8:
        decoded(data)
        return
    out = np.empty((1, header.height, header.width, 3), dtype=np.uint8)
    status = int(decode_into([data], out)[0])
    if status:
        raise DecodeError(reason(status), status=status)


def _with_restart_markers(data: bytes) -> Recoded:
    header = read_header(data)
    if header.jpeg is None:
        check_pixels(data, header)  # nothing is inserted, but a damaged file must be found now
        return _recoded(data, header)
    try:
        marked = _native.restart_markers(data, RESTART_TILE)
    except DecodeError as error:
        if error.status != _UNSUPPORTED:
            raise
        return _checked(data)  # a valid file of a kind without restart markers (12-bit, lossless): kept as it is
    return _recoded(marked, header)


def _recoded(data: bytes, header: ImageHeader) -> Recoded:
    return Recoded(data, EXTENSIONS.get(header.format), header.width, header.height)


def decoded(data: bytes) -> Image.Image:
    """Decodes with Pillow, all pixels. Raises DecodeError with Pillow's reason."""
    library = _pillow()
    try:
        image: Image.Image = library.open(io.BytesIO(data))
        image.load()
    except Exception as error:  # Pillow's plugins raise many kinds; each means that this image cannot be decoded
        raise DecodeError(f"cannot be decoded: {error}") from error
    return image


def _encoded(image: Image.Image, quality: int) -> bytes:
    """JPEG with 4:2:0 as Pillow, OpenCV and FFCV write it. EXIF is kept only where it turns the image."""
    turned = image.getexif().get(_ORIENTATION, 1) not in (0, 1)
    exif = {"exif": image.info["exif"]} if turned and "exif" in image.info else {}
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, **exif)
    return file.getvalue()


def _plain(image: Image.Image) -> Image.Image:
    """Grey or RGB, as a JPEG holds it and as torchvision's loader sees it."""
    if image.mode in ("RGB", "L"):
        return image
    return image.convert("L" if image.mode in ("1", "I;16") else "RGB")


def _pillow() -> ModuleType:
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingDependencyError("re-encoding images needs Pillow", hint="pip install pillow") from error
    return cast(ModuleType, PIL.Image)
