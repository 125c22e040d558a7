"""The encoding of each image: in native code for ordinary JPEGs, else in Python, which also names an image's faults."""

from __future__ import annotations

from dataclasses import dataclass

from headrace._native import PackRecipe
from headrace.errors import DecodeError, HeadraceError
from headrace.images.with_pillow import library_reason
from headrace.packing.encoding.lossless import Encode, EncodedImage, lossless_encoder
from headrace.packing.encoding.reencode import reencoder
from headrace.packing.planning.options import DEFAULT_QUALITY, RESTART_TILE, PackOptions

__all__ = ["ImageEncoder", "image_encoder"]


@dataclass(frozen=True, slots=True)
class ImageEncoder:
    """The two implementations of the same encoding: `encode` in Python for every image, `native` for ordinary JPEGs."""

    encode: Encode
    native: PackRecipe | None  # None: native code does not support these options
    keeps_sidecars: bool  # whether sidecar files are packed too


def image_encoder(options: PackOptions) -> ImageEncoder:
    """Return the encoder for `options`. Raise UsageError for a malformed transform, MissingDependencyError without Pillow."""
    lossless = lossless_encoder(options)
    encode = reencoder(options, lossless) if options.reencodes else lossless
    return ImageEncoder(
        _for_one_record(encode), None if options.transform else _native_recipe(options), options.extras == "keep"
    )


def _for_one_record(encode: Encode) -> Encode:
    """Return an encoder whose errors concern one image alone, errors of libraries included."""

    def encoded(data: bytes) -> EncodedImage:
        try:
            return encode(data)
        except HeadraceError:
            raise
        except Exception as error:
            raise DecodeError(f"cannot be packed: {library_reason(error)}") from error

    return encoded


def _native_recipe(options: PackOptions) -> PackRecipe:
    keep = "bytes" if options.keep_bytes else "marked" if options.restart_markers else "decodable"
    if not options.reencodes:
        return PackRecipe(keep, RESTART_TILE)
    bounds = (("max_side", options.max_side), ("short_side", options.short_side), ("resize", options.resize))
    name, length = next(((name, length) for name, length in bounds if length is not None), (None, 0))
    quality = options.quality or DEFAULT_QUALITY
    return PackRecipe(keep, RESTART_TILE, quality=quality, above_quality=options.quality, bound=name, length=length)
