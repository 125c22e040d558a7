"""Published rates of GPU JPEG decoders, for estimates before one was measured."""

from __future__ import annotations

__all__ = ["JPEG_ENGINE", "NVJPEG_IMG_S", "NVJPEG_SOURCE"]

NVJPEG_IMG_S = 7834.0
"""Images/s of the A100's JPEG engine through torchvision: whole images of 551×676 on average, 127.7 ms for 1000 of them."""

NVJPEG_SOURCE = "estimated: an A100's JPEG engine through torchvision, pytorch/vision pull request 8496"
"""Where NVJPEG_IMG_S comes from, as pages and commands say it."""

JPEG_ENGINE = (8, 0)
"""The least compute capability of data centre GPUs with a JPEG engine (A100, H100, H200; GPUs of 8.6 and 8.9 have none)."""
