"""Insert restart markers into a JPEG without loss, so that decoding can start in the middle."""

from __future__ import annotations

from headrace._native import restart_markers as native_restart_markers
from headrace.errors import UsageError

__all__ = ["restart_markers"]


def restart_markers(jpeg: bytes, *, tile: int = 32, keep_metadata: bool = True) -> bytes:
    """Return the JPEG with restart markers inserted, so that decoding can start at each marker. No pixel changes.

    jpeg: the file's bytes.
    tile: width of a piece in pixels, at least 1 (default 32).
    keep_metadata: keep all metadata (default). False keeps the JFIF and Adobe markers and the EXIF orientation only.

    Returns a baseline JPEG with restart markers and optimal Huffman tables. Progressive, arithmetic and multi-scan files become
    baseline. At the default tile an optimised photograph grows by about 1.6 %. Bytes after the image, for example the second
    picture of a multi-picture file, are dropped.

    Raises `DecodeError` if the file is damaged or cannot be rewritten (12-bit, lossless, incomplete progressive), `UsageError`
    if `tile` is not positive.

        smaller_pieces = restart_markers(Path("photo.jpg").read_bytes(), tile=64)
    """
    if tile < 1:
        raise UsageError(f"tile, the pixels between two restart markers, must be at least 1, not {tile}")
    return native_restart_markers(jpeg, min(tile, 1 << 16), keep_metadata)
