"""Images decoded by Pillow: formats that are not decoded natively, and pictures for people."""

from __future__ import annotations

import re
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from headrace._native import decode_into
from headrace.errors import DecodeError, MissingDependencyError
from headrace.images.decode import NOT_DECODED, TOO_LARGE, reason
from headrace.images.header import read_header
from headrace.images.raster import open_raster
from headrace.system.text.size_limits import max_pixels

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["converted", "decode_with_pillow", "library_reason", "pillow", "rgb_picture", "rgb_pixels"]


def rgb_pixels(data: bytes, size: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """Decode a whole image to RGB as a Loader does, or with Pillow if its format is not decoded natively.

    data: the encoded image. size: (width, height) in pixels to resize it to; None (default): its own.

    Returns uint8 [H, W, 3]. Raises DecodeError with the reason, MissingDependencyError if Pillow is needed and not installed.
    Example: `rgb_pixels(Path("cat.jpg").read_bytes()).mean()`.
    """
    header = read_header(data)
    if header.width * header.height > max_pixels():  # refuse before allocating
        raise DecodeError(reason(TOO_LARGE), status=TOO_LARGE)
    width, height = size or (header.width, header.height)
    pixels = np.empty((1, height, width, 3), dtype=np.uint8)
    status = int(decode_into([data], pixels, height, width, None, None, 1, "bilinear", scale_depth=True)[0])
    if status in NOT_DECODED:
        decoded = decode_with_pillow(data)
        if decoded.mode in ("F", "I"):
            kind = "floating-point numbers" if decoded.mode == "F" else "numbers of 32 bits"
            raise DecodeError(f"its values are {kind}, of which none is white", hint="scale them to 8 or 16 bits first")
        image = converted(decoded, "RGB")
        return np.asarray(image if size is None else image.resize(size, pillow().Resampling.BILINEAR))
    if status:
        raise DecodeError(reason(status), status=status)
    return cast("npt.NDArray[np.uint8]", pixels[0])


def rgb_picture(data: bytes) -> Image.Image:
    """Decode a whole image to a Pillow image in RGB, with the pixels of `rgb_pixels`. Raises what that raises."""
    picture: Image.Image = pillow().fromarray(rgb_pixels(data))
    return picture


def decode_with_pillow(data: bytes) -> Image.Image:
    """Decode a whole image with Pillow. Raise DecodeError with Pillow's reason."""
    library = pillow()
    try:
        image = open_raster(data)
        image.load()
    except library.UnidentifiedImageError as error:  # its text names an address in memory
        raise DecodeError(f"not an image: it begins with {data[:8]!r}") from error
    except Exception as error:  # Pillow's plugins raise many kinds of errors for damaged images
        raise DecodeError(f"cannot be decoded: {library_reason(error)}") from error
    return image


def converted(image: Image.Image, mode: str) -> Image.Image:
    """Convert an image of any mode to `mode`, "L" or "RGB". Raise DecodeError with the image's mode if Pillow cannot.

    Gray of 16 bits keeps its upper 8 bits, as in a Loader; Pillow would make all above 255 white. Floating-point values, and
    those of 32 bits, whose white is not stated, are cut off at 0 and 255.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        image = pillow().fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    try:
        if image.mode == "La":  # gray, multiplied by alpha: Pillow converts it to no other mode than LA
            image = image.convert("LA")
        return image.convert(mode)
    except Exception as error:  # an error of a library is that of this image
        raise DecodeError(f"an image of mode {image.mode} cannot become {mode}: {library_reason(error)}") from error


def library_reason(error: Exception) -> str:
    """Return the message of a library's exception, without memory addresses, which differ from run to run."""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error))
    return text if text and isinstance(error, OSError | SyntaxError | ValueError) else f"{type(error).__name__}: {text}"


def pillow() -> ModuleType:
    """Return `PIL.Image`. Raise MissingDependencyError if Pillow is not installed."""
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingDependencyError(
            "Pillow is needed for pictures, to re-encode images, and for images other than JPEGs", hint="pip install pillow"
        ) from error
    return cast(ModuleType, PIL.Image)
