"""Re-encoding of images: decode, resize, transform, encode.

An image that only changes its quality stays in the frequency domain; one that needs no change keeps its coefficients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace._native import encode_jpeg, requantise_jpeg
from headrace.errors import DecodeError
from headrace.images.decode import NOT_DECODED, TOO_LARGE, UNSUPPORTED, decode_into, reason
from headrace.images.header import ImageHeader, format_of, read_header
from headrace.images.with_pillow import converted, decode_with_pillow, pillow
from headrace.packing.encoding.lossless import MAX_SIDE, Encode, EncodedImage
from headrace.packing.encoding.transform import parsed
from headrace.packing.planning.options import DEFAULT_QUALITY, RESTART_TILE, PackOptions
from headrace.system.text.size_limits import max_pixels

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["reencoder"]


def reencoder(options: PackOptions, lossless: Encode) -> Encode:
    """Return the function that packs an image with options that may re-encode it.

    An image is re-encoded if it is too large, if there is a transform, or if `options.quality` is given and the image is no
    JPEG or a JPEG of higher quality. `lossless` packs all others, and JPEGs that re-encoding would not make smaller. Images
    that a Loader cannot decode are always re-encoded. A JPEG that keeps its size is requantised without decoding to pixels.

    Raises UsageError for a malformed transform, MissingDependencyError without Pillow; the function raises DecodeError.
    """
    prepare = parsed(options.transform) if options.transform else None
    quality = options.quality or DEFAULT_QUALITY
    pillow()  # raise now, not at the first image, if it is missing

    def reencode(data: bytes) -> EncodedImage:
        header = read_header(data)
        size = _target(options, header.width, header.height)
        if size is not None or prepare is not None:
            return through_pixels(data, header, size)
        if not _is_finer(header, options.quality):
            return kept(data, header)
        coarser = coarsened(data, header)
        return kept(data, header) if header.jpeg is not None and len(coarser.data) >= len(data) else coarser

    def kept(data: bytes, header: ImageHeader) -> EncodedImage:
        try:
            return lossless(data)
        except DecodeError as error:
            if error.status not in NOT_DECODED:
                raise
            return through_pixels(data, header, None)  # a valid image that only Pillow decodes

    def coarsened(data: bytes, header: ImageHeader) -> EncodedImage:
        requantised = requantise_jpeg(data, quality, RESTART_TILE * options.restart_markers)
        if requantised is None:
            return through_pixels(data, header, None)
        return EncodedImage(requantised, "jpeg", "jpg", header.width, header.height)

    def through_pixels(data: bytes, header: ImageHeader, size: tuple[int, int] | None) -> EncodedImage:
        if size is not None:
            _refuse_too_large(size)  # refuse before allocating
        image = _pixels(data, header, size or (header.width, header.height))
        if prepare is not None:
            image = prepare(image)
        _refuse_too_large(image.size)
        encoded = _encoded(image, quality, data, with_markers=options.restart_markers)
        return EncodedImage(encoded, "jpeg", "jpg", *image.size)

    return reencode


def _target(options: PackOptions, width: int, height: int) -> tuple[int, int] | None:
    """Return the (width, height) that an image is resized to, or None if it keeps its size."""
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


def _refuse_too_large(size: tuple[int, int]) -> None:
    """Raise DecodeError for a (width, height) that a JPEG cannot have or a Loader does not decode, after an enlargement."""
    would = f"would become {size[0]:,} x {size[1]:,} pixels"
    if max(size) > MAX_SIDE:
        raise DecodeError(f"{would}; a JPEG has at most {MAX_SIDE:,} on a side")
    if size[0] * size[1] > max_pixels():
        raise DecodeError(f"{would}; Loaders decode at most {max_pixels():,}", status=TOO_LARGE)


def _is_finer(header: ImageHeader, quality: int | None) -> bool:
    """Return whether encoding at `quality` reduces the image; an image of that quality or lower would only lose detail."""
    if quality is None:
        return False
    return header.jpeg is None or header.jpeg.quality is None or header.jpeg.quality > quality


def _pixels(data: bytes, header: ImageHeader, size: tuple[int, int]) -> Image.Image:
    """Return the image at `size` (width, height), grey or RGB, resized with Pillow's bicubic filter."""
    jpeg = header.jpeg
    if jpeg is not None and jpeg.bits == 8 and jpeg.components in (1, 3):
        if header.width * header.height > max_pixels():
            raise DecodeError(reason(TOO_LARGE), status=TOO_LARGE)  # refuse before allocating
        out = np.empty((1, size[1], size[0], 3), dtype=np.uint8)
        status = int(decode_into([data], out, resample="bicubic")[0])
        if status == 0:
            image: Image.Image = pillow().fromarray(out[0, :, :, 0].copy() if jpeg.components == 1 else out[0])
            return image
        if status != UNSUPPORTED:
            raise DecodeError(reason(status), status=status)
    plain = _plain(decode_with_pillow(data))
    return plain if plain.size == size else plain.resize(size, pillow().Resampling.BICUBIC)


def _plain(image: Image.Image) -> Image.Image:
    """Convert to grey or RGB, which a JPEG can hold and torchvision's loader gives."""
    if image.mode in ("RGB", "L"):
        return image
    return converted(image, "L" if image.mode[0] in "1I" or image.mode == "La" else "RGB")


def _encoded(image: Image.Image, quality: int, source: bytes, *, with_markers: bool) -> bytes:
    """Return a grey or RGB image as a JPEG, with headrace's own encoder, so that the bytes do not depend on Pillow's build."""
    gray = image.mode == "L"
    pixels = np.asarray(image.convert("RGB"))
    turned_as = None if format_of(source) == "tiff" else source  # Pillow has applied the orientation of a TIFF
    height, width, _ = pixels.shape
    return encode_jpeg(pixels.tobytes(), width, height, quality, RESTART_TILE * with_markers, gray=gray, turned_as=turned_as)
